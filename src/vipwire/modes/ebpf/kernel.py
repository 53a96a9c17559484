"""ebpf mode's backend: nftables mode's rules, and beside them what the programs know of the same plan. One family.

A difference is committed as one: first the rules, which hold every Service; then the maps, in an order that is sound
wherever it stops. What cannot be written into a map is left to the rules, which costs a connection a microsecond; it
is told, and tried again soon.
"""

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vipwire.config.sections import COUNTER_FIELDS, CounterLevel
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.modes.ebpf.cgroup import PodsCgroup
from vipwire.modes.ebpf.connected import ConnectedSockets, Serving
from vipwire.modes.ebpf.counts import CountedConnections, add_connections
from vipwire.modes.ebpf.layout import CLIENTS, PROGRAMS, OurKey, Ours, Settings, describe, is_ours, split
from vipwire.modes.ebpf.pinned import NodePins, remove_gone
from vipwire.modes.ebpf.render import render
from vipwire.modes.ebpf.tables import FullError, Tables, takes_nothing
from vipwire.modes.spec import Mode
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.counts import AdoptsSettings, Counts
from vipwire.reconcile.delta import Delta, patch

_FIRST: Final = 0.1
LONGEST: Final = 30.0
_DOUBLINGS: Final = 10


@dataclass(slots=True)
class Undone:
    """The objects that could not be written into maps, by key; None for one that should not be there.

    They are tried again after 0.1 s, then after twice as long each time; meanwhile the rules serve them. Objects are
    noted as they should be, so that a try is right whatever was done before. `reason` is why the last try failed.
    """

    objects: dict[OurKey, bytes | None] = field(default_factory=dict)
    reason: str = ""
    _tries: int = 0
    _at: float = 0.0

    def failed(self, delta: Delta[OurKey, bytes], reason: str, now: float) -> bool:
        """Note what was not done; tell whether that, or why, is news."""
        news = not self.objects or reason != self.reason
        self.objects.update(_wanted(delta))
        self._at = now + min(_FIRST * 2 ** min(self._tries, _DOUBLINGS), LONGEST)
        self._tries, self.reason = self._tries + 1, reason
        return news

    def done(self, delta: Delta[OurKey, bytes]) -> bool:
        """Note what was done; tell whether nothing is left of what there was."""
        if not self.objects:
            return False
        for key in _wanted(delta):
            self.objects.pop(key, None)
        if self.objects:
            return False
        self._tries, self.reason = 0, ""
        return True

    def due(self, now: float) -> float | None:
        """Return the seconds until the next try; None if there is nothing to try."""
        return max(0.0, self._at - now) if self.objects else None

    def delta(self) -> Delta[OurKey, bytes]:
        """Return what is to be written."""
        return Delta(
            added={key: value for key, value in self.objects.items() if value is not None},
            removed={key: b"" for key, value in self.objects.items() if value is None},
        )


def _wanted(delta: Delta[OurKey, bytes]) -> dict[OurKey, bytes | None]:
    changed = {key: new for key, (_, new) in delta.changed.items()}
    return {**delta.added, **changed, **dict.fromkeys(delta.removed)}


@dataclass(slots=True)
class ProgramSetup:
    """What the programs of a node should be like, for both families; what only looks takes it from the kernel.

    `find_pods` looks for kubelet's cgroup, which may be made late, and made anew; None where it tells nobody.
    `namespaces` are those of Pods in which there may be connected UDP sockets; None: of any process.
    """

    settings: Settings
    clients: frozenset[int] = frozenset()
    find_pods: Callable[[], PodsCgroup] | None = field(default=None, compare=False)
    namespaces: tuple[Path, ...] | None = ()

    @property
    def knows_pods(self) -> bool:
        """Whether the programs can tell sockets of Pods: by kubelet's cgroup, or because they are named."""
        return bool(self.clients) if self.settings.listed else bool(self.settings.pods_cgroup)

    def look_for_pods(self) -> bool:
        """Take in where kubelet's cgroup is now; tell whether that is another one than before."""
        if self.find_pods is None:
            return False
        before, found = self.settings, self.find_pods()
        self.settings = before._replace(pods_cgroup=found.number, pods_level=found.level)
        return self.settings != before


