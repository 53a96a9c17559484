"""Caps each namespace's objects separately. Pure.

One process plans for all namespaces, and one HAProxy serves them, so many objects of one namespace cost all. A limit
counts one namespace alone: no namespace can make vipwire refuse an object of another. The oldest objects come first:
vipwire never refuses an object for a younger one.
"""

import enum
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeAlias

from vipwire.model.names import ObjectName
from vipwire_l7.watch.snapshot import ObjectRef


class Limited(enum.Enum):
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
Demand: TypeAlias = Mapping[tuple[Limited, Hashable], int]
"""The counts of an object: two objects with the same host, certificate or backend count once."""


def parse_limits(texts: Iterable[str]) -> Most:
    """Read the values of `--namespace-limit`; raise ValueError for an invalid one."""
    kinds, made = {each.value: each for each in Limited}, dict(MOST)
    for text in texts:
        kind, _, number = text.partition("=")
        if kind not in kinds or not number.isascii() or not number.isdecimal():
            raise ValueError(f"{text[:80]!r} is no KIND=NUMBER (KIND: {', '.join(kinds)})")
        made[kinds[kind]] = int(number)
    return made


def count_each(kind: Limited, keys: Iterable[Hashable]) -> dict[tuple[Limited, Hashable], int]:
    return {(kind, key): 1 for key in keys}


class _Namespace:
    def __init__(self) -> None:
        self.objects: dict[ObjectRef, tuple[Age, Demand]] = {}
        self.sums, self._users = Counter[Limited](), Counter[tuple[Limited, Hashable]]()
        self.refused: dict[ObjectRef, str] = {}

    def replace_demand(self, ref: ObjectRef, age: Age, demand: Demand) -> None:
        _, before = self.objects.pop(ref, (age, {}))
        for key, number in before.items():
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self.sums[key[0]] -= number
        for key, number in demand.items():
            self.sums[key[0]] += 0 if key in self._users else number
            self._users[key] += 1
        if demand:
            self.objects[ref] = age, demand

    def judge(self, most: Most) -> set[ObjectRef]:
        """Decide which objects exceed a limit; return those whose answer changed."""
        before, self.refused = self.refused, {}
        if any(number > most[kind] for kind, number in self.sums.items()):
            had, sums = set[tuple[Limited, Hashable]](), Counter[Limited]()
            for ref, (_, demand) in sorted(self.objects.items(), key=lambda each: each[1][0]):
                more = Counter[Limited]()
                for key, number in demand.items():
                    if key not in had:
                        more[key[0]] += number
                kind = next((kind for kind, number in more.items() if sums[kind] + number > most[kind]), None)
                if kind is not None:
                    self.refused[ref] = _describe_excess(kind, most[kind])
                else:
                    had.update(demand)
                    sums.update(more)
        both = before.keys() | self.refused.keys()
        return {ref for ref in both if before.get(ref) != self.refused.get(ref)}


class Limits:
    """The objects that exceed a limit of their namespace. Call `record_demand` for all changes, then `judge`."""

    def __init__(self, most: Most = MOST) -> None:
        self._most = most
        self._namespaces: dict[str, _Namespace] = {}
        self._changed = set[str]()

    def record_demand(self, ref: ObjectRef, age: Age, demand: Demand) -> None:
        """Record an object's demand; an empty one removes the object."""
        known = self._namespaces.get(ref[1].namespace) or _Namespace()
        if known.objects.get(ref) != ((age, demand) if demand else None):
            self._namespaces[ref[1].namespace] = known
            self._changed.add(ref[1].namespace)
            known.replace_demand(ref, age, demand)

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
