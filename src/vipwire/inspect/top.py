"""`vipwire top`: live rates of every Service port and endpoint. Pure: events and tables of flows in, rates out.

What a mode counts itself is not read here: rates come from the events of connection tracking, which every mode that
translates in the kernel has, and the connections that are open from its table. A mode that ends connections itself
(userspace) is not seen by it.
"""

from collections import Counter, deque
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.document import Document
from vipwire.inspect.flows import Frontends, Heard
from vipwire.inspect.show import table
from vipwire.inspect.trace import endpoint_of
from vipwire.netlink.conntrack import STATUS_SEEN_REPLY, Change, Flow

_Row = tuple[str, str]


class Rates:
    """Counts the events of the last `window` seconds."""

    def __init__(self, frontends: Frontends, window: float, began: float) -> None:
        self._frontends, self._window, self._began = frontends, window, began
        self._heard: deque[tuple[float, _Row, str]] = deque()
        self.lost = False

    def take(self, heard: Heard) -> None:
        """Count one event."""
        if heard.event is None:
            self.lost = True
            return
        row = self._row(heard.event.flow)
        if row is None:
            return
        if heard.event.change is Change.NEW:
            self._heard.append((heard.when, row, "new"))
        elif heard.event.change is Change.DESTROYED:
            silent = not heard.event.flow.status & STATUS_SEEN_REPLY
            self._heard.append((heard.when, row, "unanswered" if silent else "ended"))

    def _row(self, flow: Flow) -> _Row | None:
        name = self._frontends.name(flow)
        return None if name is None else (str(name), endpoint_of(flow) or "not translated")

    def document(self, now: float, flows: Iterable[Flow]) -> Document:
        """Describe the rates of the window before `now`, with the connections that are tracked now."""
        while self._heard and self._heard[0][0] < now - self._window:
            self._heard.popleft()
        seconds = max(min(self._window, now - self._began), 0.001)
        counts = Counter((row, what) for _, row, what in self._heard)
        tracked = Counter(row for flow in flows if (row := self._row(flow)) is not None)
        rows = {row for row, _ in counts} | set(tracked)
        ordered = sorted(rows, key=lambda row: (-counts[row, "new"], -tracked[row], row))
        return {
            "kind": "Top",
            "source": "connection tracking events",
            "seconds": round(seconds, 1),
            "lostEvents": self.lost,
            "rows": [
                {
                    "service": row[0],
                    "endpoint": row[1],
                    "newPerSecond": round(counts[row, "new"] / seconds, 2),
                    "endedPerSecond": round((counts[row, "ended"] + counts[row, "unanswered"]) / seconds, 2),
                    "unansweredPerSecond": round(counts[row, "unanswered"] / seconds, 2),
                    "tracked": tracked[row],
                }
                for row in ordered
            ],
        }


def top_view(document: Document, most: int) -> RenderableType:
    """Lay out rates: a line for each Service port, and below it its endpoints."""
    rows: list[list[str | Text]] = []
    services: dict[str, list[Document]] = {}
    for row in document["rows"]:
        services.setdefault(row["service"], []).append(row)
    for service, endpoints in services.items():
        rows.append([Text(service, style="bold"), *_numbers(_sum(endpoints))])
        rows.extend([f"  {row['endpoint']}", *_numbers(row)] for row in endpoints)
    head = f"the last {document['seconds']:g} s, from {document['source']}"
    parts: list[RenderableType] = [Text(head, style="dim")]
    if document["lostEvents"]:
        parts.append(Text("more happened than could be read: rates are too low", style="yellow"))
    parts.append(table(["service / endpoint", "new/s", "ended/s", "unanswered/s", "tracked"], rows[:most]))
    if not rows:
        parts.append(Text("no connection to a VIP yet"))
    elif len(rows) > most:
        parts.append(Text(f"… {len(rows) - most} more lines", style="dim"))
    return Group(*parts)


_FIELDS = ("newPerSecond", "endedPerSecond", "unansweredPerSecond", "tracked")


def _sum(rows: Iterable[Document]) -> Document:
    rows = tuple(rows)
    return {field: sum(row[field] for row in rows) for field in _FIELDS}


def _numbers(row: Document) -> list[str]:
    return [f"{row[field]:g}" for field in _FIELDS]
