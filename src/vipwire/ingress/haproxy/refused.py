"""A plan without the parts that HAProxy refuses: what is left serves.

A part is known by its text: a pool by its name, a regular expression as it stands in its map, a certificate by its
PEM. So one that is mended is another part, and is tried again.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from vipwire.ingress.haproxy.configuration import expression_of
from vipwire.ingress.plan.sites import CLOSED, Match, SitePlan, Split
from vipwire.model.names import ObjectName


def parts_of(plan: SitePlan) -> frozenset[str]:
    """Name all parts that may be refused."""
    return frozenset(_parts(plan))


def _parts(plan: SitePlan) -> Iterator[str]:
    yield from (pool.name for pool in plan.pools)
    yield from (expression_of(route) for route in plan.routes if route.match is Match.EXPRESSION)
    yield from (each.pem for each in plan.certificates)


def owners_of(pool: str, plan: SitePlan) -> tuple[ObjectName, ...]:
    """Name the Ingresses whose paths lead to a pool, at once or by a canary."""
    targets = {pool, *(each.name for each in plan.splits if pool in (each.main, *(name for name, _ in each.parts)))}
    return tuple(dict.fromkeys(route.owner for route in plan.routes if route.target in targets))


def without(plan: SitePlan, refused: Collection[str]) -> SitePlan:
    """Leave parts out: what led to a pool answers 503, an expression's path is not there."""
    if not refused:
        return plan

    def left(target: str) -> str:
        return CLOSED if target in refused else target

    def left_of(split: Split) -> Split:
        parts = tuple((left(name), canary) for name, canary in split.parts)
        return replace(split, main=left(split.main), parts=parts)

    return replace(
        plan,
        routes=tuple(
            replace(route, target=left(route.target))
            for route in plan.routes
            if route.match is not Match.EXPRESSION or expression_of(route) not in refused
        ),
        pools=tuple(pool for pool in plan.pools if pool.name not in refused),
        splits=tuple(map(left_of, plan.splits)),
        certificates=tuple(each for each in plan.certificates if each.pem not in refused),
        default=left(plan.default),
    )
