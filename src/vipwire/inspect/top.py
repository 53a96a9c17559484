"""`vipwire top`: live rates of every Service port and endpoint, from conntrack events and the modes' counts.

Conntrack events give new and ended connections in every mode that translates in the kernel; its table gives the open
ones. The modes' counts add bytes and refusals. For userspace mode, and for sockets that ebpf programs redirect, only
the modes' counts exist.
"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.inspect.command import show
from vipwire.inspect.command.options import EVERYWHERE, NAMED_OUTPUT, NAMESPACE, LookCommand, scope_services
from vipwire.inspect.command.show import build_table, format_size
from vipwire.inspect.node.flows import FlowEvents, FlowNotification, Frontends, list_tracked_flows
from vipwire.inspect.node.followed import Followed
from vipwire.inspect.node.silence import format_silences
from vipwire.inspect.node.situation import open_kernel
from vipwire.inspect.status.counts import read_counts
from vipwire.inspect.status.document import Document
from vipwire.inspect.trace import find_endpoint
from vipwire.linux.netlink.conntrack import STATUS_SEEN_REPLY, Flow, FlowChange
from vipwire.model.net import format_endpoint
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal
from vipwire.terminal.columns import Column

_Row = tuple[str, str]
_COUNTED = {
    "countedPerSecond": Measure.CONNECTIONS,
    "packetsPerSecond": Measure.PACKETS,
    "bytesPerSecond": Measure.BYTES,
    "replyPacketsPerSecond": Measure.REPLY_PACKETS,
    "replyBytesPerSecond": Measure.REPLY_BYTES,
}


class Rates:
    """Counts the events of the last `window` seconds."""

    def __init__(self, frontends: Frontends, window: float, began: float) -> None:
        self._frontends, self._window, self._began = frontends, window, began
        self._heard: deque[tuple[float, _Row, str]] = deque()
        self._counted: deque[tuple[float, Counts]] = deque()
        self.lost = False

    def record_counts(self, now: float, counts: Counts) -> None:
        self._counted.append((now, counts))
        while len(self._counted) > 2 and self._counted[1][0] <= now - self._window:
            self._counted.popleft()

    def recognise(self, frontends: Frontends) -> None:
        self._frontends = frontends

    def count_notification(self, notification: FlowNotification) -> None:
        if notification.event is None:
            self.lost = True
            return
        row = self._find_row_of_flow(notification.event.flow)
        if row is None:
            return
        if notification.event.change is FlowChange.NEW:
            self._heard.append((notification.when, row, "new"))
        elif notification.event.change is FlowChange.DESTROYED:
            silent = not notification.event.flow.status & STATUS_SEEN_REPLY
            self._heard.append((notification.when, row, "unanswered" if silent else "ended"))

    def _find_row_of_flow(self, flow: Flow) -> _Row | None:
        name = self._frontends.name(flow)
        return None if name is None else (str(name), find_endpoint(flow) or "not translated")

    def build_document(self, now: float, flows: Iterable[Flow]) -> Document:
        """Describe the rates of the window before `now`, with the connections tracked at `now`."""
        while self._heard and self._heard[0][0] < now - self._window:
            self._heard.popleft()
        seconds = max(min(self._window, now - self._began), 0.001)
        counts = Counter((row, what) for _, row, what in self._heard)
        tracked = Counter(row for flow in flows if (row := self._find_row_of_flow(flow)) is not None)
        grown, refused = self._compute_growth()
        rows = (
            {row for row, _ in counts} | set(tracked) | {row for row, rates in grown.items() if any(rates.values())}
        )
        described = [
            {
                "service": row[0],
                "endpoint": row[1],
                "newPerSecond": round(counts[row, "new"] / seconds, 2),
                "endedPerSecond": round((counts[row, "ended"] + counts[row, "unanswered"]) / seconds, 2),
                "unansweredPerSecond": round(counts[row, "unanswered"] / seconds, 2),
                "tracked": tracked[row],
                **grown.get(row, dict.fromkeys(_COUNTED)),
            }
            for row in sorted(rows)
        ]
        return {
            "kind": "Top",
            "source": "connection tracking events",
            "seconds": round(seconds, 1),
            "lostEvents": self.lost,
            "rows": sorted(described, key=lambda each: (-_count_new_connections(each), -each["tracked"])),
            "refusedPerSecond": refused,
        }

    def _find_oldest_count(self, measure: Measure | Refusal, owner: Owner) -> int:
        """Return the oldest count of the window: a Service that came back may have kept the counts of its rules."""
        return next(counts[measure][owner] for _, counts in self._counted if owner in counts.get(measure, {}))

    def _compute_growth(self) -> tuple[dict[_Row, dict[str, float | None]], dict[str, float]]:
        """Return the growth of the modes' counts per second of the window; 0 for a counter that restarted."""
        if len(self._counted) < 2:
            return {}, {}
        (began, _), (ended, new) = self._counted[0], self._counted[-1]
        seconds = max(ended - began, 0.001)

        def rate(measure: Measure, endpoint: EndpointName) -> float | None:
            after = new.get(measure, {}).get(endpoint)
            return (
                None
                if after is None
                else round(max(after - self._find_oldest_count(measure, endpoint), 0) / seconds, 2)
            )

        endpoints = {each for measure in _COUNTED.values() for each in new.get(measure, {})}
        rows = {
            (str(each.port_name), format_endpoint(each.address, each.port)): {
                name: rate(measure, each) for name, measure in _COUNTED.items()
            }
            for each in endpoints
            if isinstance(each, EndpointName)
        }
        grown = Counter[str]()
        for (reason, owner), number in new.refusals().items():
            grown[reason.value] += max(number - self._find_oldest_count(reason, owner), 0)
        return rows, {reason: round(number / seconds, 2) for reason, number in grown.items() if number > 0}


