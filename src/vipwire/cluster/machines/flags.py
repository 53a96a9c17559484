"""The flags of a machine, which `vipwire up` and `vipwire join` share."""

from typing import Final

import click

NODE_NAME: Final = click.option(
    "--node-name", default="", help="The name of this machine's Node; its hostname if not given."
)
NODE_LEASE: Final = click.option(
    "--node-lease-seconds",
    type=click.IntRange(2, 3600),
    default=40,
    show_default=True,
    help="How long this machine may be silent before its Node is not Ready and its endpoints leave.",
)
PROXY: Final = click.option(
    "--proxy/--no-proxy", default=True, show_default=True, help="Serve Services on this machine's kernel."
)
PROXY_MODE: Final = click.option(
    "--proxy-mode", default="", help="How the proxy does it, as in vipwire proxy; nftables if not given."
)
