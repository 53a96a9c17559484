"""Sends the clients of a session to the same Service again, independent of the weights of a rule. Pure.

The value of a session's cookie begins with a mark of the Service. A client with such a cookie goes to that Service
as long as the rule names it and it has an endpoint; a weight of 0 only stops new clients. HAProxy draws a Service for
all other clients.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vipwire.model.names import ObjectName
from vipwire_l7.plan.policy import Affinity, BackendProtocol, Policy
from vipwire_l7.plan.sites import Bound, Chance, Pool, Step

_NO_COOKIES = (BackendProtocol.TCP, BackendProtocol.PASSED)


def with_mark(policy: Policy, service: ObjectName, port: int) -> Policy:
    """Put the Service's mark into the policy's cookie: in its value, and in its name if the user sets none.

    Two Services of one host with the same cookie would take each other's sessions.
    """
    if policy.affinity is None or policy.protocol in _NO_COOKIES:
        return policy
    mark = hashlib.sha256(f"{service}:{port}".encode()).hexdigest()[:10]
    name = policy.affinity.name or f"VIPWIRE-{mark}"
    return replace(policy, affinity=replace(policy.affinity, name=name, mark=mark))


def bound_steps(parts: Sequence[tuple[str, int]], pools: Mapping[str, Pool]) -> Iterator[Step]:
    """Yield a step for each Service's sessions. References to one Service share its sessions by weight."""
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for target, weight in parts:
        affinity = _affinity(pools.get(target))
        if affinity is not None:
            found.setdefault((affinity.name, affinity.mark), []).append((target, weight))
    for (name, mark), of_one in found.items():
        weighed = tuple(part for part in of_one if part[1]) or ((of_one[0][0], 1),)
        for step in share_requests(weighed, sum(weight for _, weight in weighed)):
            yield Step(step.target, (Bound(name, mark, step.target), *step.when))


def _affinity(pool: Pool | None) -> Affinity | None:
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
