"""The fast path: established TCP connections of Services go past the rules, through a flowtable of the kernel. Pure.

    ingress of a device    flowtable fastpath        knows the connection: translate it, send it on. Otherwise the
                                                     packet takes the usual way
    forward             0  filter-forward-offload    translated, TCP, so many packets in both directions: into it

TCP only. A UDP flow has to be deleted when its endpoint goes (semantics S103), and kernels before 6.4 may let nobody
delete a flow that a flowtable has. What ebpf mode's programs have led is not translated, and stays out.
Which devices the flowtable is at is no plan's: see `flowtable`.
"""

import re
from typing import Final

from vipwire.model.net import Family
from vipwire.modes.nftables.language import compile_rule, limit, same_rule
from vipwire.modes.nftables.table.names import CHAIN, FLOWTABLE, Chain, FlowtableSpec, Hook, Object, ObjectKey

FASTPATH: Final = "fastpath"
KEY: Final = (FLOWTABLE, FASTPATH.encode())
ENTRY: Final = (CHAIN, b"filter-forward-offload")


def fastpath_objects(packets: int) -> dict[ObjectKey, Object]:
    """Write what offloads a connection after so many packets; nothing for 0."""
    if not packets:
        return {}
    return {KEY: FlowtableSpec(), ENTRY: Chain((_rule(packets),), Hook("filter", "forward", 0))}


def _rule(packets: int) -> str:
    return f"ct state established ct status dnat meta l4proto tcp ct packets > {packets} flow add @{FASTPATH}"


def threshold(family: Family, expressions: bytes) -> int:
    """Read from a rule in the kernel after how many packets connections are offloaded; 0 if it is another rule."""
    packets = limit(expressions)
    return packets if same_rule(compile_rule(_rule(packets), family), expressions) else 0


def packets_of(entry: Chain) -> int:
    """Read the same from the chain's text."""
    found = (re.search(r" ct packets > (\d+) flow add @", rule) for rule in entry.rules)
    return next((int(match[1]) for match in found if match), 0)
