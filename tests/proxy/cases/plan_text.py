"""A plan as lines of text for the cases."""

from collections.abc import Iterator

from vipwire.plan.plan import Action, Drop, Forward, Reject, ServicePlan


def plan_lines(plan: ServicePlan) -> Iterator[str]:
    yield str(plan.name)
    for frontend in plan.frontends:
        kind = "" if frontend.key.address is None else f"{frontend.kind.value} "
        yield f"  {kind}{frontend.key} ({frontend.port_name.port or 'unnamed port'})"
        if frontend.allowed_sources is not None:
            yield f"    only from {', '.join(map(str, frontend.allowed_sources))}"
        if frontend.short_circuit is not None:
            yield from _action("clients on this node: ", frontend.short_circuit)
        yield from _action("", frontend.action)
    for key, winner in plan.lost:
        yield f"  lost {key} to {winner}"
    if plan.health_check is not None:
        yield f"  health check on port {plan.health_check.port}: {plan.health_check.local_endpoints} here"


def _action(who: str, action: Action) -> Iterator[str]:
    match action:
        case Forward(pool, masquerade, affinity):
            sticky = "" if affinity is None else f", the same for {affinity} s"
            yield f"    {who}forward, masquerade {masquerade.value}{sticky}"
            for target in pool:
                yield f"      {target}{' here' if target.local else ''}"
        case Drop(reason):
            yield f"    {who}drop: {reason.value}"
        case Reject(reason):
            yield f"    {who}reject: {reason.value}"
