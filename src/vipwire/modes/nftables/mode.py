"""The ModeSpec of nftables mode, the default mode."""

from typing import Final

from vipwire.config.modes import MetricGroup, ModeSettings
from vipwire.modes.spec import ONLY_IN_USERSPACE, ModeSpec, Tool, only_in_ipvs
from vipwire.plan.annotations import Balancing, Lack

LACKS: Final = (
    Lack(
        "balancing",
        "'least-connections' is not in nftables mode, which does not see connections end: connections go to random "
        "endpoints, by weight",
        (Balancing.LEAST_CONNECTIONS,),
    ),
    ONLY_IN_USERSPACE,
    *only_in_ipvs("packets are translated"),
)


MODE: Final = ModeSpec(
    name="nftables",
    driver="vipwire.modes.nftables.driver",
    inspection="vipwire.modes.nftables.explain.explainer",
    settings=ModeSettings(periods="nftables", masquerading="nftables", primary_node_ports=True),
    for_whom="the default, for all cases that no row below names. The number of rules is constant",
    lacks=LACKS,
    metrics=frozenset(
        {MetricGroup.FULL_AND_PARTIAL_SYNCS, MetricGroup.NFTABLES_TRANSACTIONS, MetricGroup.CONNECTION_TRACKING}
    ),
    page="nftables.md",
    fallback=("iptables", "userspace"),
    tools=(Tool("nft", "shows the rules of nftables mode"),),
    port_ranges=True,
)
