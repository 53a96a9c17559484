"""Writes changes-NETNS.jsonl for `vipwire view`: the last changes of Services that reached the kernel.

The proxy appends changes at most once a second, one JSON object a line. A sync of thousands of Services writes
`MOST_OF_A_SYNC` lines and one for the rest.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from vipwire.file_io.files import append_to, build_state_path, replace_file
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.service import EndpointSlice, Service
from vipwire.plan.plan import Forward, ServicePlan, Target
from vipwire.plan.planner import PlanChange
from vipwire.proxy_daemon.sync.engine import Line, Outcome
from vipwire.watched_objects.event import Event, Upserted

MOST_OF_A_SYNC: Final = 200
KEPT: Final = 2000
"""Lines that remain when the file is rewritten, at twice that many."""
_PAUSE_SECONDS: Final = 1.0


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One changed Service of one family in the kernel, or many (`services`, without a name).

    `what` is added, changed or removed; or an incident that `about` describes: repaired, failed, refused, accepted,
    ejected, readmitted. `waited` is the seconds from the causing event to the end of the sync, None
    without an event; `took` is the sync's duration. `joined` and `left` count endpoints.
    """

    when: float
    family: str
    what: str
    service: str = ""
    services: int = 1
    joined: int = 0
    left: int = 0
    waited: float | None = None
    took: float = 0.0
    about: str = ""


class _Seen(NamedTuple):
    """A changed Service. `to_change` compares its plans, only when vipwire writes the file."""

    name: ObjectName
    change: PlanChange
    known: tuple[float, str, float | None, float]

    def to_change(self) -> Change:
        """Return the change as written to the file."""
        when, family, waited, took = self.known
        old, new = _collect_targets(self.change.old), _collect_targets(self.change.new)
        what = "added" if self.change.old is None else "removed" if self.change.new is None else "changed"
        joined, left = len(new - old), len(old - new)
        return Change(when, family, what, str(self.name), 1, joined, left, waited, took)


class History:
    """Collects a proxy's changes and writes them below its state directory; nowhere if `path` is None."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._heard: dict[ObjectName | None, float] = {}
        self._unwritten: deque[Change | _Seen] = deque(maxlen=KEPT)
        self._lines = KEPT  # so that an old file is shortened soon
        self._came = asyncio.Event()

    def record_event(self, event: Event, now: float) -> None:
        if self._path is None:
            return
        changed = event.object if isinstance(event, Upserted) else None
        match changed:
            case Service():
                self._heard.setdefault(changed.name, now)
            case EndpointSlice():
                self._heard.setdefault(changed.service, now)
            case _:
                self._heard.setdefault(None, now)

    def record_sync(self, line: Line, outcome: Outcome, now: float) -> None:
        """Keep the changes of a sync. `now` is seconds since the epoch, at the sync's end."""
        if self._path is None or outcome.error is not None or not outcome.changes:
            return
        self._came.set()
        family, took = line.family.value, round(outcome.seconds, 6)
        if outcome.first:
            self._unwritten.append(Change(now, family, "added", services=len(outcome.changes), took=took))
            return
        for count, (name, change) in enumerate(outcome.changes.items()):
            if count == MOST_OF_A_SYNC:
                rest = len(outcome.changes) - count
                self._unwritten.append(Change(now, family, "changed", services=rest, took=took))
                break
            began = self._heard.get(name, self._heard.get(None))
            waited = None if began is None or name in outcome.unasked else round(max(0.0, now - began), 6)
            self._unwritten.append(_Seen(name, change, (now, family, waited, took)))

    def record_change(self, what: str, about: str, now: float, *, family: str = "", service: str = "") -> None:
        """Keep an incident of the kernel's rules or of a Service, which is no change of the Service."""
        if self._path is not None:
            self._came.set()
            self._unwritten.append(Change(now, family, what, service, int(bool(service)), about=about))

    def record_all_synced(self) -> None:
        """Record that the kernel holds all received events."""
        self._heard.clear()

    async def run(self) -> None:
        while self._path is not None:
            await self._came.wait()
            self._came.clear()
            self.write()
            await asyncio.sleep(_PAUSE_SECONDS)

    def write(self) -> None:
        if self._path is None or not self._unwritten:
            return
        new = [each.to_change() if isinstance(each, _Seen) else each for each in self._unwritten]
        self._unwritten.clear()
        try:
            if self._lines + len(new) > 2 * KEPT:
                self._shorten(self._path, KEPT - len(new))
            append_to(self._path, b"".join(msgspec.json.encode(each) + b"\n" for each in new))
            self._lines += len(new)
        except OSError as error:
            log.detail(2, "changes cannot be written", path=self._path, error=error)

    def _shorten(self, path: Path, most: int) -> None:
        last = path.read_bytes().splitlines(keepends=True)[-most:] if path.exists() and most > 0 else []
        replace_file(path, b"".join(last))
        self._lines = len(last)


def _collect_targets(plan: ServicePlan | None) -> set[Target]:
    targets: set[Target] = set()
    for frontend in plan.frontends if plan is not None else ():
        if isinstance(frontend.action, Forward):
            targets.update(frontend.action.pool)
    return targets


def changes_file(state_dir: str) -> Path:
    return build_state_path(state_dir, "changes", "jsonl")
