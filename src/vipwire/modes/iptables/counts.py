"""Reads rule counters without the tools; converts them to counts of Service ports, endpoints and refusals.

Only a rule's place, comment and counter are decoded: from a dump of nf_tables (net/netfilter/nf_tables_api.c), or
from the legacy engine's memory block (struct ipt_replace and ipt_entry, linux/netfilter_ipv4/ip_tables.h). The nat
table sees a connection's first packet, so an endpoint's DNAT rule counts its connections. A rewritten rule starts at
0; `Ledger` keeps earlier numbers, and packets between a scrape and the replacement are lost.
"""

import re
import struct
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import TYPE_MASK
from vipwire.linux.netlink.nftables.wire import RULE_CHAIN, MessageType
from vipwire.linux.netlink.nftables.xtables_rules import list_rules
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.names import ServicePortName
from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_dump import DATAGRAM, list_chains
from vipwire.modes.iptables.rules.names import FILTER, NAT, UNALLOCATED, endpoint_chain
from vipwire.modes.xtables.legacy import LegacySocket
from vipwire.modes.xtables.tool import Variant
from vipwire.plan.plan import Forward, Reason, ServicePlan, Target
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal


class RuleCounter(NamedTuple):
    """A rule with its counter; `place` is its index in the chain, from 0."""

    chain: str
    place: int
    comment: str
    packets: int


def read_counters(
    family: Family, variant: Variant, table: str, chains: Iterable[str] | None = None
) -> list[RuleCounter]:
    """Read the rules of a table's chains, of all chains if `chains` is None. Raise OSError if the kernel refuses."""
    if variant is Variant.LEGACY:
        wanted = None if chains is None else frozenset(chains)
        with closing(LegacySocket(family)) as opened:
            block = bytes(opened.read_entries(table))
        return [rule for rule in _read_legacy_counters(family, block) if wanted is None or rule.chain in wanted]
    found: list[RuleCounter] = []
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        for chain in list_chains(netlink, family)[table] if chains is None else chains:
            found += _read_rule_counters(
                netlink.dump(MessageType.GETRULE, list_rules(family, table, chain), DATAGRAM)
            )
    return found


# nf_tables. Tables have hundreds of thousands of rules, so attributes are found by their first bytes instead of
# decoded one by one: a name is an attribute of type 1, directly followed by its data.
_ATTRIBUTE: Final = struct.Struct("=HH")
_PACKETS_ATTRIBUTE: Final = struct.Struct(">Q")
_COUNTER: Final = _ATTRIBUTE.pack(12, 1) + b"counter\0"
_COUNTER_PACKETS: Final = _ATTRIBUTE.pack(12, 2)
_COMMENT: Final = _ATTRIBUTE.pack(12, 1) + b"comment\0"
_MATCH_INFO: Final = 3
_HEADER: Final = 4


def _read_rule_counters(payloads: Iterable[memoryview]) -> Iterator[RuleCounter]:
    current, name, place = b"", "", 0
    for payload in payloads:
        message = bytes(payload)
        length, _ = _ATTRIBUTE.unpack_from(message, _HEADER)  # the table's name
        at = _HEADER + (length + 3 & ~3)
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind != RULE_CHAIN:
            raise DecodeError("a rule of nf_tables does not say its chain")
        chain = message[at + _HEADER : at + length]
        if chain != current:
            current, name, place = chain, _decode_text(chain), 0
        yield RuleCounter(name, place, _read_comment(message), _read_packet_count(message))
        place += 1


def _read_packet_count(message: bytes) -> int:
    """Return the packets of a rule's counter, the last expression of that name."""
    at = message.rfind(_COUNTER)
    at = message.find(_COUNTER_PACKETS, at) if at >= 0 else -1
    return 0 if at < 0 else int(_PACKETS_ATTRIBUTE.unpack_from(message, at + _HEADER)[0])


def _read_comment(message: bytes) -> str:
    """Return the text of the match `comment`: name, revision, information."""
    at = message.find(_COMMENT)
    while at >= 0:
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind & TYPE_MASK == _MATCH_INFO:
            return _decode_text(message[at + _HEADER : at + length])
        at = at + (length + 3 & ~3) if length >= _HEADER and at + length + _HEADER < len(message) else -1
    return ""


# The legacy engine.
_EXTENSION: Final = struct.Struct("=H 29s B")
_XT_HEADER: Final = 32


class _Shape(NamedTuple):
    """The layout of an entry: places of its offsets, its packet counter and its first match."""

    offsets: int
    packets: int
    matches: int


_SHAPES: Final = {Family.IPV4: _Shape(88, 96, 112), Family.IPV6: _Shape(140, 152, 168)}
_OFFSETS: Final = struct.Struct("=HH")
_PACKETS: Final = struct.Struct("=Q")


def _read_legacy_counters(family: Family, block: bytes) -> Iterator[RuleCounter]:
    """Yield the rules of a table, without the RETURN that the kernel adds at the end of a user-defined chain."""
    shape = _SHAPES[family]
    at, chain, place = 0, "", 0
    while at < len(block):
        target, following = _OFFSETS.unpack_from(block, at + shape.offsets)
        if following < shape.matches or at + following > len(block):
            raise DecodeError(f"a rule of the legacy tables says it is {following} bytes long")
        _, name, _ = _EXTENSION.unpack_from(block, at + target)
        if name.startswith(b"ERROR\0"):
            chain, place = _decode_text(block[at + target + _XT_HEADER : at + following]), 0
        else:
            comment = _find_comment(block, at + shape.matches, at + target)
            yield RuleCounter(chain, place, comment, *_PACKETS.unpack_from(block, at + shape.packets))
            place += 1
        at += following


