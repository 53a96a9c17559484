"""The ModeSpec of iptables mode."""

from typing import Final

from vipwire.backends.iptables.limits import LACKS
from vipwire.backends.spec import Difference, ModeSpec, Tool
from vipwire.config.modes import MetricGroup, ModeSettings

MODE: Final = ModeSpec(
    name="iptables",
    driver="vipwire.backends.iptables.driver",
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
            "packets and bytes are counted, with --count-traffic",
            "the nat table sees the first packet of a connection only",
        ),
        Difference(
            ("S155", "S156"),
            "the algorithm maglev chooses by the client's address and port",
            "iptables has no match that looks up a table: instead of maglev it chooses at random, and says so",
        ),
    ),
    tools=(Tool("iptables-restore", "iptables mode writes its rules with it", needed=True),),
    port_ranges=True,
    terse=True,
)
