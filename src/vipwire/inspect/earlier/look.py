"""Finds the base chains that decide about a packet before vipwire: those of nf_tables, and those of iptables-legacy.

The kernel calls the chains of a hook by their priorities, but all nat chains together at -100, where their priorities
order them among each other (docs/design/0019). Of equal priorities the chain that was registered last comes first,
which nobody can read: such a chain counts as earlier.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vipwire.config.configuration import Config
from vipwire.errors import CommitError, DecodeError
from vipwire.inspect.earlier.effects import NOTHING, RuleEffect, RuleOutcome, effects_of, of_target, words
from vipwire.inspect.earlier.nf_rule import KnownPacket, read_rule
from vipwire.linux.netlink.attributes import string
from vipwire.linux.netlink.nftables import decode, encode, wire
from vipwire.linux.netlink.nftables.elements import VerdictData, decode_elements
from vipwire.linux.netlink.nftables.encode import HOOKS
from vipwire.linux.netlink.nftables.wire import NFPROTO, MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Address, Family, family_of
from vipwire.modes.registry import driver_of, selected
from vipwire.modes.spec import BEHIND_ALL, NatPriorities
from vipwire.modes.xtables.match import PacketHeader, Surroundings, judge
from vipwire.modes.xtables.ownership import RuleOwner
from vipwire.modes.xtables.rule_text import parse_rule
from vipwire.modes.xtables.save import read_table, target
from vipwire.modes.xtables.tool import RuleTool, legacy_tables, with_tables
from vipwire.modes.xtables.variant import Variant
from vipwire.plan.resolve import Packet

_INET: Final = 1
_NAT: Final = -100
"""Where the kernel calls all nat chains of prerouting and output."""
_CONNTRACK: Final = -200
_SECONDS: Final = 10
_NAMES: Final = {_INET: "inet", NFPROTO[Family.IPV4]: "ip", NFPROTO[Family.IPV6]: "ip6"}
_LEGACY: Final = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
_PRIORITIES: Final = {"raw": -300, "mangle": -150, "nat": -100}
"""The tables whose chains a packet meets before it is routed (include/uapi/linux/netfilter_ipv4.h)."""
_PASS: Final = frozenset({"ACCEPT", "RETURN"})
_ENDS: Final = frozenset({"ACCEPT", "RETURN", "DROP", "REJECT", "DNAT", "REDIRECT", "NETMAP", "QUEUE", "NFQUEUE"})
_MARK, _STATE = "--mark", "--ctstate"
"""Conditions on what earlier rules and connection tracking have said of the packet."""
_POLICY: Final = re.compile(r"^:(\S+) DROP\b", re.MULTILINE)


class EarlierChain(NamedTuple):
    """A base chain of others that decides before vipwire; `table` with its family as nft writes it."""

    family: Family
    table: str
    chain: str
    hook: str
    priority: int
    effects: frozenset[RuleEffect]

    def __str__(self) -> str:
        place = f"{self.hook} {self.priority}"
        return f"chain {self.chain} of table {self.table} ({place}) runs before vipwire and may {words(self.effects)}"

    @property
    def document(self) -> dict[str, Any]:
        """Describe it with stable names."""
        return {
            "family": self.family.value,
            "table": self.table,
            "chain": self.chain,
            "hook": self.hook,
            "priority": self.priority,
            "may": [each.value for each in RuleEffect if each in self.effects],
        }


def earlier_chains(
    config: Config, families: Iterable[Family], packet: Packet | None = None, own: Collection[Address] = ()
) -> tuple[EarlierChain, ...]:
    """Find the chains that decide before the selected mode's: about a packet, or about any.

    `own` are the node's addresses. What cannot be read is left out.
    """
    found: list[EarlierChain] = []
    mode = selected(config)
    driver = driver_of(mode)
    # Without rules a mode's sockets see what all nat chains have left.
    priorities = NatPriorities(BEHIND_ALL, BEHIND_ALL) if mode.without_rules(config) else driver.priorities
    for family in families:
        looking = _Looking(family, priorities, driver.owner(family), packet, own)
        with suppress(OSError, DecodeError), NetlinkSocket(NETLINK_NETFILTER) as netlink:
            found += looking.nf_tables(netlink)
        found += looking.legacy()
    return tuple(
        sorted(found, key=lambda each: (each.family.value, each.hook, each.priority, each.table, each.chain))
    )


def earlier_for(config: Config, packet: Packet, own: Collection[Address]) -> tuple[EarlierChain, ...]:
    """Find the chains that decide about one packet before the selected mode's."""
    return earlier_chains(config, [family_of(packet.destination)], packet, own)


