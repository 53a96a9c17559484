"""A plan without the parts that HAProxy refuses: what is left serves.

A part is known by its text: a pool by its name, a regular expression as it stands in its map, a certificate by its
PEM. So one that is mended is another part, and is tried again.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from vipwire_l7.haproxy.configuration import expression_of
from vipwire_l7.plan.sites import CLOSED, Asker, Bound, Choice, Condition, Match, SitePlan


def parts_of(plan: SitePlan) -> frozenset[str]:
    """Name all parts that may be refused."""
    return frozenset(_parts(plan))


def _parts(plan: SitePlan) -> Iterator[str]:
    yield from (pool.name for pool in plan.pools)
    yield from (choice.name for choice in plan.all_choices)
    yield from (expression_of(route) for route in plan.routes if route.match is Match.EXPRESSION)
    yield from (each.pem for each in plan.certificates)


def owners_of(pool: str, plan: SitePlan) -> tuple[Asker, ...]:
    """Name the objects whose paths lead to a pool, at once or by choices."""
    targets, before = {pool}, 0
    while len(targets) > before:
        before = len(targets)
        targets |= {each.name for each in plan.all_choices if not targets.isdisjoint(each.targets)}
    found = (Asker(route.kind, route.owner) for route in plan.routes if route.target in targets)
    return tuple(dict.fromkeys(found))


def without(plan: SitePlan, refused: Collection[str]) -> SitePlan:
    """Leave parts out: what led to a pool answers 503, an expression's path is not there."""
    if not refused:
        return plan

    def left(target: str) -> str:
        return CLOSED if target in refused else target

    def left_of(choice: Choice) -> Choice:
        steps = (step for step in choice.steps if not any(_counts(each, refused) for each in step.when))
        return replace(choice, steps=tuple(replace(step, target=left(step.target)) for step in steps))

    gone = {each.name for each in plan.certificates if each.pem in refused}
    return replace(
        plan,
        routes=tuple(
            replace(route, target=left(route.target))
            for route in plan.routes
            if route.match is not Match.EXPRESSION or expression_of(route) not in refused
        ),
        pools=tuple(pool for pool in plan.pools if pool.name not in refused),
        choices=tuple(left_of(each) for each in plan.choices if each.name not in refused),
        certificates=tuple(each for each in plan.certificates if each.pem not in refused),
        default=left(plan.default),
        frontends=tuple(
            replace(
                each,
                choices=tuple(left_of(choice) for choice in each.choices if choice.name not in refused),
                certificates=tuple((name, hosts) for name, hosts in each.certificates if name not in gone),
            )
            for each in plan.frontends
        ),
    )


def _counts(condition: Condition, refused: Collection[str]) -> bool:
    """Report whether a condition counts the endpoints of a pool that is left out."""
    return isinstance(condition, Bound) and condition.pool in refused
