"""Splits the requests of a path between Services: by sessions, by weights, and for canaries. Pure.

The value of a session's cookie begins with a mark of the Service. A client with such a cookie goes to that Service
as long as the rule names the Service and an endpoint is there; a weight of 0 only stops new clients. HAProxy draws a
Service for all other clients. Canaries split a path by headers, then cookies, then sessions, then weights.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vipwire.model.names import ObjectName
from vipwire_l7.plan.policy import Affinity, BackendProtocol, Canary, Policy
from vipwire_l7.plan.sites import Aspect, Chance, Choice, Comparison, Pool, SessionBound, Step, make_choice

_NO_COOKIES = (BackendProtocol.TCP, BackendProtocol.PASSED)


def add_session_mark(policy: Policy, service: ObjectName, port: int) -> Policy:
    """Put the Service's mark into the policy's cookie: in its value, and in its name if the user sets none.

    Two Services of one host with the same cookie would take each other's sessions.
    """
    if policy.affinity is None or policy.protocol in _NO_COOKIES:
        return policy
    mark = hashlib.sha256(f"{service}:{port}".encode()).hexdigest()[:10]
    name = policy.affinity.name or f"VIPWIRE-{mark}"
    return replace(policy, affinity=replace(policy.affinity, name=name, mark=mark))


def make_session_steps(parts: Sequence[tuple[str, int]], pools: Mapping[str, Pool]) -> Iterator[Step]:
    """Yield a step for each Service's sessions. References to one Service share its sessions by weight."""
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for target, weight in parts:
        affinity = _find_marked_affinity(pools.get(target))
        if affinity is not None:
            found.setdefault((affinity.name, affinity.mark), []).append((target, weight))
    for (name, mark), of_one in found.items():
        weighed = tuple(part for part in of_one if part[1]) or ((of_one[0][0], 1),)
        for step in share_requests(weighed, sum(weight for _, weight in weighed)):
            yield Step(step.target, (SessionBound(name, mark, step.target), *step.when))


def _find_marked_affinity(pool: Pool | None) -> Affinity | None:
    affinity = pool.policy.affinity if pool is not None else None
    return affinity if affinity is not None and affinity.mark else None


def share_requests(parts: tuple[tuple[str, int], ...], whole: int) -> Iterator[Step]:
    """Turn weights into conditions: each target takes its part of the requests that the targets before it left."""
    left = whole
    for target, weight in parts:
        if weight >= left > 0:
            yield Step(target)
        elif weight:
            yield Step(target, (Chance(weight, left),))
        left -= weight


@dataclass(slots=True)
class Split:
    """A path that canaries split: `main` is its pool, `parts` the pools of canaries, the oldest Ingress's first."""

    main: str
    parts: list[tuple[str, Canary]] = field(default_factory=list)
    left: int = 100
    """The percentage that no canary takes."""

    def add_canary(self, target: str, canary: Canary) -> None:
        self.parts.append((target, canary))
        self.left -= canary.weight

    def make_choice(self, pools: Mapping[str, Pool]) -> Choice:
        bound = make_session_steps(tuple(_list_session_pools(self)), pools)
        steps = (
            *_choose_by_header(self),
            *_choose_by_cookie(self),
            *bound,
            *share_requests(tuple((name, canary.weight) for name, canary in self.parts), 100),
            Step(self.main),
        )
        return make_choice(tuple(steps))


def _choose_by_header(split: Split) -> Iterator[Step]:
    for other, canary in split.parts:
        if canary.header:
            yield Step(other, (Comparison(Aspect.HEADER, canary.value or "always", canary.header, split=True),))
            if not canary.value:
                yield Step(split.main, (Comparison(Aspect.HEADER, "never", canary.header, split=True),))


def _choose_by_cookie(split: Split) -> Iterator[Step]:
    for other, canary in split.parts:
        if canary.cookie:
            yield Step(other, (Comparison(Aspect.COOKIE, "always", canary.cookie),))
            yield Step(split.main, (Comparison(Aspect.COOKIE, "never", canary.cookie),))


def _list_session_pools(split: Split) -> Iterator[tuple[str, int]]:
    """Yield the pools to which sessions return, with their weights. A header or cookie alone starts no session."""
    yield split.main, split.left
    for name, canary in split.parts:
        if canary.weight or not (canary.header or canary.cookie):
            yield name, canary.weight
