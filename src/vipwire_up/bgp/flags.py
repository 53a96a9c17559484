"""The flags of BGP, which `vipwire up` and `vipwire join` share."""

from typing import Final

import click

from vipwire.process.command_flags import with_flags

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
"""Gives a command these flags."""
