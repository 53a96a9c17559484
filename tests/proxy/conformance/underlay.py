"""The network between the nodes knows no VIP. It says so by itself, but to each host only once a second.

So a rule says it, at once and to all. Where the kernel lacks nf_tables for these families, as User-Mode Linux does,
iptables' legacy tables say it, which needs a route for such a packet: they see only what would be forwarded.
"""

from vipwire_lab import guest_kernel
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.namespaces.topology import UNDERLAY

_TABLE = """
    add table inet vips
    add chain inet vips arriving { type filter hook prerouting priority 0; }
    add chain inet vips unknown
    add set inet vips ours { type ipv6_addr; flags interval; }
    add element inet vips ours { fd00:10:96::/112, 2001:db8:e::/48, 2001:db8:1b::/48 }
    add rule inet vips unknown meta nfproto ipv4 reject with icmp net-unreachable
    add rule inet vips unknown reject with icmpv6 no-route
    add rule inet vips arriving iifname "node-*" ip daddr { 10.96.0.0/16, 198.18.0.0/15 } jump unknown
    add rule inet vips arriving iifname "node-*" ip6 daddr @ours jump unknown
"""
_LEGACY = (
    ("iptables-legacy", "-4", "icmp-net-unreachable", ("10.96.0.0/16", "198.18.0.0/15")),
    ("ip6tables-legacy", "-6", "icmp6-no-route", ("fd00:10:96::/112", "2001:db8:e::/48", "2001:db8:1b::/48")),
)
_ROUTES, _AFTER_CLIENTS = "300", "41000"  # a table, and a priority behind the lab's own


def name_no_vip(lab: Lab) -> None:
    """Have the network between the nodes refuse VIPs that a node sends, without delay."""
    if not guest_kernel.inside():
        lab.run(UNDERLAY, ["nft", _TABLE])
        return
    for program, family, answer, ranges in _LEGACY:
        rule = f"-A FORWARD -i node-+ -d {','.join(ranges)} -j REJECT --reject-with {answer}"
        lab.run(UNDERLAY, [program, *rule.split()])
        routes = [f"route add {each} dev client table {_ROUTES}" for each in ranges]
        rules = [f"rule add iif {node.name} table {_ROUTES} pref {_AFTER_CLIENTS}" for node in lab.topology.nodes]
        lab.run(UNDERLAY, ["ip", family, "-batch", "-"], input="\n".join([*routes, *rules]))