def _count_new_connections(row: Document) -> float:
    """Return new connections per second: the larger of events and counts."""
    return max(float(row["newPerSecond"]), row.get("countedPerSecond") or 0.0)


def build_top_view(document: Document, most: int) -> RenderableType:
    """Lay out a line for each Service port, with its endpoints below."""
    rows: list[list[str | Text]] = []
    services: dict[str, list[Document]] = {}
    for row in document["rows"]:
        services.setdefault(row["service"], []).append(row)
    for service, endpoints in services.items():
        shown = [{**row, "newPerSecond": _count_new_connections(row)} for row in endpoints]
        rows.append([Text(service, style="bold"), *_format_numbers(_sum_rows(shown))])
        rows.extend([f"  {row['endpoint']}", *_format_numbers(row)] for row in shown)
    head = f"the last {document['seconds']:g} s, from {document['source']}"
    silent = format_silences(document.get("silent", []))
    parts: list[RenderableType] = [Text(line, style="bold yellow") for line in silent]
    parts.append(Text(head, style="dim"))
    if document["lostEvents"]:
        parts.append(Text("the kernel dropped events: rates are too low", style="yellow"))
    titles = [
        *(Column("service / endpoint"), Column("new/s"), Column("ended/s", rank=1), Column("unanswered/s")),
        *(Column("tracked"), Column("in/s", rank=2), Column("out/s", rank=2)),
    ]
    parts.append(build_table(titles, rows[:most]))
    if not rows:
        parts.append(Text("no connection to a VIP yet"))
    elif len(rows) > most:
        parts.append(Text(f"… {len(rows) - most} more lines", style="dim"))
    if document["refusedPerSecond"]:
        words = ", ".join(f"{rate:g} by {reason}" for reason, rate in document["refusedPerSecond"].items())
        parts.append(Text(f"packets refused a second: {words}", style="yellow"))
    return Group(*parts)


_FIELDS = ("newPerSecond", "endedPerSecond", "unansweredPerSecond", "tracked")
_SIZES = ("bytesPerSecond", "replyBytesPerSecond")


def _sum_rows(rows: Iterable[Document]) -> Document:
    rows = tuple(rows)
    sizes = {field: [row[field] for row in rows if row[field] is not None] for field in _SIZES}
    return {
        **{field: sum(row[field] for row in rows) for field in _FIELDS},
        **{field: sum(found) if found else None for field, found in sizes.items()},
    }


def _format_numbers(row: Document) -> list[str]:
    sizes = ("-" if row[field] is None else format_size(row[field]) for field in _SIZES)
    return [*(f"{row[field]:g}" for field in _FIELDS), *sizes]


@click.command(cls=LookCommand)
@click.option(
    "--interval",
    type=click.FloatRange(max=86400.0),
    default=2.0,
    show_default=True,
    help="Seconds between readings.",
)
@click.option("--window", default=10.0, show_default=True, help="Seconds over which to average rates.")
@click.option("--count", "-c", type=click.IntRange(1), help="Number of readings; the default is until Ctrl-C.")
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
    """Show live rates of every Service and endpoint: new, ended, unanswered and tracked connections.

    Connections come from the events of connection tracking; new ones also from the mode's counters, if these count
    more, as in ebpf mode. Bytes (in/s and out/s) and refusals come from the mode's counters; nftables mode counts
    bytes with --count-traffic. If the API server or the proxy does not answer, the first lines show the time of its
    last answer.
    """
    interval, wanted = max(interval, 0.1), scope_services("", namespace, everywhere=everywhere)
    with (
        FlowEvents() as events,
        open_kernel(config) as kernel,
        Followed(config) as objects,
        Live(console=show.build_console(), auto_refresh=False, screen=False) as live,
    ):
        rates = Rates(objects.frontends, max(window, interval), time.time())
        rates.record_counts(time.time(), read_counts(objects.situation, kernel.modes))
        with suppress(KeyboardInterrupt):
            for _ in itertools.count() if count is None else range(count):
                for heard in events.yield_until(time.monotonic() + interval):
                    rates.count_notification(heard)
                rates.recognise(objects.frontends)
                rates.record_counts(time.time(), read_counts(objects.situation, kernel.modes))
                document = rates.build_document(time.time(), list_tracked_flows()) | {"silent": objects.silent()}
                document["rows"] = [row for row in document["rows"] if row["service"].startswith(wanted)]
                if output in ("json", "yaml", "name"):
                    show.print_item(document, output)
                    continue
                rows = max(live.console.height - 4, 10) if live.console.is_terminal else 10_000
                view = build_top_view(show.escape_document(document), rows)
                if live.console.is_terminal:
                    live.update(view, refresh=True)
                else:
                    show.write_view(live.console, view)
