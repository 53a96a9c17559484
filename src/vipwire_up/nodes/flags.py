"""The flags that `vipwire up` and `vipwire join` share: of a machine, and of BGP."""

from typing import Final

import click

from vipwire.terminal.command_flags import with_flags

NODE_NAME: Final = click.option(
    "--node-name", default="", help="The name of this machine's Node; its hostname if not given."
)
NODE_IP: Final = click.option(
    "--node-ip",
    default="",
    help="This machine's address in its Node, or one of each family with a comma; that of the default route"
    " if not given.",
)
NODE_LEASE: Final = click.option(
    "--node-lease-seconds",
    type=click.IntRange(2, 3600),
    default=40,
    show_default=True,
    help="How long this machine may be silent before its Node is not Ready and its endpoints leave.",
)
PROBES: Final = click.option(
    "--probes",
    type=click.Choice(("machine", "elected")),
    default="machine",
    show_default=True,
    help="Who asks the Pods on this machine whether they are ready: it, or the elected API server.",
)
EXEC_PROBES: Final = click.option(
    "--exec-probes", is_flag=True, help="Run the commands of readiness probes; only admins may set them."
)
EXEC_PROBES_USER: Final = click.option(
    "--exec-probes-user", default="", help="The user they run as; that of this process if not given."
)
PROXY: Final = click.option(
    "--proxy/--no-proxy", default=True, show_default=True, help="Serve Services on this machine's kernel."
)
PROXY_MODE: Final = click.option(
    "--proxy-mode", default="", help="How the proxy does it, as in vipwire proxy; nftables if not given."
)


_FLAGS: Final = (
    click.option("--bgp-as", type=click.IntRange(0, 2**32 - 1), default=0, help="Announce by BGP, as this AS."),
    click.option("--bgp-peer", "bgp_peers", multiple=True, help="A router, ADDRESS@AS; may be given again."),
    click.option(
        "--bgp-announce",
        "bgp_kinds",
        multiple=True,
        type=click.Choice(["ClusterIP", "ExternalIP", "LoadBalancer"]),
        help="Which addresses; may be given again. LoadBalancer if not given.",
    ),
    click.option(
        "--bgp-router-id", default="", help="Our BGP identifier; the machine's first IPv4 address if not given."
    ),
)


bgp_flags: Final = with_flags(*_FLAGS)
"""Adds these flags to a command."""