def _find_comment(block: bytes, at: int, end: int) -> str:
    while at < end:
        size, name, _ = _EXTENSION.unpack_from(block, at)
        if name.startswith(b"comment\0"):
            return _decode_text(block[at + _XT_HEADER : at + size])
        if size < _XT_HEADER:
            raise DecodeError(f"a match of the legacy tables says it is {size} bytes long")
        at += size
    return ""


def _decode_text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace")


TRANSLATING: Final = 1
"""The place of the DNAT rule in an endpoint's chain."""

_ENTRY: Final = re.compile(
    rf"(\S+) (?:({Reason.NO_ENDPOINTS.value})|({Reason.NO_LOCAL_ENDPOINTS.value})"
    r"|(traffic not accepted by KUBE-FW-\S+)|(traffic not accepted by KUBE-NPFW-\S+)|(has no such port))$"
)
_REFUSALS: Final = (
    Refusal.NO_ENDPOINTS,
    Refusal.NO_LOCAL_ENDPOINTS,
    Refusal.SOURCE_RANGE,
    Refusal.NODE_PORT_SOURCE_RANGE,
    Refusal.UNDEFINED_PORT,
)


@dataclass(slots=True)
class _Account:
    """The count of one rule: its last value, and the sum of its former lives."""

    shown: int = 0
    before: int = 0

    def add_shown(self, shown: int) -> int:
        if shown < self.shown:
            self.before += self.shown
        self.shown = shown
        return self.before + shown


@dataclass(slots=True)
class Ledger:
    """The numbers of rules, also of deleted ones. Safe to use from several threads."""

    accounts: dict[Hashable, dict[str, _Account]] = field(default_factory=dict)
    gone: dict[Hashable, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_shown(self, owner: Hashable, shown: Mapping[str, int]) -> dict[str, int]:
        """Store the numbers of an owner's rules; return them plus those of their former lives."""
        accounts = self.accounts.setdefault(owner, {})
        for rule in accounts.keys() - shown.keys():
            account = accounts.pop(rule)
            self.gone[owner] = self.gone.get(owner, 0) + account.before + account.shown
        return {rule: accounts.setdefault(rule, _Account()).add_shown(number) for rule, number in shown.items()}


def map_endpoints_by_port(plans: Iterable[ServicePlan]) -> dict[ServicePortName, dict[str, EndpointName]]:
    """Map each endpoint's chain to the endpoint, by Service port; an endpoint with a port range has two chains."""
    targets: dict[ServicePortName, set[tuple[Target, bool]]] = {}
    for plan in plans:
        ranges = ((each.frontend, True) for each in plan.ranges)
        for frontend, wide in (*((each, False) for each in plan.frontends), *ranges):
            known = targets.setdefault(frontend.port_name, set())
            for action in (frontend.action, frontend.short_circuit):
                if isinstance(action, Forward):
                    known.update((target, wide) for target in action.pool)
    return {
        name: {
            endpoint_chain(name, str(each), wide=wide): EndpointName(name, each.address, each.port)
            for each, wide in known
        }
        for name, known in targets.items()
    }


def count_by_service(
    ends: Mapping[ServicePortName, Mapping[str, EndpointName]],
    tables: Mapping[str, Iterable[RuleCounter]],
    ledger: Ledger,
    *,
    endpoints: bool,
) -> Counts:
    """Convert the rules of the tables nat and filter. Changes only the ledger."""
    shown = {rule.chain: rule.packets for rule in tables[NAT] if rule.place == TRANSLATING}
    counts, names = Counts(endpoints=endpoints), {str(name): name for name in ends}
    refused = Counts()
    for rule in tables[FILTER]:
        for reason, owner in _find_refusal_reason(rule.comment, names):
            refused.add(reason, owner, rule.packets)
    with ledger.lock:
        for name, chains in ends.items():
            counted = ledger.add_shown(name, {chain: shown[chain] for chain in chains if chain in shown})
            counts.add(Measure.CONNECTIONS, name, ledger.gone.get(name, 0))
            for chain, number in counted.items():
                counts.add_endpoint(Measure.CONNECTIONS, chains[chain], number)
        for (reason, owner), number in refused.refusals().items():
            counts.add(reason, owner, ledger.add_shown((reason, owner), {"": number})[""])
    return counts


def _find_refusal_reason(comment: str, names: Mapping[str, ServicePortName]) -> Iterator[tuple[Refusal, Owner]]:
    if comment == UNALLOCATED:
        yield Refusal.UNALLOCATED_CLUSTER_IP, None
    elif match := _ENTRY.match(comment):
        refusal = _REFUSALS[next(at for at, group in enumerate(match.groups()[1:]) if group)]
        if refusal is Refusal.UNDEFINED_PORT:
            yield refusal, None
        elif match[1] in names:
            yield refusal, names[match[1]]
