"""`vipwire join`, `vipwire leave`, `vipwire token create|list|delete`."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from vipwire.process.terminal import MISUSED, note, plain_errors, say, warn
from vipwire_up.bgp.flags import bgp_flags
from vipwire_up.machines.flags import (
    EXEC_PROBES,
    EXEC_PROBES_USER,
    NODE_LEASE,
    NODE_NAME,
    PROBES,
    PROXY,
    PROXY_MODE,
)

FOLDER: Final = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/vipwire"),
    show_default=True,
    envvar="VIPWIRE_DATA_DIR",
    help="Folder with this machine's credentials.",
)
_LONGEST_TOKEN: Final = 4096
_TOKEN: Final = "VIPWIRE_TOKEN"  # noqa: S105  # the name of a variable
_KUBECONFIG: Final = click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="An admin's; as kubectl finds it if not given."
)


def _hidden(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Take a token out of /proc/PID/cmdline, and out of the environment of what this process starts."""
    from vipwire_up.joining.hidden_argument import hide_argument  # noqa: PLC0415  # not for --help

    os.environ.pop(_TOKEN, None)
    if value and not hide_argument(value):
        warn("other users of this machine can read the token in the command line: use --token-file")
    return value


@click.command()
@FOLDER
@click.argument("url", default="")
@click.option(
    "--token",
    default="",
    envvar=_TOKEN,
    callback=_hidden,
    help="A bootstrap token: vipwire token create. Other users see a command line until its program has begun.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token, such as /dev/stdin.")
@click.option("--ca-hash", default="", help="The hash of the cluster's authority, sha256:…")
@NODE_NAME
@click.option("--server", is_flag=True, help="Prepare for an API server here: fetch the authority's key, and end.")
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
    help="Port of 127.0.0.1 that leads to the API; 0 is any.",
)
@click.option("--announce-interface", default="", help="Announce LoadBalancer addresses here: ARP and NDP.")
@bgp_flags
@click.option("--takeover", is_flag=True, help="Take the place of the join or proxy that runs here: it ends first.")
@click.argument("proxy_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROXY-FLAG...]")
def join(**flags: Any) -> None:
    """Join the cluster of the API server at URL, and serve its Services on this machine.

    `vipwire token create` prints the whole command. The first time, this machine gets credentials of its own, which
    are renewed while it runs; from then on `vipwire join` alone goes on with them. It runs until SIGTERM or Ctrl-C.
    The rules stay, so that traffic goes on; after --node-lease-seconds its Node is not Ready. `vipwire leave` takes
    the machine out.
    """
    from vipwire.config.sections import Logging  # noqa: PLC0415
    from vipwire.linux.host.rights import require_net_admin  # noqa: PLC0415
    from vipwire.process import log  # noqa: PLC0415  # not for --help
    from vipwire_up.joining.membership import Folder  # noqa: PLC0415
    from vipwire_up.joining.run import run  # noqa: PLC0415

    log.configure(Logging())
    if flags["proxy"] and not flags["server"]:
        with plain_errors():
            require_net_admin("vipwire join")  # before the cluster knows of a machine that cannot serve
    with plain_errors(MISUSED):
        member = _member(flags)
        if flags["server"]:
            return
        Folder(flags["data_dir"]).pin()  # what an earlier version wrote may hold more than one authority
        setting = _setting(flags, member.node)

    def ready(url: str) -> None:
        click.echo(f"joined as Node {member.node}: the API is at {url}, and leads to {', '.join(member.servers)}")

    with plain_errors(), _claimed(setting, takeover=flags["takeover"]):
        asyncio.run(run(setting, member, ready))


def _member(flags: dict[str, Any]) -> Any:
    """Find who this machine is; join the cluster first if it is nobody yet."""
    from vipwire.errors import ConfigError  # noqa: PLC0415  # not for --help
    from vipwire_up.joining import join as joining  # noqa: PLC0415
    from vipwire_up.joining.membership import Folder, check_node, read_server  # noqa: PLC0415

    folder = Folder(flags["data_dir"])
    found, url = folder.member(), read_server(flags["url"]) if flags["url"] else ""
    if found is not None and not flags["server"]:
        if flags["node_name"] not in ("", found.node):
            raise ConfigError(
                f"--node-name {flags['node_name']}: this machine is Node {found.node}; vipwire leave first"
            )
        return found
    token, pinned = _token(flags), flags["ca_hash"]
    for name, value in (("URL", url), ("--token or --token-file", token), ("--ca-hash", pinned)):
        if not value:
            raise ConfigError(f"{name} is missing: `vipwire token create` on the API server prints the command")
    if not flags["server"]:
        node = check_node(flags["node_name"] or socket.gethostname().lower())
        with plain_errors():
            return asyncio.run(joining.join(folder, url, token, pinned, node))
    with plain_errors():
        asyncio.run(joining.become_server(folder, url, token, pinned))
    say(f"{folder.path}: has the cluster's authority; start the API server: vipwire up --data-dir {folder.path} …")
    return None


