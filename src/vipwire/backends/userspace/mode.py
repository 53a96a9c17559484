"""The ModeSpec of userspace mode."""

from typing import Final

from vipwire.backends.spec import Difference, ModeSpec
from vipwire.backends.userspace.limits import LACKS
from vipwire.config.configuration import Config
from vipwire.config.modes import ModeSettings


def _without_rules(config: Config) -> bool:
    return bool(config.userspace_bind)


MODE: Final = ModeSpec(
    name="userspace",
    driver="vipwire.backends.userspace.driver",
    settings=ModeSettings(
        periods="iptables", masquerading="iptables", only=("portRange", "udpIdleTimeout", "userspaceBind")
    ),
    for_whom="somebody who has nothing but NAT redirection, or not even that; "
    "another endpoint is tried when one does not answer",
    lacks=LACKS,
    page="userspace.md",
    differences=(
        Difference(
            ("S8",),
            "each new connection chooses at random",
            "a relay deals in turn, which gives the same shares",
        ),
        Difference(
            ("S46",),
            "a Pod of another node counts as a Pod, by ClusterCIDR",
            "a relay's answers come back, so that it would be served in spite of a Local policy: only Pods of this "
            "node count, where its Node object has podCIDRs",
        ),
        Difference(("S92",), "SCTP is served", "SCTP is not relayed"),
        Difference(
            ("S162", "S163", "S164", "S165", "S166", "S167"),
            "endpoints that do not answer are ejected, as annotations say",
            "a relay tries another endpoint at once, and lets one that fails 3 times in a row rest for 10 s; the "
            "annotations are reported",
        ),
        Difference(
            ("S132",),
            "packets are counted, with --count-traffic",
            "a relay sees streams: it counts their bytes, and no packets",
        ),
    ),
    port_ranges=True,
    per_address=True,
    relays=True,
    without_rules=_without_rules,
    way_out="; or let this mode do without rules (--userspace-bind)",
)
