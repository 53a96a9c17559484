"""The commands that follow connections as they come, until interrupted: each document is printed when it is there."""

import itertools
import time
from collections.abc import Callable
from contextlib import suppress

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.inspect.command import show
from vipwire.inspect.command.options import EVERYWHERE, NAMED_OUTPUT, NAMESPACE, LookCommand, scoped
from vipwire.inspect.explain.packet import read_destination
from vipwire.inspect.live.flows import FlowEvents, Frontends, tracked
from vipwire.inspect.live.top import Rates, top_view
from vipwire.inspect.live.trace import BEHIND_THE_TIME, Tracer, event_view, summary_view
from vipwire.inspect.node.situation import opened, planned
from vipwire.inspect.node.source import read_objects
from vipwire.inspect.status.counts import read_counts
from vipwire.inspect.status.document import Document
from vipwire.model.text import visible_document
from vipwire.process.columns import Prose


@click.command(cls=LookCommand)
@click.argument("destination", default="", metavar="[DST:PORT[/PROTO]]")
@click.option("--seconds", "-s", type=click.FloatRange(0, 1e9), help="For how long; until interrupted otherwise.")
@NAMESPACE
@EVERYWHERE
@NAMED_OUTPUT
def trace(
    config: Config, destination: str, seconds: float | None, namespace: str, output: str, *, everywhere: bool
) -> None:
    """Follow real connections to VIPs as they come: which endpoint each new one got, and whom that sees.

    DST is an address or a Service, as for `explain`; without it all VIPs are followed. Read from the events of
    connection tracking. With -o json or yaml each event is one document (JSON: one line); with -o name each new
    connection is a line with its endpoint.
    """
    wanted = scoped("", namespace, everywhere=everywhere)
    with FlowEvents() as events:
        situation = planned(config, read_objects(config))
        only = read_destination(situation, destination) if destination else None
        tracer = Tracer(Frontends.of(situation), only, wanted)
        if output in ("table", "wide"):
            click.echo("Following connections, interrupt to end …", err=True)
        with suppress(KeyboardInterrupt):
            for heard in events.until(None if seconds is None else time.monotonic() + seconds):
                document = tracer.take(heard)
                if document is not None:
                    _print_event(document, output, event_view)
    _print_event(tracer.summary(), output, summary_view)


def _print_event(document: Document, output: str, view: Callable[[Document], RenderableType]) -> None:
    if output == "json":
        click.echo(show.json_text(document))
    elif output == "yaml":
        click.echo("---")
        show.print_document(document, output)
    elif output == "name":
        show.print_view(document, output, view)
    else:
        shown, screen = view(visible_document(document)), show.console()
        if isinstance(shown, Text) and screen.is_terminal:
            shown = Prose(shown, hanging=BEHIND_THE_TIME)
        show.write(screen, shown, soft_wrap=isinstance(shown, Text))


@click.command(cls=LookCommand)
@click.option(
    "--interval", type=click.FloatRange(max=86400.0), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--window", default=10.0, show_default=True, help="Over how many seconds rates are taken.")
@click.option("--count", "-c", type=click.IntRange(1), help="How many looks; until interrupted otherwise.")
@NAMESPACE
@EVERYWHERE
@NAMED_OUTPUT
def top(
    config: Config,
    interval: float,
    window: float,
    count: int | None,
    namespace: str,
    output: str,
    *,
    everywhere: bool,
) -> None:
    """Show live rates of every Service and endpoint: new, ended and unanswered connections, and those tracked now.

    Connections come from the events of connection tracking; new ones also from what the mode has counted, if that is
    more, as in ebpf mode. Bytes (in/s and out/s) and what is refused are what the mode has counted, as far as it
    does: bytes, in nftables mode, with --count-traffic.
    """
    interval, wanted = max(interval, 0.1), scoped("", namespace, everywhere=everywhere)
    with (
        FlowEvents() as events,
        opened(config) as kernel,
        Live(console=show.console(), auto_refresh=False, screen=False) as live,
    ):
        situation = planned(config, read_objects(config))
        rates = Rates(Frontends.of(situation), max(window, interval), time.time())
        rates.count(time.time(), read_counts(situation, kernel.modes))
        with suppress(KeyboardInterrupt):
            for _ in itertools.count() if count is None else range(count):
                for heard in events.until(time.monotonic() + interval):
                    rates.take(heard)
                rates.count(time.time(), read_counts(situation, kernel.modes))
                document = rates.document(time.time(), tracked())
                document["rows"] = [row for row in document["rows"] if row["service"].startswith(wanted)]
                if output in ("json", "yaml", "name"):
                    _print_event(document, output, lambda _: Text())
                    continue
                rows = max(live.console.height - 4, 10) if live.console.is_terminal else 10_000
                view = top_view(visible_document(document), rows)
                if live.console.is_terminal:
                    live.update(view, refresh=True)
                else:
                    show.write(live.console, view)
