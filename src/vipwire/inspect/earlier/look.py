"""Finds the base chains that decide about a packet before vipwire: of nf_tables and of iptables-legacy.

The kernel calls a hook's chains by priority, but all nat chains together at -100, ordered among each other by their
priorities (docs/design/0019). Of equal priorities the chain registered last comes first; the kernel does not report
that order, so such a chain counts as earlier.

All chains before vipwire's translation count. Between translation and vipwire's masquerading, only source NAT and
changes of vipwire's masquerade mark count.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vipwire.config.configuration import Config
from vipwire.errors import CommitError, DecodeError
from vipwire.inspect.earlier.effects import (
    NOTHING,
    RuleEffect,
    RuleOutcome,
    describe_effects,
    effects_of,
    find_mark_effects,
    find_target_effects,
)
from vipwire.inspect.earlier.interfaces import InterfaceProgram, is_bridge, list_interface_programs
from vipwire.inspect.earlier.nf_rule import KnownPacket, read_rule
from vipwire.linux.netlink.message import encode_string
from vipwire.linux.netlink.nftables import decode, encode, wire
from vipwire.linux.netlink.nftables.elements import VerdictData, decode_elements
from vipwire.linux.netlink.nftables.encode import HOOKS
from vipwire.linux.netlink.nftables.wire import NFPROTO, MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Address, Family, family_of
from vipwire.modes.registry import find_selected_mode, load_driver
from vipwire.modes.spec import BEHIND_ALL, MASQUERADES_NOTHING, NatPriorities
from vipwire.modes.xtables.match import PacketHeader, Surroundings, evaluate_conditions, parse_masked
from vipwire.modes.xtables.ownership import RuleOwner
from vipwire.modes.xtables.rule_text import parse_rule
from vipwire.modes.xtables.save import find_rule_target, read_table
from vipwire.modes.xtables.tool import RuleTool, Variant, find_tools_with_tables, list_legacy_tables
from vipwire.plan.plan import Target
from vipwire.plan.resolve import Packet

_INET, _NETDEV, _BRIDGE = 1, 5, 7
_NAT, _SOURCE_NAT = -100, 100
"""The priorities at which the kernel calls all nat chains of prerouting and output, of input and postrouting."""
_CONNTRACK: Final = -200
_SECONDS: Final = 10
_MANY: Final = 3
_NAMES: Final = {
    _INET: "inet",
    _NETDEV: "netdev",
    _BRIDGE: "bridge",
    NFPROTO[Family.IPV4]: "ip",
    NFPROTO[Family.IPV6]: "ip6",
}
_PLACES: Final = {
    **{(family, number): hook for hook, number in HOOKS.items() for family in (_INET, *NFPROTO.values())},
    # A bridge's chains at other hooks see packets that leave this node or are bridged past it.
    (_INET, 5): "ingress",
    (_NETDEV, 0): "ingress",
    (_BRIDGE, 0): "ingress",
    (_BRIDGE, 1): "ingress",
}
"""The nft name of each hook at which a packet meets a chain, by the chain's family and hook number."""
_LEGACY: Final = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
_PRIORITIES: Final = {"raw": -300, "mangle": -150, "nat": -100, "security": 50}
"""The priorities of iptables' tables (include/uapi/linux/netfilter_ipv4.h); all others have 0."""
_SOURCE_HOOKS: Final = frozenset({"input", "postrouting"})
_MARKS: Final = frozenset({RuleEffect.MARK, RuleEffect.UNMARK})
_ALL: Final = frozenset(RuleEffect) - {RuleEffect.UNMARK}
_MARK_VALUE: Final = re.compile(r" --set-xmark (\S+)| --restore-mark --nfmask (\S+)")
_PASS: Final = frozenset({"ACCEPT", "RETURN"})
_ENDS: Final = frozenset({"ACCEPT", "RETURN", "DROP", "REJECT", "DNAT", "REDIRECT", "NETMAP", "QUEUE", "NFQUEUE"})
_MARK, _STATE = "--mark", "--ctstate"
"""Conditions on the mark and connection state, which earlier rules and connection tracking set."""
_POLICY: Final = re.compile(r"^:(\S+) DROP\b", re.MULTILINE)


class EarlierChain(NamedTuple):
    """Another program's base chain that decides before vipwire; `table` has its family, as nft writes it.

    For a program at interfaces, `table` says its sort and its interfaces.
    """

    family: Family
    table: str
    chain: str
    hook: str
    priority: int
    effects: frozenset[RuleEffect]

    def __str__(self) -> str:
        place = f"{self.hook} {self.priority}"
        effects = describe_effects(self.effects)
        return f"chain {self.chain} of table {self.table} ({place}) runs before vipwire and may {effects}"

    @property
    def document(self) -> dict[str, Any]:
        return {
            "family": self.family.value,
            "table": self.table,
            "chain": self.chain,
            "hook": self.hook,
            "priority": self.priority,
            "may": [each.value for each in RuleEffect if each in self.effects],
        }


