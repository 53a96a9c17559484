"""Lists what a Service may ask for that iptables mode or this kernel lacks, and what is done instead."""

from collections.abc import Iterator
from typing import Final

from vipwire.model.problem import Problem
from vipwire.model.spread import Algorithm
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.lacks import ONLY_IN_USERSPACE, only_in_ipvs
from vipwire.plan.annotations import PREFIX, Balancing, Lack, field_of, in_vain
from vipwire.plan.plan import Forward, ServicePlan

_AT_RANDOM = "endpoints are chosen at random, by weight if they have any"

LACKS: Final = (
    Lack(
        "balancing",
        f"'maglev' is not in iptables mode, which has no match that looks up a table: {_AT_RANDOM}",
        (Balancing.MAGLEV,),
    ),
    Lack(
        "balancing",
        f"'least-connections' is not in iptables mode, which does not see connections end: {_AT_RANDOM}",
        (Balancing.LEAST_CONNECTIONS,),
    ),
    ONLY_IN_USERSPACE,
    *only_in_ipvs("packets are translated"),
)
"""Whatever the kernel has."""


def shortcomings(settings: Settings, plan: ServicePlan) -> Iterator[Problem]:
    """Compare what a plan asks for with what the rules can do."""
    forwards = [
        action
        for frontend in plan.frontends
        for action in (frontend.action, frontend.short_circuit)
        if isinstance(action, Forward)
    ]
    algorithms = {forward.spread.algorithm for forward in forwards}
    yield from in_vain(plan.name, plan.wishes, LACKS)
    if Algorithm.SOURCE_HASH in algorithms and not settings.source_hash:
        why = f"'source-hash' needs the match 'bpf', which this machine does not have: {_AT_RANDOM}"
        yield Problem("Service", plan.name, field_of(f"{PREFIX}algorithm"), why)
    if not settings.affinity and any(forward.affinity_seconds is not None for forward in forwards):
        why = (
            "ClientIP needs the match 'recent', which this machine does not have: connections are balanced without it"
        )
        yield Problem("Service", plan.name, "spec.sessionAffinity", why)
