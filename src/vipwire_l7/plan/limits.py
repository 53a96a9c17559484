"""Caps each namespace's objects separately. Pure.

One process plans for all namespaces, and one HAProxy serves them, so many objects of one namespace cost all. A limit
counts one namespace alone: no namespace can make vipwire refuse an object of another. The oldest objects come first:
vipwire never refuses an object for a younger one.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from vipwire.model.names import ObjectName
from vipwire_l7.watch.objects import KeyEnum
from vipwire_l7.watch.snapshot import ObjectRef


class Limited(KeyEnum):
    """The kinds of `--namespace-limit`."""

    HOSTS = "hosts"
    PATHS = "paths"
    BACKENDS = "backends"
    ENDPOINTS = "endpoints"
    CERTIFICATES = "certificates"
    LISTENERS = "listeners"
    RELOADS = "reloads"
    STATUSES = "statuses"
    EVENTS = "events"


Most: TypeAlias = Mapping[Limited, int]
MOST: Final[Most] = {
    Limited.HOSTS: 10_000,
    Limited.PATHS: 50_000,
    Limited.BACKENDS: 10_000,
    Limited.ENDPOINTS: 20_000,
    Limited.CERTIFICATES: 10_000,
    Limited.LISTENERS: 1_000,
    Limited.RELOADS: 30,
    Limited.STATUSES: 10_000,
    Limited.EVENTS: 60,
}
"""Twice the needs of a namespace of 5,000 hosts with a certificate and a backend for each.

Of reloads, statuses and Events, so many are allowed a minute, and as many at once.
"""
Age: TypeAlias = tuple[str, ObjectName, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """What an object asks for, and its age. A host, backend or certificate of two objects counts once."""

    age: Age
    hosts: tuple[Hashable, ...] = ()
    paths: int = 0
    backends: tuple[Hashable, ...] = ()
    certificates: tuple[Hashable, ...] = ()
    listeners: int = 0

    def list_keys(self) -> tuple[tuple[Limited, tuple[Hashable, ...]], ...]:
        hosts, backends = (Limited.HOSTS, self.hosts), (Limited.BACKENDS, self.backends)
        return hosts, backends, (Limited.CERTIFICATES, self.certificates)


def parse_limits(texts: Iterable[str]) -> Most:
    """Read the values of `--namespace-limit`; raise ValueError for an invalid one."""
    kinds, made = {each.value: each for each in Limited}, dict(MOST)
    for text in texts:
        kind, _, number = text.partition("=")
        if kind not in kinds or not number.isascii() or not number.isdecimal():
            raise ValueError(f"{text[:80]!r} is no KIND=NUMBER (KIND: {', '.join(kinds)})")
        made[kinds[kind]] = int(number)
    return made


class _Namespace:
    def __init__(self) -> None:
        self.objects: dict[ObjectRef, Demand] = {}
        self._sums = Counter[Limited]()
        """The counts, too high if two objects have a key in common."""
        self._users: dict[Limited, Counter[Hashable]] = {}
        """The users of each key, for kinds whose sum has exceeded the limit."""
        self.refused: dict[ObjectRef, str] = {}

    def replace_demand(self, ref: ObjectRef, demand: Demand | None) -> None:
        for each, step in ((self.objects.pop(ref, None), -1), (demand, 1)):
            if each is None:
                continue
            self._sums[Limited.PATHS] += step * each.paths
            self._sums[Limited.LISTENERS] += step * each.listeners
            for kind, keys in each.list_keys():
                self._sums[kind] += step * len(keys)
                if kind in self._users:
                    _count_users(self._users[kind], keys, step)
        if demand is not None:
            self.objects[ref] = demand

    def judge(self, most: Most) -> set[ObjectRef]:
        """Decide which objects exceed a limit; return those whose answer changed."""
        before, self.refused = self.refused, {}
        if any(self._count(kind) > most[kind] for kind in self._sums if self._sums[kind] > most[kind]):
            had, sums = {kind: set[Hashable]() for kind in Limited}, Counter[Limited]()
            for ref, demand in sorted(self.objects.items(), key=lambda each: each[1].age):
                more = {kind: len(set(keys) - had[kind]) for kind, keys in demand.list_keys()}
                more |= {Limited.PATHS: demand.paths, Limited.LISTENERS: demand.listeners}
                over = (kind for kind, number in more.items() if number and sums[kind] + number > most[kind])
                if (kind := next(over, None)) is not None:
                    self.refused[ref] = _describe_excess(kind, most[kind])
                else:
                    sums.update(more)
                    for each, keys in demand.list_keys():
                        had[each].update(keys)
        both = before.keys() | self.refused.keys()
        return {ref for ref in both if before.get(ref) != self.refused.get(ref)}

    def _count(self, kind: Limited) -> int:
        """Count the keys of a kind, each once."""
        if kind in (Limited.PATHS, Limited.LISTENERS):
            return self._sums[kind]
        if kind not in self._users:
            users = self._users[kind] = Counter[Hashable]()
            for demand in self.objects.values():
                _count_users(users, dict(demand.list_keys())[kind], 1)
        return len(self._users[kind])


def _count_users(users: Counter[Hashable], keys: Iterable[Hashable], step: int) -> None:
    for key in keys:
        users[key] += step
        if not users[key]:
            del users[key]


class Limits:
    """The objects that exceed a limit of their namespace. Call `record_demand` for all changes, then `judge`."""

    def __init__(self, most: Most = MOST) -> None:
        self._most = most
        self._namespaces: dict[str, _Namespace] = {}
        self._changed = set[str]()

    def record_demand(self, ref: ObjectRef, demand: Demand | None) -> None:
        """Record an object's demand; None removes the object."""
        known = self._namespaces.get(ref[1].namespace) or _Namespace()
        if known.objects.get(ref) != demand:
            self._namespaces[ref[1].namespace] = known
            self._changed.add(ref[1].namespace)
            known.replace_demand(ref, demand)

    def judge(self) -> set[ObjectRef]:
        """Check the changed namespaces; return the objects whose answer changed."""
        changed, self._changed = self._changed, set()
        found = {ref for name in changed for ref in self._namespaces[name].judge(self._most)}
        for name in changed:
            if not self._namespaces[name].objects:
                del self._namespaces[name]
        return found

    def find_excess(self, ref: ObjectRef) -> str:
        """Return the limit that an object exceeds; empty for none."""
        found = self._namespaces.get(ref[1].namespace)
        return found.refused.get(ref, "") if found is not None else ""


def _describe_excess(kind: Limited, most: int) -> str:
    remedy = f"delete older ones, or raise --namespace-limit {kind.value}=N"
    return f"with it, the namespace has more than {most} {kind.value}: {remedy}"
