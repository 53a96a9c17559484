"""The flags that `vipwire up` and `vipwire join` share: of a machine, and of BGP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vipwire.terminal.command_flags import with_flags

F = TypeVar("F", bound=Callable[..., Any] | click.Command)


def data_dir_option(content: str) -> Callable[[F], F]:
    """Return the flag of a command's folder."""
    path, text = click.Path(path_type=Path), f"Folder with {content}."
    default, variable = Path("/var/lib/vipwire"), "VIPWIRE_DATA_DIR"
    return click.option("--data-dir", type=path, default=default, show_default=True, envvar=variable, help=text)


def port_option(name: str, default: int, text: str) -> Callable[[F], F]:
    allowed, text = click.IntRange(0, 65535), f"{text}; 0 means any free port."
    return click.option(name, type=allowed, default=default, show_default=True, help=text)


NODE_NAME: Final = click.option("--node-name", default="", help="Name of this machine's Node; default: the hostname.")
NODE_IP: Final = click.option(
    "--node-ip",
    default="",
    help="Address of this machine in its Node, or one of each family, separated by a comma; default: that of the "
    "default route.",
)
NODE_LEASE: Final = click.option(
    "--node-lease-seconds",
    type=click.IntRange(2, 3600),
    default=40,
    show_default=True,
    help="Time without a heartbeat after which the Node is not Ready and its endpoints are removed.",
)
PROBES: Final = click.option(
    "--probes",
    type=click.Choice(("machine", "elected")),
    default="machine",
    show_default=True,
    help="Prober of the Pods on this machine: the machine itself, or the elected API server.",
)
EXEC_PROBES: Final = click.option(
    "--exec-probes", is_flag=True, help="Run commands of readiness probes, which only admins may set."
)
EXEC_PROBES_USER: Final = click.option(
    "--exec-probes-user", default="", help="User of these commands; default: the user of this process."
)
PROXY: Final = click.option(
    "--proxy/--no-proxy", default=True, show_default=True, help="Run the proxy on this machine."
)
PROXY_MODE: Final = click.option(
    "--proxy-mode", default="", help="Mode of the proxy, as in vipwire proxy; default nftables."
)


_FLAGS: Final = (
    click.option(
        "--bgp-as", type=click.IntRange(0, 2**32 - 1), default=0, help="Local AS number: announce addresses by BGP."
    ),
    click.option("--bgp-peer", "bgp_peers", multiple=True, help="BGP router, ADDRESS@AS; repeatable."),
    click.option(
        "--bgp-announce",
        "bgp_kinds",
        multiple=True,
        type=click.Choice(["ClusterIP", "ExternalIP", "LoadBalancer"]),
        help="Kinds of addresses to announce; repeatable; default LoadBalancer.",
    ),
    click.option("--bgp-router-id", default="", help="BGP identifier; default: the machine's first IPv4 address."),
)


bgp_flags: Final = with_flags(*_FLAGS)
"""Adds these flags to a command."""
