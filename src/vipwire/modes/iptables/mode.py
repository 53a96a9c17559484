"""The ModeSpec of iptables mode."""

from typing import Final

from vipwire.config.modes import MetricGroup, ModeSettings
from vipwire.modes.iptables.limits import LACKS
from vipwire.modes.spec import Difference, ModeSpec, Tool

MODE: Final = ModeSpec(
    name="iptables",
    driver="vipwire.modes.iptables.driver",
    settings=ModeSettings(periods="iptables", masquerading="iptables"),
    for_whom="somebody whose kernel, tools or runbooks speak iptables: kube-proxy's chains and names, "
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
