"""The ModeSpec of iptables mode, with the wishes of a Service that this mode or this kernel cannot fulfil."""

from collections.abc import Iterator
from typing import Final

from vipwire.config.modes import MetricGroup, ModeSettings
from vipwire.model.problem import Problem
from vipwire.model.spread import Algorithm
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.spec import ONLY_IN_USERSPACE, Difference, ModeSpec, Tool, only_in_ipvs
from vipwire.plan.annotations import PREFIX, Balancing, Lack, field_of, find_ineffective
from vipwire.plan.plan import Forward, ServicePlan

_AT_RANDOM = "connections go to random endpoints, by weight"

LACKS: Final = (
    Lack(
        "balancing",
        f"iptables mode does not support 'maglev', because no match looks up a table: {_AT_RANDOM}",
        (Balancing.MAGLEV,),
    ),
    Lack(
        "balancing",
        (
            "iptables mode does not support 'least-connections', because it does not see the end of connections: "
            f"{_AT_RANDOM}"
        ),
        (Balancing.LEAST_CONNECTIONS,),
    ),
    ONLY_IN_USERSPACE,
    *only_in_ipvs("packets are translated"),
)
"""On every kernel."""


def find_shortcomings(settings: RuleSettings, plan: ServicePlan) -> Iterator[Problem]:
    forwards = [
        action
        for frontend in plan.frontends
        for action in (frontend.action, frontend.short_circuit)
        if isinstance(action, Forward)
    ]
    algorithms = {forward.spread.algorithm for forward in forwards}
    yield from find_ineffective(plan.name, plan.wishes, LACKS)
    if Algorithm.SOURCE_HASH in algorithms and not settings.source_hash:
        why = f"'source-hash' needs the match 'bpf', which this machine does not have: {_AT_RANDOM}"
        yield Problem("Service", plan.name, field_of(f"{PREFIX}algorithm"), why)
    if not settings.affinity and any(forward.affinity_seconds is not None for forward in forwards):
        why = (
            "ClientIP needs the match 'recent', which this machine does not have: connections are balanced without it"
        )
        yield Problem("Service", plan.name, "spec.sessionAffinity", why)


MODE: Final = ModeSpec(
    name="iptables",
    driver="vipwire.modes.iptables.driver",
    inspection="vipwire.modes.iptables.explain",
    settings=ModeSettings(periods="iptables", masquerading="iptables"),
    for_whom="kernels, tools and runbooks for iptables: kube-proxy's chains and names, "
    r"`iptables-save \| grep KUBE-SVC`",
    lacks=LACKS,
    metrics=frozenset(
        {
            MetricGroup.FULL_AND_PARTIAL_SYNCS,
            MetricGroup.IPTABLES_RESTORE,
            MetricGroup.IPTABLES_RULES,
            MetricGroup.CONNECTION_TRACKING,
        }
    ),
    page="iptables.md",
    fallback=("nftables", "userspace"),
    differences=(
        Difference(
            ("S132",),
            "Connections are counted, but not their packets and bytes, even with --count-traffic.",
            "The nat table sees only the first packet of a connection.",
        ),
        Difference(
            ("S155", "S156"),
            "With the algorithm maglev, connections go to endpoints at random. vipwire reports that.",
            "iptables has no match that looks an endpoint up in a table.",
        ),
        Difference(
            ("S169",),
            "Where another program has a base chain of nft at the same priority, the one loaded last decides.",
            "The rules stand in iptables' own chains, which have nft's priorities dstnat and srcnat.",
        ),
    ),
    tools=(Tool("iptables-restore", "iptables mode writes its rules with it", needed=True),),
    port_ranges=True,
    terse=True,
)
