"""`vipwire dns`: cluster DNS in a process of its own."""

from pathlib import Path
from typing import Any

import click

from vipwire.errors import VipwireError
from vipwire_up.nodes.flags import port_option


@click.command()
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig for the API server; not needed in a Pod."
)
@click.option("--master", help="The API server's URL, in place of the kubeconfig's.")
@click.option(
    "--manifests",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Read Services and endpoints from this file or folder instead of an API server; repeatable.",
)
@click.option("--cluster-domain", default="cluster.local", show_default=True, help="The zone of the cluster's names.")
@click.option(
    "--bind-address",
    "addresses",
    multiple=True,
    default=("0.0.0.0",),  # noqa: S104  # a Pod's own
    show_default=True,
    help="Address at which to listen; repeatable (:: for IPv6).",
)
@port_option("--port", 53, "Port for UDP and TCP")
@click.option(
    "--upstream", multiple=True, help="Upstream server for other names: IP, IP:port, [IP]:port; repeatable."
)
@click.option(
    "--mixed-letters/--no-mixed-letters",
    "mixed",
    default=True,
    show_default=True,
    help="Randomise the case of letters in upstream queries, against forged answers.",
)
@click.option(
    "--resolv-conf",
    type=click.Path(path_type=Path),
    default=Path("/etc/resolv.conf"),
    show_default=True,
    help=(
        "File with upstream servers, used without --upstream; vipwire follows its changes. An empty name "
        "means no servers."
    ),
)
@click.option(
    "--ttl", type=click.IntRange(0, 3600), default=5, show_default=True, help="TTL of the cluster's records."
)
@click.option(
    "--cache",
    type=click.IntRange(0),
    default=10_000,
    show_default=True,
    help="Size of the cache of upstream answers.",
)
@click.option(
    "--client-rate",
    "rate",
    type=click.IntRange(0),
    default=20_000,
    show_default=True,
    help="Most queries a second from one address; vipwire drops further ones. 0 means no limit.",
)
@click.option(
    "--pods",
    type=click.Choice(["insecure", "disabled"]),
    default="insecure",
    show_default=True,
    help="Answer 10-0-0-1.namespace.pod.<domain> with that address, even if no Pod has it.",
)
@click.option(
    "--http-address", default="", help="IP:port of the pages /health, /ready and /metrics; none by default."
)
@click.option("--advertise-address", "advertised", multiple=True, help="An address of the name ns.dns.<domain>.")
@click.option("-v", "verbosity", type=click.IntRange(0, 10), default=0, help="Log more, up to 10.")
def dns(**flags: Any) -> None:
    """Answer DNS queries for the cluster's Services by Kubernetes' DNS specification 1.1.0, and forward all others.

    Replaces CoreDNS with its plugins kubernetes, forward, cache and loadbalance, but reads no Corefile.
    """
    from vipwire_up.dns.run import start_server  # noqa: PLC0415  # not for --help

    try:
        start_server(flags)
    except VipwireError as error:
        raise click.ClickException(str(error)) from None
