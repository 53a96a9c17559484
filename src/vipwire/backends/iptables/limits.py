"""What a Service may ask for and iptables mode, or this machine's kernel, does not have; and what is done instead."""

from collections.abc import Iterator

from vipwire.backends.iptables.settings import Settings
from vipwire.model.problem import Problem
from vipwire.plan.annotations import PREFIX
from vipwire.plan.plan import Forward, ServicePlan
from vipwire.plan.spread import Algorithm

_AT_RANDOM = "endpoints are chosen at random, by weight if they have any"


def shortcomings(settings: Settings, plan: ServicePlan) -> Iterator[Problem]:
    """Compare what a plan asks for with what the rules can do."""
    forwards = [
        action
        for frontend in plan.frontends
        for action in (frontend.action, frontend.short_circuit)
        if isinstance(action, Forward)
    ]
    algorithms = {forward.spread.algorithm for forward in forwards}
    field = f"metadata.annotations[{PREFIX}algorithm]"
    if Algorithm.MAGLEV in algorithms:
        why = f"'maglev' is not in iptables mode, which has no match that looks up a table: {_AT_RANDOM}"
        yield Problem("Service", plan.name, field, why)
    if Algorithm.SOURCE_HASH in algorithms and not settings.source_hash:
        why = f"'source-hash' needs the match 'bpf', which this machine does not have: {_AT_RANDOM}"
        yield Problem("Service", plan.name, field, why)
    if not settings.affinity and any(forward.affinity_seconds is not None for forward in forwards):
        why = (
            "ClientIP needs the match 'recent', which this machine does not have: connections are balanced without it"
        )
        yield Problem("Service", plan.name, "spec.sessionAffinity", why)
