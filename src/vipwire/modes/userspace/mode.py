"""The ModeSpec of userspace mode, with the wishes of a Service that this mode cannot fulfil."""

from collections.abc import Iterator
from typing import Final

from vipwire.config.modes import ModeSettings
from vipwire.model.problem import Problem
from vipwire.modes.spec import Difference, ModeSpec, only_in_ipvs
from vipwire.modes.userspace.entrance import Entrance, is_never_answered
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.plan.annotations import PREFIX, Lack, field_of, find_ineffective
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan

_RESTS: Final = "the relay has its own rule: after 3 consecutive failures, the relay skips an endpoint for 10 s"
LACKS: Final = (
    *only_in_ipvs("the relay opens its own connection to the endpoint"),
    *(Lack(wish, _RESTS) for wish in ("eject_after", "eject_for", "eject_at_most", "eject_udp")),
)
"""With any settings."""
_WITHOUT_RULES: Final = (
    Lack("port_ranges", "needs rules, and --userspace-bind does without: only the port itself is served"),
)


def find_shortcomings(node: NodePlan, choices: Choices, plan: ServicePlan) -> Iterator[Problem]:
    lacks = LACKS if choices.bind is Bind.RULES else (*LACKS, *_WITHOUT_RULES)
    yield from find_ineffective(plan.name, plan.wishes, lacks)
    if any(is_never_answered(node, Entrance(wide.frontend, wide)) for wide in plan.ranges):
        why = "a UDP range needs a node address of the family, and this node has none: only the port itself is served"
        yield Problem("Service", plan.name, field_of(f"{PREFIX}port-range"), why)


MODE: Final = ModeSpec(
    name="userspace",
    driver="vipwire.modes.userspace.driver",
    inspection="vipwire.modes.userspace.explain",
    settings=ModeSettings(periods="iptables", masquerading="iptables"),
    for_whom="machines with NAT redirection only, or without any rules; "
    "the relay tries another endpoint when one does not answer",
    lacks=LACKS,
    page="userspace.md",
    differences=(
        Difference(
            ("S8",),
            "New connections go to the endpoints in turn, not at random. The shares are the same.",
            "The relay takes turns.",
        ),
        Difference(
            ("S46",),
            "By ClusterCIDR only Pods of this node count as Pods, if its Node object has podCIDRs.",
            "A relay always gets its answers. A Pod of another node would be served in spite of a Local policy.",
        ),
        Difference(("S92",), "SCTP is not served.", "The relay carries TCP and UDP only."),
        Difference(
            ("S162", "S163", "S164", "S165", "S166", "S167"),
            "The annotations for ejection have no effect. vipwire reports them.",
            (
                "The relay itself tries another endpoint at once. After 3 consecutive failures, the relay skips an "
                "endpoint for 10 s."
            ),
        ),
        Difference(
            ("S132",),
            "Bytes are counted, but not packets.",
            "The relay reads streams, in which there are no packets.",
        ),
        Difference(
            ("S169",),
            "Where another program has a base chain of nft at the same priority, the one loaded last decides.",
            "The rules stand in iptables' own chains, which have nft's priorities dstnat and srcnat.",
        ),
        Difference(
            ("S170",),
            "Rules for source NAT of the node's own packets also apply to the relay's connections.",
            "The relay connects to endpoints as any process of the node does.",
        ),
        Difference(
            ("S173",),
            "A Service with an endpoint's address and port as external IP takes other Services' connections there.",
            "The relay connects to endpoints as any process of the node does.",
        ),
    ),
    port_ranges=True,
    per_address=True,
    relays=True,
    without_rules=lambda config: bool(config.userspace_bind),
    way_out="; or run this mode without rules (--userspace-bind)",
)
