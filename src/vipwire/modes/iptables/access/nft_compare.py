"""Tells whether a chain of nf_tables holds just the rules that it should, without taking its rules apart. Pure.

The kernel lists a rule as table, chain, handle, the handle of the rule before it, and expressions
(nf_tables_fill_rule_info). What was asked for is one chain, so that only the expressions can differ, and of these the
numbers of the counter do not matter. A rule with anything beside that has another length.
"""

import struct
from collections.abc import Iterable
from typing import Final

from vipwire.linux.netlink.attributes import TYPE_MASK
from vipwire.linux.netlink.message import HEADER
from vipwire.linux.netlink.nftables import wire
from vipwire.modes.xtables.binary.expressions import COUNTER_NUMBERS, Halves

_ATTRIBUTE: Final = struct.Struct("=HH")
_HANDLE: Final = 12
_NUMBERS: Final = len(COUNTER_NUMBERS)


def expressions_at(request: bytes) -> int:
    """Return how far into its message the first rule of a chain has its expressions; `request` asked for the chain.

    Both begin with a header, the table and the chain.
    """
    return HEADER.size + len(request) + _HANDLE


def holds(dump: bytes, begin: int, rules: Iterable[Halves]) -> bool:
    """Report whether the messages of a dump are just these rules; `begin` is what `expressions_at` says."""
    at, end = 0, len(dump)
    for before, after, _ in rules:
        expressions = at + begin
        counter = expressions + _ATTRIBUTE.size + len(before)
        behind = counter + _NUMBERS
        following = behind + len(after)
        if following > end or HEADER.unpack_from(dump, at)[0] != following - at:
            return False
        size, kind = _ATTRIBUTE.unpack_from(dump, expressions)
        if size != following - expressions or kind & TYPE_MASK != wire.RULE_EXPRESSIONS:
            return False
        if not (dump.startswith(before, expressions + _ATTRIBUTE.size) and dump.startswith(after, behind)):
            return False
        if not at:
            begin += _HANDLE
        at = following
    return at == end