class _Looking:
    """One look at a family. `owner` knows the chains that the mode has in iptables' tables."""

    def __init__(
        self,
        family: Family,
        priorities: NatPriorities,
        owner: RuleOwner | None,
        packet: Packet | None,
        own: Collection[Address],
    ) -> None:
        self._family, self._priorities, self._owner, self._packet, self._own = family, priorities, owner, packet, own
        self._hooks = (
            ("prerouting", "output") if packet is None else ("output" if packet.from_node else "prerouting",)
        )

    def _before(self, kind: str, hook: str, priority: int) -> bool:
        last = self._priorities.output if hook == "output" else self._priorities.prerouting
        return hook in self._hooks and priority <= (last if kind == "nat" else max(last, _NAT))

    def _effects(
        self, table: str, chain: str, rules: Callable[[str], Sequence[RuleOutcome]], *, drops: bool
    ) -> frozenset[RuleEffect]:
        def ours(name: str) -> bool:
            return self._owner is not None and self._owner.owns(table, name)

        return effects_of(chain, rules, drops=drops, ours=ours, ends_at_ours=self._priorities.prerouting <= _NAT)

    def nf_tables(self, netlink: NetlinkSocket) -> Iterator[EarlierChain]:
        """Find those of nf_tables."""
        names = {number: hook for hook, number in HOOKS.items()}
        families = _INET, NFPROTO[self._family]
        dumped = netlink.dump(MessageType.GETCHAIN, encode.list_tables())
        for chain in [decode.chain(payload) for payload in dumped if payload[0] in families]:
            hook = chain.hook
            if hook is None or chain.table == self._priorities.table:
                continue
            if not self._before(hook.type, names.get(hook.hook, ""), hook.priority):
                continue
            seen = KnownPacket.of(self._packet, tracked=hook.priority > _CONNTRACK)
            reader = _Reader(netlink, chain.family, chain.table, seen)
            if effects := self._effects(chain.table, chain.name, reader.rules, drops=hook.policy == "drop"):
                table = f"{_NAMES[chain.family]} {chain.table}"
                yield EarlierChain(self._family, table, chain.name, names[hook.hook], hook.priority, effects)

    def legacy(self) -> Iterator[EarlierChain]:
        """Find those of iptables-legacy, if this network namespace has tables of it."""
        for tool in with_tables(self._family, "looking for chains of others", limit=_SECONDS):
            if tool.variant is Variant.LEGACY:
                for table in legacy_tables(self._family):
                    with suppress(CommitError, DecodeError):
                        yield from self._legacy_table(tool, table)

    def _legacy_table(self, tool: RuleTool, table: str) -> Iterator[EarlierChain]:
        kind, priority = "nat" if table == "nat" else "filter", _PRIORITIES.get(table, 0)
        hooks = [hook for hook in self._hooks if self._before(kind, hook, priority)]
        if not hooks:
            return
        text = tool.save(table)
        chains, drops = read_table(text), _POLICY.findall(text)
        for hook in hooks:
            name = hook.upper()
            reader = functools.partial(self._legacy_rules, chains, priority > _CONNTRACK)
            if effects := self._effects(table, name, reader, drops=name in drops):
                where = f"{_LEGACY[self._family]} {table}"
                yield EarlierChain(self._family, where, name, hook, priority, effects)

    def _legacy_rules(self, chains: Mapping[str, Sequence[str]], tracked: bool, name: str) -> list[RuleOutcome]:  # noqa: FBT001
        texts = chains.get(name, ())
        return [_read_legacy_rule(text, self._packet, self._own, chains, tracked=tracked) for text in texts]


class _Reader:
    """Reads chains of one nf_tables table, each when a rule leads there: a table may have very many."""

    def __init__(self, netlink: NetlinkSocket, family: int, table: str, seen: KnownPacket) -> None:
        self._netlink, self._seen, self._table = netlink, seen, table
        self._head = wire.header(family)

    def rules(self, chain: str) -> list[RuleOutcome]:
        """Read the rules of a chain."""
        request = self._head + string(wire.RULE_TABLE, self._table) + string(wire.RULE_CHAIN, chain)
        found = (decode.rule(payload) for payload in self._netlink.dump(MessageType.GETRULE, request))
        here = [each for each in found if (each.table, each.chain) == (self._table, chain)]
        return [read_rule(each.expressions, self._seen, self._verdicts) for each in here]

    def _verdicts(self, name: str) -> list[VerdictData]:
        request = self._head + string(wire.ELEMENTS_TABLE, self._table) + string(wire.ELEMENTS_SET, name)
        dumped = self._netlink.dump(MessageType.GETSETELEM, request)
        return [each.verdict for payload in dumped for each in decode_elements(payload, 0, 0) if each.verdict]


class _Node(Surroundings):
    def __init__(self, own: Collection[Address]) -> None:
        self._own = own

    def owns(self, address: Address) -> bool:
        """Report whether an address is one of this node."""
        return address in self._own


def _read_legacy_rule(
    text: str, packet: Packet | None, own: Collection[Address], chains: Collection[str], *, tracked: bool
) -> RuleOutcome:
    """Tell what a rule may do; `own` are the node's addresses, `chains` those of its table.

    `tracked`: connection tracking has seen the packet, and knows that the connection is new.
    """
    holds = _holds(text, packet, own, unknown={_MARK} if tracked else {_MARK, _STATE})
    name = target(text)
    if holds is False or not name:
        return NOTHING
    certain = holds is True
    if name in chains:
        return RuleOutcome(chains=(name,), ends=certain and " -g " in f" {text}")
    untracks = name == "CT" and "--notrack" in text.split()
    effects = frozenset({RuleEffect.UNTRACK}) if untracks else of_target(name) if name not in _PASS else frozenset()
    return RuleOutcome(effects, ends=certain and name in _ENDS)


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