class EbpfBackend:
    """The rules, maps and programs of one family. `hooks` are those that this family looks after."""

    def __init__(
        self, family: Family, rules: Mode, pinned: NodePins, wanted: ProgramSetup, hooks: tuple[str, ...]
    ) -> None:
        self.family, self.rules, self.wanted = family, rules, wanted
        self.pins, self.hooks = pinned, hooks
        self.tables = Tables(family, pinned)
        self._seen: Ours | None = None
        self._undone = Undone()

    def close(self) -> None:
        """Give up descriptors and sockets; what is programmed stays."""
        self.rules.close()
        self.tables.close()
        self.pins.close()

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]:
        """Render what belongs to no Service: nftables mode's objects, and the programs."""
        ours: Ours = {(PROGRAMS, hook.encode()): self._program for hook in self.hooks}
        if self._keeps_clients:
            ours.update(((CLIENTS, each.to_bytes(8, "little")), b"") for each in self.wanted.clients)
        return {**self.rules.render_node(node), **ours}

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        """Render one Service."""
        rules = self.rules.render(plan)
        if self.wanted.settings.counting is CounterLevel.TRAFFIC:
            return rules
        return Rendered({**rules.own, **render(self.family, plan, self.wanted.settings.remembered)}, rules.shared)

    def describe(self, key: Any) -> str:
        """Name an object for a person."""
        return describe(key) if is_ours(key) else self.rules.describe(key)

    def shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        """Say what a Service asks for in vain: what it does of nftables mode."""
        return self.rules.shortcomings(plan)

    def changed(self) -> bool:
        """Report whether anybody else has changed the rules, the maps or the programs, or kubelet its cgroup."""
        self._look_for_pods()
        if self.rules.changed() or self._seen is None:
            return True
        self.tables.counted.forget(self._seen)
        return self._look() != self._seen

    def observe(self) -> dict[Any, Any]:
        """Read rules, maps and programs."""
        self._look_for_pods()
        found = self.rules.observe()
        self._seen = self._look()
        return {**found, **self._seen}

    def commit(self, delta: Delta[Any, Any]) -> int:
        """Commit the rules, then write the maps. Raise CommitError if the rules are refused."""
        theirs, ours = split(delta)
        size = self.rules.commit(theirs) if theirs else 0
        if ours:
            self._try(ours)
        return size + sum(len(key) + len(value) for (_, key), value in ours.added.items())

    def housekeeping_due(self) -> float | None:
        """Return the seconds until what could not be written is tried again, or the rules' mode has its turn."""
        dues = self._undone.due(time.monotonic()), self.rules.housekeeping_due()
        return min((each for each in dues if each is not None), default=None)

    def housekeep(self) -> None:
        """Try again what could not be written; have the rules' mode do what is due."""
        theirs = self.rules.housekeeping_due() == 0
        if theirs:
            self.rules.housekeep()
        if not theirs or self._undone.due(time.monotonic()) == 0:
            self._try(self._undone.delta())

    def end_sockets(self, serving: Serving, *, whole: bool) -> int:
        """End connected UDP sockets that were given an endpoint which serves no more; see `offers.Connecting`."""
        if not self.wanted.settings.connected:
            return 0
        return ConnectedSockets(self.family, self.pins, self.wanted.namespaces).end(serving, whole=whole)

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        """Read the counters of the rules and of the programs; see `Mode`."""
        known = tuple(plans)
        counts = self.rules.read_counts(known, endpoints=endpoints)
        with closing(NodePins(self.pins.folder, None)) as pinned:
            add_connections(counts, self.family, known, CountedConnections(self.family, pinned).read())
        return counts

    def adopt_settings(self, explicit: frozenset[str]) -> None:
        """Take the settings of the rules and the programs in the kernel; see `AdoptsSettings`."""
        if isinstance(self.rules, AdoptsSettings):
            self.rules.adopt_settings(explicit)
        if explicit & COUNTER_FIELDS:
            return
        data = self.pins.settings()
        if data is not None:
            with suppress(ValueError, struct.error):
                settings = Settings.read(data)
                if settings.build == self.wanted.settings.build:
                    self.wanted.settings = settings
        found = self.pins.find("clients")
        if found is not None and self.wanted.settings.listed:
            self.wanted.clients = frozenset(int.from_bytes(key, "little") for key, _ in found.items())

    def delete(self) -> bool:
        """Remove the rules, and what the node and gone ones have in bpffs; tell whether there was anything."""
        self.tables.close()
        there = remove_gone(self.pins.folder) + self.pins.remove() > 0
        return self.rules.delete() or there

    @property
    def _keeps_clients(self) -> bool:
        """Whether it is this family that looks after what both share."""
        return "connect4" in self.hooks

    @property
    def _program(self) -> bytes:
        """What a program's object is: its settings, but for kubelet's cgroup, which is looked for and not planned."""
        return self.wanted.settings._replace(pods_cgroup=0, pods_level=0).packed

    def _look_for_pods(self) -> None:
        if self._keeps_clients and self.wanted.look_for_pods():
            settings = self.wanted.settings
            log.info(
                "kubelet's cgroup was made or removed", found=bool(settings.pods_cgroup), level=settings.pods_level
            )

    def _look(self) -> Ours:
        found = self.tables.observe()
        wanted = self.wanted.settings.packed
        in_force = {
            hook: self._program if held == wanted else b"other" + held for hook, held in self.pins.in_force().items()
        }
        found.update(((PROGRAMS, hook.encode()), in_force[hook]) for hook in self.hooks if hook in in_force)
        clients = self.pins.find("clients") if self._keeps_clients else None
        found.update(((CLIENTS, key), b"") for key, _ in (clients.items() if clients is not None else ()))
        return found

    def _try(self, delta: Delta[OurKey, bytes]) -> None:
        try:
            self._write(delta)
        except OSError as error:
            self._leave_out(delta, error)
            return
        self._take_in(delta)
        if self._undone.done(delta):
            log.info("the programs know all again", ip_family=self.family.value)

    def _take_in(self, delta: Delta[OurKey, bytes]) -> None:
        """Note what was written, in place: there may be a hundred thousand objects, and this changes a few."""
        if self._seen is None:
            return
        for key in delta.removed:
            self._seen.pop(key, None)
        self._seen.update(delta.added)
        self._seen.update((key, new) for key, (_, new) in delta.changed.items())

    def _write(self, delta: Delta[OurKey, bytes]) -> None:
        if any(space == CLIENTS for space, _ in (*delta.added, *delta.removed)):
            listed = self.pins.take("clients")
            joining = [key for space, key in delta.added if space == CLIENTS]
            listed.write(joining, [b"\2\0\0\0"] * len(joining))
            listed.remove(key for space, key in delta.removed if space == CLIENTS)
        grown = self._write_tables(delta)
        wanted = [key.decode() for space, key in (*delta.added, *delta.changed) if space == PROGRAMS]
        if wanted or grown:
            self.pins.put_in_force(wanted, self.wanted.settings.packed)
            self.tables.settle()
        self.pins.take_out([key.decode() for space, key in delta.removed if space == PROGRAMS])

    def _write_tables(self, delta: Delta[OurKey, bytes]) -> bool:
        """Write frontends and members; tell whether that took larger maps, so that programs must be loaded anew."""
        try:
            self.tables.commit(delta)
        except FullError:
            pass
        except OSError as error:
            if not takes_nothing(error):
                raise
        else:
            return False
        self.tables.grow(patch(self._look() if self._seen is None else self._seen, delta))
        return True

    def _leave_out(self, delta: Delta[OurKey, bytes], error: OSError) -> None:
        """Leave to the rules what could not be written: a frontend that is in no map, or all of them."""
        if self._undone.failed(delta, str(error), time.monotonic()):
            log.warning(
                "cannot write what the programs know; nftables' rules serve it until that works",
                ip_family=self.family.value,
                objects=len(self._undone.objects),
                reason=error,
            )
        self._seen = None
        forth = {hook for hook in self.hooks if hook.startswith(("connect", "sendmsg"))}
        try:
            self.tables.leave_out(delta)
            misled = forth - self.pins.in_force().keys()  # they use maps that have been replaced
        except OSError:
            misled = forth
        self._take_out(misled)
        with suppress(OSError):
            self._seen = self._look()

    def _take_out(self, hooks: Iterable[str]) -> None:
        """Have nobody follow a map out of which nothing can be taken."""
        there = [hook for hook in hooks if self.pins.link(hook) is not None]
        self.pins.take_out(there)
        wanted = {(PROGRAMS, hook.encode()): self._program for hook in there}
        self._undone.failed(Delta(added=wanted), self._undone.reason, time.monotonic())
