"""`vipwire trace`: each new connection to a frontend as it happens, with its endpoint."""

import math
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.inspect.command import show
from vipwire.inspect.command.options import EVERYWHERE, NAMED_OUTPUT, NAMESPACE, LookCommand, scope_services
from vipwire.inspect.command.show import build_table
from vipwire.inspect.explain.packet import check_destination, read_destination
from vipwire.inspect.node.flows import FlowEvents, FlowNotification, Frontends
from vipwire.inspect.node.followed import Followed
from vipwire.inspect.node.silence import format_silences
from vipwire.inspect.status.document import Document, format_share
from vipwire.linux.netlink.conntrack import STATUS_SEEN_REPLY, Flow, FlowChange
from vipwire.model.net import Address, format_address, format_endpoint
from vipwire.terminal.columns import Prose
from vipwire.terminal.output import print_note, print_warning

_STEP_SECONDS: Final = 1.0


class Tracer:
    """Turns conntrack notifications into documents, and counts connections per endpoint."""

    def __init__(
        self, frontends: Frontends, only: tuple[Address, int, int] | None = None, namespace: str = ""
    ) -> None:
        self._frontends, self._only, self._namespace = frontends, only, namespace
        self._began: dict[int, float] = {}
        self.endpoints: Counter[tuple[str, str]] = Counter()
        self.lost = False

    def recognise(self, frontends: Frontends) -> None:
        self._frontends = frontends

    def describe_notification(self, notification: FlowNotification) -> Document | None:
        """Count an event; describe it if its connection goes to a frontend that the user asked for."""
        if notification.event is None:
            self.lost = True
            return None
        flow = notification.event.flow
        name = self._frontends.name(flow)
        if name is None or not str(name).startswith(self._namespace):
            return None
        if self._only and self._only != (flow.destination, flow.destination_port, flow.protocol):
            return None
        endpoint = find_endpoint(flow)
        document: Document = {
            "time": datetime.fromtimestamp(notification.when, UTC).isoformat(timespec="milliseconds"),
            "event": notification.event.change.value,
            "service": str(name),
            "protocol": name.protocol.label,
            "client": format_endpoint(flow.source, flow.source_port),
            "vip": format_endpoint(flow.destination, flow.destination_port),
            "endpoint": endpoint,
            "sees": format_address(flow.reply_destination),
        }
        if notification.event.change is FlowChange.NEW:
            self._began[flow.identifier] = notification.when
            self.endpoints[str(name), endpoint or "not translated"] += 1
        else:
            document["answered"] = bool(flow.status & STATUS_SEEN_REPLY)
            began = self._began.pop(flow.identifier, None)
            document["seconds"] = None if began is None else round(notification.when - began, 3)
        return document

    def build_summary(self) -> Document:
        totals: Counter[str] = Counter()
        for (service, _), count in self.endpoints.items():
            totals[service] += count
        return {
            "kind": "TraceSummary",
            "lostEvents": self.lost,
            "endpoints": [
                {"service": service, "endpoint": endpoint, "connections": count, "share": count / totals[service]}
                for (service, endpoint), count in sorted(self.endpoints.items())
            ],
        }


def find_endpoint(flow: Flow) -> str | None:
    """Return a connection's endpoint; None if the kernel did not translate the destination."""
    if (flow.reply_source, flow.reply_source_port) == (flow.destination, flow.destination_port):
        return None
    return format_endpoint(flow.reply_source, flow.reply_source_port)


BEHIND_THE_TIME: Final = len("00:00:00.000 ended ")
"""Columns before an event's text; further lines begin there on a narrow terminal."""


def build_event_view(document: Document) -> Text:
    ended = document["event"] == FlowChange.DESTROYED.value
    said = f" after {document['seconds']} s" if ended and document.get("seconds") is not None else ""
    silent = " never answered" if ended and not document["answered"] else ""
    return Text.assemble(
        (document["time"][11:23] + " ", "dim"),
        ("ended " if ended else "new   ", "dim" if ended else "green"),
        f"{document['service']}  {document['client']} → {document['vip']}/{document['protocol']} → ",
        (document["endpoint"] or "not translated", "cyan" if document["endpoint"] else "bold red"),
        f" (sees {document['sees']})",
        said,
        (silent, "yellow"),
    )


def build_summary_view(summary: Document) -> RenderableType:
    rows = [
        [each["service"], each["endpoint"], str(each["connections"]), format_share(Fraction(each["share"]))]
        for each in summary["endpoints"]
    ]
    parts: list[RenderableType] = [Text()]
    if rows:
        parts.append(build_table(["service", "endpoint", "new connections", "share"], rows))
    else:
        parts.append(Text("No new connection to a VIP was seen."))
    if summary["lostEvents"]:
        parts.append(Text("The kernel dropped events: the list is incomplete.", style="yellow"))
    return Group(*parts)


@click.command(cls=LookCommand)
@click.argument("destination", default="", metavar="[DST:PORT[/PROTO]]")
@click.option("--seconds", "-s", type=click.FloatRange(0, 1e9), help="Seconds to run; the default is until Ctrl-C.")
@NAMESPACE
@EVERYWHERE
@NAMED_OUTPUT
def trace(
    config: Config, destination: str, seconds: float | None, namespace: str, output: str, *, everywhere: bool
) -> None:
    """Print each new connection to a VIP: its endpoint, and the client address that the endpoint sees.

    DST is an address or a Service, as for `explain`; the default is all VIPs. The source is the kernel's events of
    connection tracking. With -o json or yaml each event is one document (JSON: one line); with -o name each new
    connection is a line with its endpoint.
    """
    wanted = scope_services("", namespace, everywhere=everywhere)
    if destination:
        check_destination(destination)
    with FlowEvents() as events, Followed(config) as objects:
        only = read_destination(objects.situation, destination) if destination else None
        tracer, said = Tracer(objects.frontends, only, wanted), list[str]()
        if output in ("table", "wide"):
            click.echo("Following connections; press Ctrl-C to stop …", err=True)
        with suppress(KeyboardInterrupt):
            ending = None if seconds is None else time.monotonic() + seconds
            while ending is None or time.monotonic() < ending:
                tracer.recognise(objects.frontends)
                said = _print_new_silences(format_silences(objects.silent()), said)
                for heard in events.yield_until(min(time.monotonic() + _STEP_SECONDS, ending or math.inf)):
                    document = tracer.describe_notification(heard)
                    if document is not None:
                        _print_event(document, output)
    _print_event(tracer.build_summary(), output)


def _print_new_silences(lines: list[str], said: list[str]) -> list[str]:
    """Print the lines that were not `said` yet on stderr, and once that all parts answer again; return the lines."""
    for line in lines:
        if line not in said:
            print_warning(line)
    if said and not lines:
        print_note("all parts answer again")
    return lines


def _print_event(document: Document, output: str) -> None:
    if output not in ("table", "wide"):
        show.print_item(document, output)
        return
    shown, screen = show.escape_document(document), show.build_console()
    if document.get("kind") == "TraceSummary":
        show.write_view(screen, build_summary_view(shown))
        return
    line = build_event_view(shown)
    if screen.is_terminal:
        show.write_view(screen, Prose(line, hanging=BEHIND_THE_TIME))
    else:
        show.write_view(screen, line, soft_wrap=True)
