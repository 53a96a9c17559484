"""Removes the parts of a plan that HAProxy refuses.

A part is identified by its content: a pool by its name, a regular expression by its text, a certificate by its PEM.
So a corrected part is a new one, and HAProxy tries it again.
"""

from collections.abc import Collection
from dataclasses import replace

from vipwire_l7.haproxy.configuration import write_route_expression
from vipwire_l7.plan.sites import CLOSED, Choice, Condition, Match, ObjectField, SessionBound, SitePlan


def list_parts(plan: SitePlan) -> set[str]:
    parts = {each.name for each in plan.pools} | {each.name for each in plan.all_choices}
    parts |= {each.pem for each in plan.certificates}
    return parts | {write_route_expression(route) for route in plan.routes if route.match is Match.EXPRESSION}


def find_owners(pools: Collection[str], plan: SitePlan) -> dict[str, dict[ObjectField, None]]:
    """Find the objects whose paths lead to each of these pools, directly or by choices, in their order."""
    choices = {each.name: each.targets for each in plan.all_choices}
    found: dict[str, dict[ObjectField, None]] = {name: {} for name in pools}
    for route in plan.routes:
        reached = [route.target]
        for target in reached:
            reached += (each for each in choices.get(target, ()) if each not in reached)
        for target in reached:
            if target in found:
                found[target][ObjectField(route.kind, route.owner)] = None
    return found


def remove_parts(plan: SitePlan, refused: Collection[str]) -> SitePlan:
    """Remove parts. Paths to a removed pool answer 503; a removed expression's path has no entry."""
    if not refused:
        return plan

    def replace_refused(target: str) -> str:
        return CLOSED if target in refused else target

    def replace_steps(choice: Choice) -> Choice:
        steps = (step for step in choice.steps if not any(_names_refused_pool(each, refused) for each in step.when))
        return replace(choice, steps=tuple(replace(step, target=replace_refused(step.target)) for step in steps))

    gone = {each.name for each in plan.certificates if each.pem in refused}
    return replace(
        plan,
        routes=tuple(
            replace(route, target=replace_refused(route.target))
            for route in plan.routes
            if route.match is not Match.EXPRESSION or write_route_expression(route) not in refused
        ),
        pools=tuple(pool for pool in plan.pools if pool.name not in refused),
        choices=tuple(replace_steps(each) for each in plan.choices if each.name not in refused),
        certificates=tuple(each for each in plan.certificates if each.pem not in refused),
        default=replace_refused(plan.default),
        frontends=tuple(
            replace(
                each,
                choices=tuple(replace_steps(choice) for choice in each.choices if choice.name not in refused),
                certificates=tuple((name, hosts) for name, hosts in each.certificates if name not in gone),
            )
            for each in plan.frontends
        ),
    )


def _names_refused_pool(condition: Condition, refused: Collection[str]) -> bool:
    return isinstance(condition, SessionBound) and condition.pool in refused
