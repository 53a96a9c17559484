"""A rule of iptables-legacy, in the words of iptables-legacy-save, for one packet. Pure."""

from collections.abc import Collection
from typing import Final

from vipwire.errors import DecodeError
from vipwire.inspect.earlier.effects import NOTHING, Effect, Rule, of_target
from vipwire.model.net import Address
from vipwire.modes.xtables.match import PacketHeader, Surroundings, judge
from vipwire.modes.xtables.rule_text import parse_rule
from vipwire.modes.xtables.save import target
from vipwire.plan.resolve import Packet

PRIORITIES: Final = {"raw": -300, "mangle": -150, "nat": -100}
"""The tables whose chains a packet meets before it is routed (include/uapi/linux/netfilter_ipv4.h)."""
_ENDS: Final = frozenset({"ACCEPT", "RETURN", "DROP", "REJECT", "DNAT", "REDIRECT", "NETMAP", "QUEUE", "NFQUEUE"})
_MARK, _STATE = "--mark", "--ctstate"
"""Conditions on what earlier rules and connection tracking have said of the packet."""


class _Node(Surroundings):
    def __init__(self, own: Collection[Address]) -> None:
        self._own = own

    def owns(self, address: Address) -> bool:
        """Report whether an address is one of this node."""
        return address in self._own


def read_legacy_rule(
    text: str, packet: Packet | None, own: Collection[Address], chains: Collection[str], *, tracked: bool
) -> Rule:
    """Tell what a rule may do; `own` are the node's addresses, `chains` those of its table.

    `tracked`: connection tracking has seen the packet, and knows that the connection is new.
    """
    holds = _holds(text, packet, own, unknown={_MARK} if tracked else {_MARK, _STATE})
    name = target(text)
    if holds is False or not name:
        return NOTHING
    certain = holds is True
    if name in chains:
        return Rule(chains=(name,), ends=certain and " -g " in f" {text}")
    untracks = name == "CT" and "--notrack" in text.split()
    effects = frozenset({Effect.UNTRACK}) if untracks else of_target(name) if name not in _PASS else frozenset()
    return Rule(effects, ends=certain and name in _ENDS)


_PASS: Final = frozenset({"ACCEPT", "RETURN"})


def _holds(text: str, packet: Packet | None, own: Collection[Address], *, unknown: Collection[str]) -> bool | None:
    try:
        rule = parse_rule(text)
    except (DecodeError, ValueError):
        return None
    conditions = tuple(each for each in rule.conditions if each.option not in unknown)
    doubtful = bool(rule.unknown) or len(conditions) < len(rule.conditions)
    if packet is None:
        return None if conditions or doubtful else True
    held = judge(conditions, PacketHeader.of(packet), _Node(own)).holds
    return None if held is True and doubtful else held
