"""Brings the clients of a session back to the Service that they had, whatever the weights of a rule draw. Pure.

The value of a session's cookie begins with a mark of the Service. Who comes with such a cookie goes there as long as
the rule names the Service and an endpoint is there; a weight of 0 gets no new clients. All others are drawn.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vipwire.model.names import ObjectName
from vipwire_l7.plan.policy import Affinity, BackendProtocol, Policy
from vipwire_l7.plan.sites import Bound, Chance, Pool, Step

_NO_COOKIES = (BackendProtocol.TCP, BackendProtocol.PASSED)


def with_mark(policy: Policy, service: ObjectName, port: int) -> Policy:
    """Let the cookie of a policy, if it has one, name the Service: in its value, and in its name if none is given.

    Two Services of one host with the same cookie would take each other's sessions.
    """
    if policy.affinity is None or policy.protocol in _NO_COOKIES:
        return policy
    mark = hashlib.sha256(f"{service}:{port}".encode()).hexdigest()[:10]
    name = policy.affinity.name or f"VIPWIRE-{mark}"
    return replace(policy, affinity=replace(policy.affinity, name=name, mark=mark))


def bound_steps(parts: Sequence[tuple[str, int]], pools: Mapping[str, Pool]) -> Iterator[Step]:
    """Yield the steps by which sessions find their Service. References to one Service share it by weight."""
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for target, weight in parts:
        affinity = _affinity(pools.get(target))
        if affinity is not None:
            found.setdefault((affinity.name, affinity.mark), []).append((target, weight))
    for (name, mark), of_one in found.items():
        weighed = tuple(part for part in of_one if part[1]) or ((of_one[0][0], 1),)
        for step in shared(weighed, sum(weight for _, weight in weighed)):
            yield Step(step.target, (Bound(name, mark, step.target), *step.when))


def _affinity(pool: Pool | None) -> Affinity | None:
    affinity = pool.policy.affinity if pool is not None else None
    return affinity if affinity is not None and affinity.mark else None


def shared(parts: tuple[tuple[str, int], ...], whole: int) -> Iterator[Step]:
    """Share `whole` among parts, one after the other: each gets its share of what those before it have left."""
    left = whole
    for target, weight in parts:
        if weight >= left > 0:
            yield Step(target)
        elif weight:
            yield Step(target, (Chance(weight, left),))
        left -= weight
