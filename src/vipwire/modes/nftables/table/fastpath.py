"""The fast path: a flowtable carries established TCP connections of Services past the rules. Pure.

    ingress of a device    flowtable fastpath        known connection: translate and forward the packet; otherwise
                                                     the packet passes the rules
    forward             0  filter-forward-offload    adds TCP connections with DNAT after a number of packets

Only TCP: vipwire must delete a UDP flow when its endpoint goes (semantics S103), and kernels before 6.4 may refuse to
delete a flow of a flowtable. Connections of ebpf mode's programs have no DNAT and are not offloaded. `flowtable`
chooses the devices.
"""

import re
from typing import Final

from vipwire.model.net import Family
from vipwire.modes.nftables.language import compile_rule, find_limit, is_same_rule
from vipwire.modes.nftables.table.names import CHAIN, FLOWTABLE, Chain, FlowtableSpec, Hook, Object, ObjectKey

FASTPATH: Final = "fastpath"
KEY: Final = (FLOWTABLE, FASTPATH.encode())
ENTRY: Final = (CHAIN, b"filter-forward-offload")


def build_fastpath_objects(packets: int) -> dict[ObjectKey, Object]:
    """Write the objects that offload a connection after `packets` packets; none for 0."""
    if not packets:
        return {}
    return {KEY: FlowtableSpec(), ENTRY: Chain((_write_flow_offload_rule(packets),), Hook("filter", "forward", 0))}


def _write_flow_offload_rule(packets: int) -> str:
    return f"ct state established ct status dnat meta l4proto tcp ct packets > {packets} flow add @{FASTPATH}"


def read_threshold(family: Family, expressions: bytes) -> int:
    """Decode the offload threshold from a rule in the kernel; 0 if it is another rule."""
    packets = find_limit(expressions)
    return packets if is_same_rule(compile_rule(_write_flow_offload_rule(packets), family), expressions) else 0


def parse_threshold(entry: Chain) -> int:
    """Decode the offload threshold from the chain's text."""
    found = (re.search(r" ct packets > (\d+) flow add @", rule) for rule in entry.rules)
    return next((int(match[1]) for match in found if match), 0)