def _token(flags: dict[str, Any]) -> str:
    """Read the token: that of --token, or of --token-file."""
    from vipwire.errors import ConfigError  # noqa: PLC0415  # not for --help

    path: Path | None = flags["token_file"]
    if path is None:
        return str(flags["token"])
    if flags["token"]:
        raise ConfigError("--token and --token-file exclude each other")
    try:
        with path.open(encoding="ascii") as file:
            about = os.fstat(file.fileno())
            if stat.S_ISREG(about.st_mode) and about.st_mode & 0o077:
                warn(f"{path}: other users can read or change this token: chmod 600 {path}")
            return file.read(_LONGEST_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {error}") from error


def _setting(flags: dict[str, Any], node: str) -> Any:
    from vipwire_up.joining.membership import Folder  # noqa: PLC0415
    from vipwire_up.joining.run import Setting  # noqa: PLC0415
    from vipwire_up.up_settings import read_bgp, read_prober, read_proxy  # noqa: PLC0415  # not for --help

    folder: Path = flags["data_dir"]
    proxy = read_proxy(flags, node, Folder(folder).node.kubeconfig)
    return Setting(
        folder,
        proxy,
        flags["node_lease_seconds"],
        flags["relay_port"],
        flags["announce_interface"],
        read_bgp(flags),
        read_prober(flags, node),
        probes=flags["probes"] == "machine",
    )


@contextlib.contextmanager
def _claimed(setting: Any, *, takeover: bool) -> Iterator[None]:
    from vipwire_up.claim import claim_folder  # noqa: PLC0415  # not for --help

    with claim_folder(setting.folder, setting.proxy, "vipwire join", takeover=takeover):
        yield


@click.command()
@FOLDER
@click.option("--force", is_flag=True, help="Leave also if no API server answers.")
@click.option("--keep-rules", is_flag=True, help="Leave the rules in the kernel as they are.")
@click.option("--node", default="", help="Take another machine out, as an admin: one that is lost or not trusted.")
@_KUBECONFIG
@click.pass_context
def leave(context: click.Context, /, *, force: bool, keep_rules: bool, node: str, **where: Any) -> None:
    """Take this machine out of its cluster.

    Ends `vipwire join` here, deletes the machine's Node, removes its rules from the kernel, and deletes its
    credentials. The API servers refuse its certificates from then on.
    """
    if node:
        from vipwire_up.joining import manage  # noqa: PLC0415  # not for --help

        with plain_errors():
            asyncio.run(manage.dismiss(_access(context, where), node))
            say(f"Node {node} is out: its certificates are refused")
        return
    _leave(where["data_dir"], force=force, keep_rules=keep_rules)


def _leave(data_dir: Path, *, force: bool, keep_rules: bool) -> None:
    from vipwire.errors import VipwireError  # noqa: PLC0415  # not for --help
    from vipwire_up.claim import end_holder  # noqa: PLC0415
    from vipwire_up.joining.manage import say_goodbye  # noqa: PLC0415
    from vipwire_up.joining.membership import Folder  # noqa: PLC0415

    with plain_errors():
        folder = Folder(data_dir)
        member = folder.member()
        if member is None:
            raise VipwireError(f"{data_dir}: this machine has joined no cluster")
        end_holder(data_dir)
        try:
            asyncio.run(say_goodbye(folder, member))
        except VipwireError as error:
            if not force:
                raise
            note(f"warning: {error}")
        if not keep_rules:
            _remove_rules()
        folder.forget()
        say(f"Node {member.node} has left")


def _remove_rules() -> None:
    from vipwire.config.flags.parse import build_config  # noqa: PLC0415  # not for --help
    from vipwire.proxy.run import run_cleanup  # noqa: PLC0415

    if os.geteuid() == 0:
        run_cleanup(build_config({"cleanup": True}).config)


@click.group()
def token() -> None:
    """Make, list and delete the tokens that machines join with."""


@token.command()
@FOLDER
@_KUBECONFIG
@click.option("--ttl", default="24h", show_default=True, help="How long it lasts, such as 2h30m; 0 is for ever.")
@click.option("--server", is_flag=True, help="It may fetch the authority's key, to make a further API server.")
@click.option("--description", default="", help="What it is for.")
@click.pass_context
def create(context: click.Context, /, ttl: str, description: str, *, server: bool, **where: Any) -> None:
    """Make a token, and print the command with which a machine joins."""
    from vipwire.config.duration import parse_duration  # noqa: PLC0415
    from vipwire.errors import ConfigError  # noqa: PLC0415  # not for --help
    from vipwire_up.joining import manage  # noqa: PLC0415

    with plain_errors(MISUSED):
        try:
            seconds = parse_duration(ttl)
        except ValueError as error:
            raise ConfigError(f"--ttl: {error}") from error
        if seconds < 0:
            raise ConfigError(f"--ttl {ttl}: is over already")
    with plain_errors():
        made = manage.create_token(_access(context, where), seconds, servers=server, description=description)
        say(asyncio.run(made))


@token.command(name="list")
@FOLDER
@_KUBECONFIG
@click.pass_context
def list_them(context: click.Context, /, **where: Any) -> None:
    """List the tokens, without their secrets."""
    from vipwire_up.joining import manage  # noqa: PLC0415  # not for --help

    with plain_errors():
        for line in asyncio.run(manage.list_tokens(_access(context, where))):
            say(line)


@token.command()
@FOLDER
@_KUBECONFIG
@click.argument("name", callback=_hidden)
@click.pass_context
def delete(context: click.Context, /, name: str, **where: Any) -> None:
    """Delete the token NAME: its id, or the whole of it. Machines that have joined with it stay."""
    from vipwire_up.joining import manage  # noqa: PLC0415  # not for --help

    with plain_errors():
        asyncio.run(manage.delete_token(_access(context, where), name))


def _access(context: click.Context, where: dict[str, Any]) -> Any:
    """Find the API server: that of --kubeconfig or --data-dir, or the one that kubectl would ask."""
    from vipwire_up import expose  # noqa: PLC0415  # not for --help

    kubeconfig = where["kubeconfig"]
    if context.get_parameter_source("data_dir") is not click.core.ParameterSource.DEFAULT:
        kubeconfig = kubeconfig or where["data_dir"] / "admin.kubeconfig"
    return expose.reached(kubeconfig, note)
