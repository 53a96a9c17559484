"""The network between the nodes refuses VIPs, but the kernel's own errors reach each host once a second only.

So a rule refuses them, at once and for all. Without nf_tables for these families, as in User-Mode Linux, iptables'
legacy tables do, which need a route for such packets: they see forwarded packets only.
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
    """Let the network between the nodes refuse a node's packets to VIPs without delay."""
    if not guest_kernel.current_guest_kernel():
        lab.run(UNDERLAY, ["nft", _TABLE])
        return
    for program, family, answer, ranges in _LEGACY:
        rule = f"-A FORWARD -i node-+ -d {','.join(ranges)} -j REJECT --reject-with {answer}"
        lab.run(UNDERLAY, [program, *rule.split()])
        routes = [f"route add {each} dev client table {_ROUTES}" for each in ranges]
        rules = [f"rule add iif {node.name} table {_ROUTES} pref {_AFTER_CLIENTS}" for node in lab.topology.nodes]
        lab.run(UNDERLAY, ["ip", family, "-batch", "-"], input="\n".join([*routes, *rules]))
