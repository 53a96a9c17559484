"""The ModeSpec of nftables mode: the default, and what the other modes are compared with."""

from typing import Final

from vipwire.config.modes import MetricGroup, ModeSettings
from vipwire.modes.nftables.limits import LACKS
from vipwire.modes.spec import ModeSpec, Tool

MODE: Final = ModeSpec(
    name="nftables",
    driver="vipwire.modes.nftables.driver",
    settings=ModeSettings(periods="nftables", masquerading="nftables", primary_node_ports=True),
    for_whom="anybody with Linux 5.10 or newer: the default. The number of rules does not grow with the Services",
    lacks=LACKS,
    metrics=frozenset(
        {
            MetricGroup.FULL_AND_PARTIAL_SYNCS,
            MetricGroup.NFTABLES_TRANSACTIONS,
            MetricGroup.CONNECTION_TRACKING,
        }
    ),
    page="nftables.md",
    fallback=("iptables", "userspace"),
    tools=(Tool("nft", "shows the rules of nftables mode"),),
    port_ranges=True,
)