class EarlierProgram(EarlierChain):
    """A program at interfaces, which may do anything to a packet."""

    def __str__(self) -> str:
        return (
            f"{self.chain} of {self.table} ({self.hook}) runs before vipwire and may {describe_effects(self.effects)}"
        )


def find_earlier_chains(
    config: Config,
    families: Iterable[Family],
    packet: Packet | None = None,
    targets: Collection[Target] = (),
    own: Collection[Address] = (),
) -> tuple[EarlierChain, ...]:
    """Find the chains that decide before the selected mode's: about a packet to one of `targets`, or about any.

    `own` are the node's addresses. Skips what cannot be read.
    """
    found: list[EarlierChain] = []
    mode = find_selected_mode(config)
    driver = load_driver(mode)
    # A mode without rules accepts connections on sockets, which all nat chains precede.
    bare = NatPriorities(BEHIND_ALL, BEHIND_ALL, source=MASQUERADES_NOTHING)
    priorities = bare if mode.without_rules(config) else driver.priorities
    programs = [] if packet is not None and packet.from_node else list_interface_programs()
    for family in families:
        met = _Hooks(priorities, packet, targets, 1 << config.sync.masquerade_bit)
        looking = _Looking(family, priorities.table, driver.owner(family), met, own)
        with suppress(OSError, DecodeError), NetlinkSocket(NETLINK_NETFILTER) as netlink:
            found += looking.find_nf_tables_chains(netlink)
        found += looking.find_legacy_chains()
        found += _find_interface_programs(family, programs, packet.interface if packet is not None else "")
    return tuple(
        sorted(found, key=lambda each: (each.family.value, each.hook, each.priority, each.table, each.chain))
    )


def find_earlier_chains_for(
    config: Config, packet: Packet, targets: Collection[Target], own: Collection[Address]
) -> tuple[EarlierChain, ...]:
    return find_earlier_chains(config, [family_of(packet.destination)], packet, targets, own)


def _find_interface_programs(
    family: Family, programs: Iterable[InterfaceProgram], interface: str
) -> Iterator[EarlierChain]:
    """Yield each program once, with all its interfaces: a CNI may attach one program to every Pod's interface."""
    places: dict[tuple[str, str], list[str]] = {}
    for each in programs:
        if interface in ("", each.interface):
            places.setdefault((each.sort, each.name), []).append(each.interface)
    for (sort, name), held in places.items():
        more = f" and {len(held) - _MANY} more" if len(held) > _MANY else ""
        where = f"{sort} at {', '.join(held[:_MANY])}{more}"
        yield EarlierProgram(family, where, name, "ingress", 0, frozenset({RuleEffect.OTHER}))


class _Meeting(NamedTuple):
    """A packet at a base chain: the effects that count there, and the known facts about the packet.

    `headers` are the packet's, one for each endpoint after translation; empty for any packet. `unmarked`: no bit of
    the packet's mark but vipwire's can be set.
    """

    effects: frozenset[RuleEffect]
    headers: Sequence[PacketHeader]
    tracked: bool
    unmarked: bool = False


