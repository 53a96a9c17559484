"""ebpf mode's backend: nftables mode's rules, and the programs' maps for the same plan.

One instance serves one family.

A commit writes first the rules, which serve every Service, then the maps, in an order that is safe to interrupt. If
the kernel refuses a map update, the rules serve the frontend, which costs a connection a microsecond; vipwire logs
this and retries soon.
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
from vipwire.modes.ebpf.layout import CLIENTS, PROGRAMS, OurKey, Ours, Settings, describe_key, is_ours, split_delta
from vipwire.modes.ebpf.pinned import NodePins, remove_gone_nodes
from vipwire.modes.ebpf.render import render_service
from vipwire.modes.ebpf.tables import SlotsFullError, Tables, is_map_full
from vipwire.modes.spec import Mode
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import ChangeListener, Enlarging, Listening, Rendered
from vipwire.reconcile.counts import AdoptsSettings, Counts
from vipwire.reconcile.delta import Delta, SentBytes, apply_delta

_FIRST: Final = 0.1
LONGEST: Final = 30.0
_DOUBLINGS: Final = 10


@dataclass(slots=True)
class Undone:
    """The objects that the kernel refused in maps, by key; None for a removal.

    vipwire retries after 0.1 s, then after twice the time; meanwhile the rules serve them. Objects are final states,
    so a retry is right after any partial write. `reason` is the last error.
    """

    objects: dict[OurKey, bytes | None] = field(default_factory=dict)
    reason: str = ""
    _tries: int = 0
    _at: float = 0.0

    def record_failure(self, delta: Delta[OurKey, bytes], reason: str, now: float) -> bool:
        """Note a failed difference; report whether it or its reason is new."""
        news = not self.objects or reason != self.reason
        self.objects.update(_wanted_values(delta))
        self._at = now + min(_FIRST * 2 ** min(self._tries, _DOUBLINGS), LONGEST)
        self._tries, self.reason = self._tries + 1, reason
        return news

    def record_success(self, delta: Delta[OurKey, bytes]) -> bool:
        """Note a successful difference; report whether it completed the last failed object."""
        if not self.objects:
            return False
        for key in _wanted_values(delta):
            self.objects.pop(key, None)
        if self.objects:
            return False
        self._tries, self.reason = 0, ""
        return True

    def due(self, now: float) -> float | None:
        """Return the seconds until the next retry; None if no object failed."""
        return max(0.0, self._at - now) if self.objects else None

    def delta(self) -> Delta[OurKey, bytes]:
        return Delta(
            added={key: value for key, value in self.objects.items() if value is not None},
            removed={key: b"" for key, value in self.objects.items() if value is None},
        )


def _wanted_values(delta: Delta[OurKey, bytes]) -> dict[OurKey, bytes | None]:
    return {**delta.written, **dict.fromkeys(delta.removed)}


@dataclass(slots=True)
class ProgramSetup:
    """The settings of a node's programs, for both families; a viewer takes them from the kernel.

    `find_pods` looks for kubelet's cgroup, which kubelet may create late or again; None if the
    configuration lists Pods, or no cgroup is known.
    `namespaces` are the Pods' network namespaces with connected UDP sockets; None: those of any process.
    """

    settings: Settings
    clients: frozenset[int] = frozenset()
    find_pods: Callable[[], PodsCgroup] | None = field(default=None, compare=False)
    namespaces: tuple[Path, ...] | None = ()

    @property
    def knows_pods(self) -> bool:
        """Whether the programs can tell Pods' sockets: by kubelet's cgroup, or by a list."""
        return bool(self.clients) if self.settings.listed else bool(self.settings.pods_cgroup)

    def look_for_pods(self) -> bool:
        if self.find_pods is None:
            return False
        before, found = self.settings, self.find_pods()
        self.settings = before._replace(pods_cgroup=found.number, pods_level=found.level)
        return self.settings != before


class EbpfBackend:
    """The rules, maps and programs of one family. `hooks` are the hooks that it manages."""

    hears_all = False

    def __init__(
        self, family: Family, rules: Mode, pinned: NodePins, wanted: ProgramSetup, hooks: tuple[str, ...]
    ) -> None:
        self.family, self.rules, self.wanted = family, rules, wanted
        self.pins, self.hooks = pinned, hooks
        self.tables = Tables(family, pinned)
        self._seen: Ours | None = None
        self._undone = Undone()

    def close(self) -> None:
        """Close descriptors and sockets; rules, maps and programs stay."""
        self.rules.close()
        self.tables.close()
        self.pins.close()

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]:
        """Return the constant objects: nftables mode's, and the programs."""
        ours: Ours = {(PROGRAMS, hook.encode()): self._program for hook in self.hooks}
        if self._keeps_clients:
            ours.update(((CLIENTS, each.to_bytes(8, "little")), b"") for each in self.wanted.clients)
        return {**self.rules.render_node(node), **ours}

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        rules = self.rules.render(plan)
        if self.wanted.settings.counting is CounterLevel.TRAFFIC:
            return rules
        return Rendered(
            {**rules.own, **render_service(self.family, plan, self.wanted.settings.remembered)}, rules.shared
        )

    def describe(self, key: Any) -> str:
        return describe_key(key) if is_ours(key) else self.rules.describe(key)

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        return self.rules.find_shortcomings(plan)

    def changed(self) -> bool:
        """Report whether another program changed the rules, maps or programs, or kubelet its cgroup."""
        self._look_for_pods()
        if self.rules.changed() or self._seen is None:
            return True
        self.tables.counted.forget_frontends(self._seen)
        return self._observe_maps() != self._seen

    def listen(self) -> ChangeListener | None:
        """Hear of other programs' changes of the rules; see `Listening`. Maps and programs need regular checks."""
        return self.rules.listen() if isinstance(self.rules, Listening) else None

    def observe(self) -> dict[Any, Any]:
        self._look_for_pods()
        found = self.rules.observe()
        self._seen = self._observe_maps()
        return {**found, **self._seen}

    def commit(self, delta: Delta[Any, Any]) -> SentBytes:
        """Commit the rules, then write the maps. Raise CommitError if the kernel refuses the rules."""
        theirs, ours = split_delta(delta)
        size = self.rules.commit(theirs) if theirs else 0
        if ours:
            self._write_or_note_failure(ours)
        return size + sum(len(key) + len(value) for (_, key), value in ours.added.items())

    def lacks_room(self, delta: Delta[Any, Any]) -> bool:
        return isinstance(self.rules, Enlarging) and self.rules.lacks_room(split_delta(delta)[0])

    def enlarge(self, delta: Delta[Any, Any], held: Iterable[Mapping[Any, Any]]) -> SentBytes:
        return self.rules.enlarge(split_delta(delta)[0], held) if isinstance(self.rules, Enlarging) else 0

    def housekeeping_due(self) -> float | None:
        """Return the seconds until the next retry, or the rules' next housekeeping."""
        dues = self._undone.due(time.monotonic()), self.rules.housekeeping_due()
        return min((each for each in dues if each is not None), default=None)

    def housekeep(self) -> None:
        theirs = self.rules.housekeeping_due() == 0
        if theirs:
            self.rules.housekeep()
        if not theirs or self._undone.due(time.monotonic()) == 0:
            self._write_or_note_failure(self._undone.delta())

    def end_sockets(self, serving: Serving, *, whole: bool) -> int:
        """End connected UDP sockets whose endpoint no longer serves; see `offers.Connecting`."""
        if not self.wanted.settings.connected:
            return 0
        return ConnectedSockets(self.family, self.pins, self.wanted.namespaces).end_stale_sockets(
            serving, whole=whole
        )

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        known = tuple(plans)
        counts = self.rules.read_counts(known, endpoints=endpoints)
        with closing(NodePins(self.pins.folder, None)) as pinned:
            add_connections(counts, self.family, known, CountedConnections(self.family, pinned).read())
        return counts

    def adopt_settings(self, explicit: frozenset[str]) -> None:
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
        """Remove the rules, and the bpffs folders of this node and of deleted ones; report whether any existed."""
        self.tables.close()
        there = remove_gone_nodes(self.pins.folder) + self.pins.remove() > 0
        return self.rules.delete() or there

    @property
    def _keeps_clients(self) -> bool:
        """Whether this family manages the shared objects."""
        return "connect4" in self.hooks

    @property
    def _program(self) -> bytes:
        """The value of a program's object: its settings without kubelet's cgroup, which is not part of the plan."""
        return self.wanted.settings._replace(pods_cgroup=0, pods_level=0).packed

    def _look_for_pods(self) -> None:
        if self._keeps_clients and self.wanted.look_for_pods():
            settings = self.wanted.settings
            log.info(
                "kubelet's cgroup was created or removed", found=bool(settings.pods_cgroup), level=settings.pods_level
            )

    def _observe_maps(self) -> Ours:
        found = self.tables.observe()
        wanted = self.wanted.settings.packed
        in_force = {
            hook: self._program if held == wanted else b"other" + held
            for hook, held in self.pins.read_attached_programs().items()
        }
        found.update(((PROGRAMS, hook.encode()), in_force[hook]) for hook in self.hooks if hook in in_force)
        clients = self.pins.find("clients") if self._keeps_clients else None
        found.update(((CLIENTS, key), b"") for key, _ in (clients.items() if clients is not None else ()))
        return found

    def _write_or_note_failure(self, delta: Delta[OurKey, bytes]) -> None:
        try:
            self._write_objects(delta)
        except OSError as error:
            self._drop_unwritable(delta, error)
            return
        if self._seen is not None:
            delta.apply_to(self._seen)  # in place: a change touches a few of up to 100,000 objects
        if self._undone.record_success(delta):
            log.info("the programs' maps are complete again", ip_family=self.family.value)

    def _write_objects(self, delta: Delta[OurKey, bytes]) -> None:
        if any(space == CLIENTS for space, _ in (*delta.added, *delta.removed)):
            listed = self.pins.open_or_create("clients")
            joining = [key for space, key in delta.added if space == CLIENTS]
            listed.write(joining, [b"\2\0\0\0"] * len(joining))
            listed.remove(key for space, key in delta.removed if space == CLIENTS)
        grown = self._write_tables(delta)
        wanted = [key.decode() for space, key in (*delta.added, *delta.changed) if space == PROGRAMS]
        if wanted or grown:
            self.pins.attach_programs(wanted, self.wanted.settings.packed)
            self.tables.collect_outgrown_counts()
        self.pins.detach_programs([key.decode() for space, key in delta.removed if space == PROGRAMS])

    def _write_tables(self, delta: Delta[OurKey, bytes]) -> bool:
        """Write frontends and members; report whether larger maps require loading the programs again."""
        try:
            self.tables.commit(delta)
        except SlotsFullError:
            pass
        except OSError as error:
            if not is_map_full(error):
                raise
        else:
            return False
        self.tables.enlarge_maps(apply_delta(self._observe_maps() if self._seen is None else self._seen, delta))
        return True

    def _drop_unwritable(self, delta: Delta[OurKey, bytes], error: OSError) -> None:
        """Leave the refused frontends to the rules: remove them from the maps, or detach the programs."""
        if self._undone.record_failure(delta, str(error), time.monotonic()):
            log.warning(
                "cannot write the programs' maps; using the rules until this works",
                ip_family=self.family.value,
                objects=len(self._undone.objects),
                reason=error,
            )
        self._seen = None
        forth = {hook for hook in self.hooks if hook.startswith(("connect", "sendmsg"))}
        try:
            self.tables.forget_objects(delta)
            misled = forth - self.pins.read_attached_programs().keys()  # their programs use replaced maps
        except OSError:
            misled = forth
        self._detach_hooks(misled)
        with suppress(OSError):
            self._seen = self._observe_maps()

    def _detach_hooks(self, hooks: Iterable[str]) -> None:
        """Detach programs that use a map from which no element can be removed."""
        there = [hook for hook in hooks if self.pins.link(hook) is not None]
        self.pins.detach_programs(there)
        wanted = {(PROGRAMS, hook.encode()): self._program for hook in there}
        self._undone.record_failure(Delta(added=wanted), self._undone.reason, time.monotonic())
