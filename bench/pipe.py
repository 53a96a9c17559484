"""The pipeline from events to the kernel, assembled so that each phase can be timed."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import node_plan

from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.table.names import Object, ObjectKey
from vipwire.modes.spec import Mode
from vipwire.plan.planner import Planner
from vipwire.reconcile.reconciler import Reconciler, Report
from vipwire.watched_objects.event import Event
from vipwire.watched_objects.store import Store


class TimedSocket(NetlinkSocket):
    """Sums the kernel's time: a transaction is complete when `send` returns."""

    def __init__(self, protocol: int) -> None:
        super().__init__(protocol)
        self.inside = 0.0

    def send(self, *parts: bytes) -> int:
        began = time.perf_counter()
        size = super().send(*parts)
        self.inside += time.perf_counter() - began
        return size


@dataclass(slots=True)
class Phases:
    """Seconds."""

    store: float = 0.0
    plan: float = 0.0
    render: float = 0.0
    sync: float = 0.0
    kernel: float = 0.0


def _as_it_is(backend: NftablesBackend) -> Mode:
    return backend


class Pipe:
    """Store, planner, reconciler and nftables backend of one family; `through` may wrap another mode's around it.

    `offload_after` is the backend's: so many packets of a connection meet the rules.
    """

    def __init__(self, through: Callable[[NftablesBackend], Mode] = _as_it_is, offload_after: int = 0) -> None:
        self.store = Store()
        self.planner = Planner(node_plan())
        self._socket = TimedSocket(NETLINK_NETFILTER)
        self.backend = through(NftablesBackend(Family.IPV4, sock=self._socket, offload_after=offload_after))
        self.reconciler: Reconciler[ObjectKey, Object] = Reconciler(self.backend)
        self.reconciler.desire_node(self.backend.render_node(self.planner.node))
        self.phases = Phases()

    def apply(self, events: Iterable[Event]) -> None:
        with self.timed("store"):
            for event in events:
                self.store.apply(event)

    def sync(self) -> Report[ObjectKey]:
        """Commit everything applied to the kernel."""
        with self.timed("plan"):
            changes = self.planner.update(self.store.take_touched(), self.store.view)
        with self.timed("render"):
            for name, change in changes.items():
                self.reconciler.desire(name, change.new)
        before = self._socket.inside
        with self.timed("sync"):
            report = self.reconciler.sync()
        self.phases.kernel += self._socket.inside - before
        if self.reconciler.isolated:
            raise SystemExit(f"the kernel refused: {next(iter(self.reconciler.isolated.values()))}")
        return report

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        setattr(self.phases, phase, getattr(self.phases, phase) + time.perf_counter() - began)


def memory(process: int | None = None) -> tuple[float, float]:
    """Return a process's current and peak memory in MB."""
    status = Path(f"/proc/{process or os.getpid()}/status").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in status.splitlines())
    now, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak
