"""`vipwire connectivity test`."""

import asyncio
import sys
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.inspect.command import show
from vipwire.inspect.command.options import CompareCommand
from vipwire.inspect.node.source import api_access
from vipwire.linux.host.kernel import require_net_admin
from vipwire.terminal.output import plain_errors, print_note
from vipwire_lab.connectivity.run import Test
from vipwire_lab.echo_servers.server import serve_here

Document = dict[str, Any]


@click.group()
def connectivity() -> None:
    """Test Services of every kind on this Node, and show failures."""


@connectivity.command(cls=CompareCommand)
@click.option(
    "--wait", type=click.FloatRange(0, 3600), default=15.0, show_default=True, help="Seconds for all checks."
)
@click.option("--image", default="", help="Run echo Pods on each Node, from this image with vipwire and the lab.")
@click.option("--cluster-domain", default="cluster.local", show_default=True, help="The zone of the Services' names.")
@click.option("--output", "-o", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def test(config: Config, wait: float, image: str, cluster_domain: str, output: str) -> None:
    """Make Services of every kind, ask each address from this Node, and remove them.

    A namespace of the test gets Services of type ClusterIP, NodePort and LoadBalancer, with external IPs, policies
    Local, session affinity, without endpoints, and a headless one, over TCP, UDP and SCTP and both families. Echo
    processes at this Node's address are the endpoints, or with --image echo Pods on each Ready Node. For each failed
    check the test prints the findings of explain and of the endpoints. The exit status is 0 if all checks passed, 1
    if one failed, 2 if the test could not run. The test removes all objects at the end, also after Ctrl-C.
    """
    require_net_admin("vipwire connectivity test")
    document = Test(config, api_access(config), _print_progress, wait, cluster_domain, image).run_test()
    show.print_view(document, output, render_document)
    sys.exit(int(document["failed"] > 0))


@connectivity.command(hidden=True)
@click.option("--name", required=True)
@click.option("--node", required=True)
@click.option("--port", type=click.IntRange(1, 65535), required=True)
def echo(name: str, node: str, port: int) -> None:
    """Answer requests with this Pod's name and the client's address, until SIGTERM: the program of an echo Pod."""
    with plain_errors():
        asyncio.run(serve_here(name, node, port))


def _print_progress(text: str) -> None:
    if not sys.stderr.isatty():
        if not text.startswith("asking"):
            print_note(text)
        return
    sys.stderr.write(f"\r\x1b[K{text}" + ("" if text.startswith("asking") else "\n"))
    sys.stderr.flush()


_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def render_document(document: Document) -> RenderableType:
    """Lay out a line for each kind of question, then the failed ones in full."""
    rows: dict[tuple[str, str], list[Document]] = {}
    for each in document["checks"]:
        rows.setdefault((each["service"], each["what"]), []).append(each)
    lines = [[service, what, *_summarize(found)] for (service, what), found in rows.items()]
    parts: list[RenderableType] = [show.build_table(["service", "asked at", "passed", "result"], lines)]
    for each in document["checks"]:
        if each["state"] == "failed":
            head = f"{each['service']}: {each['what']} {each['target']}: {each['why']}"
            parts.append(Text(f"\n{head}", style="bold red"))
            parts.extend(Text(f"  {line}") for line in each["cause"])
    told = ", ".join(f"{document[state]} {state}" for state in ("passed", "failed", "skipped"))
    parts.append(Text(f"\nfrom node {document['node']}: {told}"))
    return Group(*parts)


def _summarize(found: list[Document]) -> list[str | Text]:
    passed = sum(each["state"] == "passed" for each in found)
    states = [each["state"] for each in found]
    worst = next(state for state in ("failed", "skipped", "passed") if state in states)
    why = next((each["why"] for each in found if each["state"] == worst == "skipped"), "")
    return [f"{passed}/{len(found)}", Text(f"{worst}: {why}" if why else worst, style=_STYLES[worst])]