class _Hooks:
    """The way of a packet, or of any, through the hooks of a mode with these priorities.

    `mark` is the bit of a packet's mark with which vipwire masquerades.
    """

    def __init__(
        self, priorities: NatPriorities, packet: Packet | None, targets: Collection[Target], mark: int
    ) -> None:
        self._priorities, self.mark = priorities, mark
        self.interface = packet.interface if packet is not None else ""
        self._arriving: list[PacketHeader] = []
        self._translated: list[PacketHeader] = []
        self._met = frozenset({"ingress", "prerouting", "output", "input", "forward", "postrouting"})
        if packet is None:
            return
        self._arriving = [PacketHeader.of(packet)]
        self._translated = [
            PacketHeader(packet, packet.source, each.address, each.port, translated=True) for each in targets
        ]
        self._met = frozenset({"output"} if packet.from_node else {"ingress", "prerouting"})
        if targets:
            self._met |= {"input", "postrouting"} if packet.from_node else {"input", "forward", "postrouting"}

    def find_meeting(self, kind: str, hook: str, priority: int) -> _Meeting | None:
        """Return the packet at a chain whose effects may count; None if the packet meets it too late or never."""
        if hook not in self._met:
            return None
        masquerades = self._priorities.source != MASQUERADES_NOTHING
        effects = _ALL if masquerades else _ALL - _MARKS
        if hook == "ingress":
            return _Meeting(effects, self._arriving, tracked=False)
        if hook in _SOURCE_HOOKS and kind == "nat":
            # In iptables' own chain, CNI plugins and kubelet insert rules for their marks before vipwire's jump.
            # Packets to Services do not have those marks.
            shared = self._priorities.source == _SOURCE_NAT
            meeting = _Meeting(effects, self._translated, tracked=True, unmarked=shared)
            return meeting if priority <= self._priorities.source else None
        last = self.find_last_priority(hook)
        if hook in ("prerouting", "output") and priority <= (last if kind == "nat" else max(last, _NAT)):
            return _Meeting(effects, self._arriving, tracked=priority > _CONNTRACK)
        between = hook != "input" and (hook != "postrouting" or priority <= _SOURCE_NAT)
        if kind == "nat" or not between or not masquerades or (self._arriving and not self._translated):
            return None
        return _Meeting(_MARKS, self._translated, tracked=True)

    def find_last_priority(self, hook: str) -> int:
        """Return the priority at which vipwire decides about a connection at a hook."""
        if hook in _SOURCE_HOOKS:
            return self._priorities.source
        return self._priorities.output if hook == "output" else self._priorities.prerouting

    def ends_at_ours(self, hook: str) -> bool:
        """Report whether rules after vipwire's jump in the same chain can be ignored: vipwire decides before them."""
        return self.find_last_priority(hook) <= (_SOURCE_NAT if hook in _SOURCE_HOOKS else _NAT)


class _Looking:
    """One reading of a family. `owner` knows the mode's chains in iptables' tables, `table` is the mode's own."""

    def __init__(
        self, family: Family, table: str, owner: RuleOwner | None, hooks: _Hooks, own: Collection[Address]
    ) -> None:
        self._family, self._table, self._owner, self._hooks, self._own = family, table, owner, hooks, own

    def _find_effects(
        self,
        meeting: _Meeting,
        place: tuple[str, str, str],
        rules: Callable[[str], Sequence[RuleOutcome]],
        *,
        drops: bool,
    ) -> frozenset[RuleEffect]:
        table, chain, hook = place

        def ours(name: str) -> bool:
            return self._owner is not None and self._owner.owns_chain(table, name)

        found = effects_of(chain, rules, drops=drops, ours=ours, ends_at_ours=self._hooks.ends_at_ours(hook))
        return found & meeting.effects

    def find_nf_tables_chains(self, netlink: NetlinkSocket) -> Iterator[EarlierChain]:
        families = _INET, _NETDEV, _BRIDGE, NFPROTO[self._family]
        dumped = netlink.dump(MessageType.GETCHAIN, encode.list_tables())
        for chain in [decode.decode_chain(payload) for payload in dumped if payload[0] in families]:
            at = chain.hook
            if at is None or chain.table == self._table:
                continue
            hook = _PLACES.get((chain.family, at.hook), "")
            meeting = self._hooks.find_meeting(at.type, hook, at.priority)
            if meeting is None or (hook == "ingress" and not self._arrives_by_device(chain.family, at.devices)):
                continue
            # At postrouting nft knows no input interface; in a bridge it is the port.
            named = hook != "postrouting" and chain.family != _BRIDGE
            seen = KnownPacket.of(
                meeting.headers, self._hooks.mark, tracked=meeting.tracked, unmarked=meeting.unmarked, iifname=named
            )
            reader = _Reader(netlink, chain.family, chain.table, seen)
            place = chain.table, chain.name, hook
            if effects := self._find_effects(meeting, place, reader.read_rules, drops=at.policy == "drop"):
                table = f"{_NAMES[chain.family]} {chain.table}"
                yield EarlierChain(self._family, table, chain.name, hook, at.priority, effects)

    def _arrives_by_device(self, family: int, devices: Iterable[str]) -> bool:
        """Report whether the packet may arrive by one of an ingress chain's interfaces."""
        name = self._hooks.interface
        if family == _BRIDGE:
            return not name or is_bridge(name)
        return any(
            not name or (name.startswith(each[:-1]) if each.endswith("*") else name == each) for each in devices
        )

    def find_legacy_chains(self) -> Iterator[EarlierChain]:
        """Find the chains of iptables-legacy, if this network namespace has its tables."""
        for tool in find_tools_with_tables(self._family, "cannot read other programs' chains", limit=_SECONDS):
            if tool.variant is Variant.LEGACY:
                for table in list_legacy_tables(self._family):
                    with suppress(CommitError, DecodeError):
                        yield from self._find_in_legacy_table(tool, table)

    def _find_in_legacy_table(self, tool: RuleTool, table: str) -> Iterator[EarlierChain]:
        kind = "nat" if table == "nat" else "filter"
        places = [(hook, _PRIORITIES.get(table, 0)) for hook in HOOKS]
        if kind == "nat":
            places = [(hook, _SOURCE_NAT if hook in _SOURCE_HOOKS else _NAT) for hook in HOOKS]
        met = [
            (*place, meeting) for place in places if (meeting := self._hooks.find_meeting(kind, *place)) is not None
        ]
        if not met:
            return
        text = tool.save(table)
        chains, drops = read_table(text), _POLICY.findall(text)
        for hook, priority, meeting in met:
            name = hook.upper()
            reader = functools.partial(self._read_legacy_rules, chains, meeting)
            if effects := self._find_effects(meeting, (table, name, hook), reader, drops=name in drops):
                where = f"{_LEGACY[self._family]} {table}"
                yield EarlierChain(self._family, where, name, hook, priority, effects)

    def _read_legacy_rules(
        self, chains: Mapping[str, Sequence[str]], meeting: _Meeting, name: str
    ) -> list[RuleOutcome]:
        return [self._read_legacy_rule(text, meeting, chains) for text in chains.get(name, ())]

    def _read_legacy_rule(self, text: str, meeting: _Meeting, chains: Collection[str]) -> RuleOutcome:
        """Return the possible effects of a rule; `chains` are the chains of its table."""
        held = {
            _evaluate_condition(text, each, self._own, meeting, self._hooks.mark)
            for each in meeting.headers or (None,)
        }
        holds = held.pop() if len(held) == 1 else None
        name = find_rule_target(text)
        if holds is False or not name:
            return NOTHING
        certain = holds is True
        if name in chains:
            return RuleOutcome(chains=(name,), ends=certain and " -g " in f" {text}")
        if name == "CT" and "--notrack" in text.split():
            effects = frozenset({RuleEffect.UNTRACK})
        elif written := _MARK_VALUE.search(text):
            value, mask = parse_masked(written[1]) if written[1] else (0, int(written[2], 0))
            effects = find_mark_effects(value, mask, self._hooks.mark)
        else:
            effects = find_target_effects(name) if name not in _PASS else frozenset()
        return RuleOutcome(effects, ends=certain and name in _ENDS)


