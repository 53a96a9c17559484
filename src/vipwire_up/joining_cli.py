"""`vipwire join`, `vipwire leave`, `vipwire token create|list|certificates|delete`."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
from click.core import ParameterSource

from vipwire.terminal.output import print_warning
from vipwire_up.joining.hidden_argument import hide_argument
from vipwire_up.nodes.flags import (
    EXEC_PROBES,
    EXEC_PROBES_USER,
    NODE_IP,
    NODE_LEASE,
    NODE_NAME,
    PROBES,
    PROXY,
    PROXY_MODE,
    bgp_flags,
    data_dir_option,
)

FOLDER: Final = data_dir_option("this machine's credentials")
_TOKEN: Final = "VIPWIRE_TOKEN"  # noqa: S105  # the name of a variable
_KUBECONFIG: Final = click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig of an admin; default as for kubectl."
)


def _commands() -> ModuleType:
    """Import the commands' work late: `--help` and completion do not need it."""
    from vipwire_up import joining_commands  # noqa: PLC0415

    return joining_commands


def _hide_token(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Hide a token in /proc/PID/cmdline, and from the environment of child processes."""
    os.environ.pop(_TOKEN, None)
    if value and not hide_argument(value):
        print_warning("other users of this machine can read the token in the command line: use --token-file")
    return value


@click.command()
@FOLDER
@click.argument("url", default="")
@click.option(
    "--token",
    default="",
    envvar=_TOKEN,
    callback=_hide_token,
    help="A bootstrap token: vipwire token create. Other users can read a command line until the program starts.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token, such as /dev/stdin.")
@click.option("--ca-hash", default="", help="The hash of the cluster's authority, sha256:…")
@NODE_NAME
@NODE_IP
@click.option(
    "--server", is_flag=True, help="Prepare this machine for an API server: fetch the authority's key, and exit."
)
@NODE_LEASE
@PROBES
@EXEC_PROBES
@EXEC_PROBES_USER
@PROXY
@PROXY_MODE
@click.option(
    "--relay-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of 127.0.0.1 that forwards to the API server; 0 means any free port.",
)
@click.option(
    "--announce-interface", default="", help="Interface on which to announce LoadBalancer addresses: ARP and NDP."
)
@bgp_flags
@click.option("--takeover", is_flag=True, help="Replace the running join or proxy, which ends first.")
@click.argument("proxy_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROXY-FLAG...]")
@click.pass_context
def join(context: click.Context, /, **flags: Any) -> None:
    """Join the cluster of the API server at URL, and serve its Services on this machine.

    `vipwire token create` prints the whole command. At the first start this machine gets credentials, and renews them
    while the command runs; later `vipwire join` needs no arguments. SIGTERM or Ctrl-C ends the command. The rules
    stay, so that traffic goes on; after --node-lease-seconds the machine's Node is not Ready. `vipwire leave` removes
    the machine from the cluster.
    """
    unset = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    _commands().join_cluster(flags, [name for name in flags if context.get_parameter_source(name) not in unset])


@click.command()
@FOLDER
@click.option("--force", is_flag=True, help="Leave even if no API server answers.")
@click.option("--keep-rules", is_flag=True, help="Keep the rules in the kernel.")
@click.option("--node", default="", help="Remove another machine, as an admin: one that is lost or not trusted.")
@_KUBECONFIG
@click.pass_context
def leave(context: click.Context, /, *, force: bool, keep_rules: bool, node: str, **where: Any) -> None:
    """Take this machine out of its cluster.

    Ends `vipwire join` here, deletes the machine's Node, removes its rules from the kernel, and deletes its
    credentials. The API servers refuse its certificates from then on.
    """
    if node:
        _commands().dismiss(_find_kubeconfig(context, where), node)
    else:
        _commands().leave_cluster(where["data_dir"], force=force, keep_rules=keep_rules)


@click.group()
def token() -> None:
    """Create, list and delete bootstrap tokens for machines."""


@token.command("create")
@FOLDER
@_KUBECONFIG
@click.option("--ttl", default="24h", show_default=True, help="Lifetime, such as 2h30m; 0 means no expiry.")
@click.option(
    "--server", is_flag=True, help="Allow the machine to fetch the authority's key, for a further API server."
)
@click.option("--description", default="", help="Description of the token.")
@click.pass_context
def create_token(context: click.Context, /, ttl: str, description: str, *, server: bool, **where: Any) -> None:
    """Make a token, and print the command that joins a machine."""
    _commands().create_token(_find_kubeconfig(context, where), ttl, description, server=server)


@token.command(name="list")
@FOLDER
@_KUBECONFIG
@click.pass_context
def list_them(context: click.Context, /, **where: Any) -> None:
    """List the tokens, without their secrets."""
    _commands().list_tokens(_find_kubeconfig(context, where))


@token.command()
@FOLDER
@_KUBECONFIG
@click.pass_context
def certificates(context: click.Context, /, **where: Any) -> None:
    """List the certificates of machines, and their state."""
    _commands().list_certificates(_find_kubeconfig(context, where))


@token.command()
@FOLDER
@_KUBECONFIG
@click.option("--keep-machines", is_flag=True, help="Keep the certificates of machines that joined with the token.")
@click.argument("name", callback=_hide_token)
@click.pass_context
def delete(context: click.Context, /, name: str, *, keep_machines: bool, **where: Any) -> None:
    """Delete the token NAME: its id, or the whole of it.

    The API servers refuse the certificates that machines got with the token: these machines have to join again. The
    same holds for an expired token: `vipwire token certificates` lists its machines.
    """
    _commands().delete_token(_find_kubeconfig(context, where), name, keep_machines=keep_machines)


def _find_kubeconfig(context: click.Context, where: dict[str, Any]) -> Path | None:
    """Return the kubeconfig of --kubeconfig, or of --data-dir if given; None for kubectl's."""
    kubeconfig: Path | None = where["kubeconfig"]
    if context.get_parameter_source("data_dir") is not ParameterSource.DEFAULT:
        return kubeconfig or where["data_dir"] / "admin.kubeconfig"
    return kubeconfig