class _Reader:
    """Reads chains of one nf_tables table only when a rule jumps to them: a table may have very many."""

    def __init__(self, netlink: NetlinkSocket, family: int, table: str, seen: KnownPacket) -> None:
        self._netlink, self._seen, self._table = netlink, seen, table
        self._head = wire.encode_header(family)

    def read_rules(self, chain: str) -> list[RuleOutcome]:
        request = self._head + encode_string(wire.RULE_TABLE, self._table) + encode_string(wire.RULE_CHAIN, chain)
        found = (decode.decode_rule(payload) for payload in self._netlink.dump(MessageType.GETRULE, request))
        here = [each for each in found if (each.table, each.chain) == (self._table, chain)]
        return [read_rule(each.expressions, self._seen, self._read_verdicts) for each in here]

    def _read_verdicts(self, name: str) -> list[VerdictData]:
        request = (
            self._head + encode_string(wire.ELEMENTS_TABLE, self._table) + encode_string(wire.ELEMENTS_SET, name)
        )
        dumped = self._netlink.dump(MessageType.GETSETELEM, request)
        return [each.verdict for payload in dumped for each in decode_elements(payload, 0, 0) if each.verdict]


class _Node(Surroundings):
    def __init__(self, own: Collection[Address]) -> None:
        self._own = own

    def owns_address(self, address: Address) -> bool:
        return address in self._own


def _evaluate_condition(
    text: str, header: PacketHeader | None, own: Collection[Address], meeting: _Meeting, ours: int
) -> bool | None:
    """Judge a rule's conditions for a packet at `meeting`, or for any: True, False, or None if unknown.

    `own` are the node's addresses, `ours` is vipwire's bit of the mark.
    """
    try:
        rule = parse_rule(text)
        marks = [(each, *parse_masked(each.words[0])) for each in rule.conditions if each.option == _MARK]
    except (DecodeError, ValueError, IndexError):
        return None
    if meeting.unmarked and any(not mask & ours and (value != 0) is each.wanted for each, value, mask in marks):
        return False
    unknown = {_MARK} if meeting.tracked else {_MARK, _STATE}
    conditions = tuple(each for each in rule.conditions if each.option not in unknown)
    doubtful = bool(rule.unknown) or len(conditions) < len(rule.conditions)
    if header is None:
        return None if conditions or doubtful else True
    held = evaluate_conditions(conditions, header, _Node(own)).holds
    return None if held is True and doubtful else held
