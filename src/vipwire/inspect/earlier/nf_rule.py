"""Evaluates a rule of nf_tables (of nft or iptables-nft) for one packet, expression by expression. Pure.

Follows registers that hold known values: addresses, protocol, port, the interface's name, and that the connection is
new. Everything else is unknown, and a comparison with it may be true. For a packet that may be one of several, the
bytes that all of them share are known.
"""

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.inspect.earlier.effects import NOTHING, RuleEffect, RuleOutcome, find_mark_effects, find_target_effects
from vipwire.linux.netlink.message import collect_attributes, decode_number, decode_text, walk_attributes
from vipwire.linux.netlink.nftables import expressions as nft
from vipwire.linux.netlink.nftables.elements import VerdictData, decode_verdict
from vipwire.linux.netlink.nftables.wire import DATA_VALUE, DATA_VERDICT_ATTRIBUTE, NFPROTO, Code
from vipwire.model.net import Family, family_of
from vipwire.modes.xtables.match import PacketHeader

_Bytes = list[int | None]
_Attributes = Mapping[int, memoryview]
Verdicts = Callable[[str], Iterable[VerdictData]]

_REGISTERS: Final = 64
_META_PROTOCOL, _META_NFPROTO = 1, 15
_ETHERTYPES: Final = {Family.IPV4: b"\x08\x00", Family.IPV6: b"\x86\xdd"}
_ADDRESSES: Final = {Family.IPV4: range(12, 20), Family.IPV6: range(8, 40)}
_NEW: Final = (8).to_bytes(4, sys.byteorder)
"""The connection's state as `ct state` loads it (NF_CT_STATE_BIT of IP_CT_NEW)."""
_RETURNED, _QUEUE = Code.RETURN, 3
_EFFECTS: Final = {
    **dict.fromkeys(("nat", "redir", "masq"), RuleEffect.TRANSLATE),
    "reject": RuleEffect.DROP,
    "queue": RuleEffect.QUEUE,
    **dict.fromkeys(("tproxy", "synproxy", "fwd"), RuleEffect.DIVERT),
    "notrack": RuleEffect.UNTRACK,
}
_ENDING: Final = frozenset({"nat", "redir", "masq", "reject", "queue", "fwd"})
_PASSING: Final = frozenset({"counter", "log", "last", "objref", "dup", "flow_offload"})
_CONNTRACK: Final = struct.Struct("=146x3H")
"""Of struct xt_conntrack_mtinfo2 and 3: match_flags, invert_flags, state_mask."""
_STATE, _STATE_NEW = 1, 8
_ALL: Final = 0xFFFFFFFF
_XT_MARK: Final = struct.Struct("=II")
"""Struct xt_mark_tginfo2: mark, mask."""
_XT_MARKED: Final = struct.Struct("=IIB")
"""Struct xt_mark_mtinfo1: mark, mask, invert."""
_XT_CONNMARK: Final = {1: struct.Struct("=8xIB"), 2: struct.Struct("=8xI2xB")}
"""Of struct xt_connmark_tginfo1 and 2: nfmask, mode."""
_RESTORE: Final = 2


class KnownPacket(NamedTuple):
    """The known bytes of a packet's headers at a hook, and its metadata by nft's key.

    `mark` is the bit of the packet's mark with which vipwire masquerades; if it is `unmarked`, no other bit is set.
    """

    network: _Bytes
    transport: _Bytes
    meta: Mapping[int, _Bytes]
    state: _Bytes
    mark: int
    unmarked: bool

    @classmethod
    def of(
        cls,
        headers: Sequence[PacketHeader],
        mark: int,
        *,
        tracked: bool,
        unmarked: bool = False,
        iifname: bool = True,
    ) -> "KnownPacket":
        """Return the facts that all `headers` share; none if `headers` is empty.

        `tracked`: connection tracking has seen the packet. `iifname`: nft compares the interface at this hook.
        """
        network: _Bytes = [None] * 40
        state: _Bytes = [*_NEW] if tracked else [None] * 4
        if not headers:
            return cls(network, [None] * 4, {}, state, mark, unmarked)
        packet = headers[0].packet
        family = family_of(packet.destination)
        addresses = _ADDRESSES[family]
        network[addresses.start : addresses.stop] = _select_common_bytes(
            [each.source + each.destination for each in headers]
        )
        network[9 if family is Family.IPV4 else 6] = packet.protocol
        meta: dict[int, _Bytes] = {
            nft.META_L4PROTO: [packet.protocol],
            _META_NFPROTO: [NFPROTO[family]],
            _META_PROTOCOL: [*_ETHERTYPES[family]],
        }
        if iifname and (packet.interface or packet.from_node):
            meta[nft.META_IIFNAME] = [*packet.interface.encode().ljust(16, b"\0")]
        ports = _select_common_bytes([each.port.to_bytes(2) for each in headers])
        return cls(network, [None, None, *ports], meta, state, mark, unmarked)


def _select_common_bytes(values: Sequence[bytes]) -> _Bytes:
    """Return the byte at each offset; None where the values differ."""
    return [column[0] if len(set(column)) == 1 else None for column in zip(*values, strict=True)]


def read_rule(expressions: bytes, seen: KnownPacket, verdicts: Verdicts) -> RuleOutcome:
    """Return the possible effects of a rule; an undecodable rule may have any effect."""
    reading = _Reading(seen, verdicts)
    try:
        for _, value in walk_attributes(expressions):
            found = collect_attributes(value)
            reading.evaluate(decode_text(found[1]), collect_attributes(found.get(2, b"")))
            if reading.holds is False:
                return NOTHING
    except (DecodeError, KeyError, IndexError, struct.error):
        return RuleOutcome(frozenset({RuleEffect.OTHER}))
    return RuleOutcome(frozenset(reading.effects), tuple(reading.chains), reading.ends and reading.holds is True)


class _Reading:
    """The state while reading one rule. `holds` is None once a condition is unknown."""

    def __init__(self, seen: KnownPacket, verdicts: Verdicts) -> None:
        self._seen, self._verdicts = seen, verdicts
        self._registers: _Bytes = [None] * _REGISTERS
        self._marks: dict[int, tuple[int, int]] = {}
        """The registers that hold the packet's mark, as value and mask of `find_mark_effects`."""
        self.holds: bool | None = True
        self.effects: set[RuleEffect] = set()
        self.chains: list[str] = []
        self.ends = False

    def evaluate(self, name: str, data: _Attributes) -> None:
        if name in _EFFECTS:
            self.effects.add(_EFFECTS[name])
            self.ends = name in _ENDING
        elif (read := _READ.get(name)) is not None:
            read(self, data)
        elif name not in _PASSING:  # it may end the rule, and change any register
            self._registers, self._marks = [None] * _REGISTERS, {}
            self._record_comparison(None)

    def _record_comparison(self, held: bool | None) -> None:  # noqa: FBT001 - three answers
        if held is not True:
            self.holds = held if held is False else None

    def _load_register(self, register: memoryview, value: _Bytes, length: int = 0) -> None:
        at = _find_register_byte(register)
        self._marks.pop(at, None)
        size = length or len(value)
        self._registers[at : at + size] = (value + [None] * size)[:size]

    def _read_register(self, register: memoryview, size: int) -> _Bytes:
        at = _find_register_byte(register)
        return self._registers[at : at + size]

    def evaluate_payload(self, data: _Attributes) -> None:
        base, offset, length = (decode_number(data[kind]) for kind in (2, 3, 4))
        header = {nft.NETWORK_HEADER: self._seen.network, nft.TRANSPORT_HEADER: self._seen.transport}.get(base, [])
        if 5 not in data:
            self._load_register(data[1], header[offset : offset + length], length)
        elif (base == nft.NETWORK_HEADER and 8 <= offset < 40 and length >= 4) or (
            base == nft.TRANSPORT_HEADER and offset < 4
        ):  # an address or a port is written, not a checksum or a field of one byte
            self.effects.add(RuleEffect.TRANSLATE)

    def evaluate_meta(self, data: _Attributes) -> None:
        is_mark = decode_number(data[2]) == nft.META_MARK
        if 1 in data:
            self._load_register(data[1], self._seen.meta.get(decode_number(data[2]), []), 16)
            if is_mark:
                self._marks[_find_register_byte(data[1])] = 0, 0
        elif is_mark and (written := self._marks.get(_find_register_byte(data[3]))) is not None:
            self.effects |= find_mark_effects(*written, self._seen.mark)

    def evaluate_ct(self, data: _Attributes) -> None:
        if 1 in data:
            self._load_register(data[1], self._seen.state if decode_number(data[2]) == nft.CT_STATE else [], 16)
            if decode_number(data[2]) == nft.CT_MARK:  # a connection's mark does not have vipwire's bit
                self._marks[_find_register_byte(data[1])] = 0, _ALL

    def evaluate_bitwise(self, data: _Attributes) -> None:
        size = decode_number(data[3])
        if 4 not in data or 5 not in data:
            self._load_register(data[2], [], size)
            return
        mask, xor = (collect_attributes(data[kind])[DATA_VALUE] for kind in (4, 5))
        held, marked = self._read_register(data[1], size), self._marks.get(_find_register_byte(data[1]))
        if marked == (0, 0) and self._seen.unmarked and not int.from_bytes(mask, sys.byteorder) & self._seen.mark:
            held = [0] * size
        made = [x if m == 0 else None if h is None else h & m ^ x for h, m, x in zip(held, mask, xor, strict=False)]
        self._load_register(data[2], made, size)
        if marked is not None and size == 4:
            value, changed = marked
            kept, flipped = (int.from_bytes(each, sys.byteorder) for each in (mask, xor))
            self._marks[_find_register_byte(data[2])] = value & kept ^ flipped, changed | ~kept & _ALL

    def evaluate_cmp(self, data: _Attributes) -> None:
        wanted = bytes(collect_attributes(data[3])[DATA_VALUE])
        held, operation = self._read_register(data[1], len(wanted)), decode_number(data[2])
        pairs = list(zip(held, wanted, strict=False))
        if operation in (nft.CMP_EQ, nft.CMP_NEQ):
            same = False if any(h is not None and h != w for h, w in pairs) else None if None in held else True
            self._record_comparison(same if same is None or operation == nft.CMP_EQ else not same)
        elif None in held:
            self._record_comparison(None)
        else:
            self._record_comparison(_ORDERS[operation](bytes(h for h in held if h is not None), wanted))

    def evaluate_range(self, data: _Attributes) -> None:
        first, last = (bytes(collect_attributes(data[kind])[DATA_VALUE]) for kind in (3, 4))
        held = self._read_register(data[1], len(first))
        known = bytes(h for h in held if h is not None)
        inside = None if len(known) < len(first) else first <= known <= last
        self._record_comparison(inside if inside is None or decode_number(data[2]) == 0 else not inside)

    def evaluate_lookup(self, data: _Attributes) -> None:
        if 3 not in data:
            self._record_comparison(None)
        elif decode_number(data[3]) == 0:
            self._record_comparison(None)
            for verdict in self._verdicts(decode_text(data[1])):
                self._record_verdict(verdict)
        else:
            self._load_register(data[3], [], 16)
            self._record_comparison(None)

    def evaluate_immediate(self, data: _Attributes) -> None:
        value = collect_attributes(data[2])
        if decode_number(data[1]) == 0:
            self._record_verdict(decode_verdict(value[DATA_VERDICT_ATTRIBUTE]))
        else:
            self._load_register(data[1], [*value[DATA_VALUE]])
            if len(value[DATA_VALUE]) == 4:
                self._marks[_find_register_byte(data[1])] = int.from_bytes(value[DATA_VALUE], sys.byteorder), _ALL

    def _record_verdict(self, verdict: VerdictData) -> None:
        if verdict.chain:
            self.chains.append(verdict.chain)
        if verdict.code == Code.DROP:
            self.effects.add(RuleEffect.DROP)
        elif verdict.code & 0xFF == _QUEUE and verdict.code > 0:
            self.effects.add(RuleEffect.QUEUE)
        self.ends = verdict.code in (Code.DROP, Code.ACCEPT, Code.GOTO, _RETURNED)

    def match(self, data: _Attributes) -> None:
        name, info = decode_text(data[1]), bytes(data[3])
        if name in ("tcp", "udp"):  # struct xt_tcp and xt_udp begin with the source ports, then the destination ports
            low, high = struct.unpack_from("=2H", info, 4)
            port = bytes(byte for byte in self._seen.transport[2:] if byte is not None)
            inverted = info[11 if name == "tcp" else 8] & 2
            inside = low <= int.from_bytes(port) <= high if len(port) == 2 else None
            # The struct may hold further conditions, so the rule never certainly matches.
            self._record_comparison(None if inside is None or inside is not bool(inverted) else False)
        elif name == "conntrack" and decode_number(data[2]) >= 2 and self._seen.state[0] is not None:
            flags, inverted, states = _CONNTRACK.unpack_from(info)
            new = bool(states & _STATE_NEW) is not bool(inverted & _STATE)
            self._record_comparison(new if flags == _STATE else False if flags & _STATE and not new else None)
        elif name == "mark" and self._seen.unmarked:
            wanted, mask, inverted = _XT_MARKED.unpack_from(info)
            self._record_comparison(None if mask & self._seen.mark else (wanted == 0) is not bool(inverted))
        elif name != "comment":
            self._record_comparison(None)

    def evaluate_target(self, data: _Attributes) -> None:
        name, info = decode_text(data[1]), bytes(data[3])
        found = find_target_effects(name)
        if name == "CT" and info[0] & 1:  # XT_CT_NOTRACK, the first bit of struct xt_ct_target_info
            found = frozenset({RuleEffect.UNTRACK})
        elif name == "MARK" and decode_number(data[2]) >= 2:
            written, changed = _XT_MARK.unpack_from(info)
            found = find_mark_effects(written, changed, self._seen.mark)
        elif name == "CONNMARK" and (layout := _XT_CONNMARK.get(decode_number(data[2]))) is not None:
            changed, mode = layout.unpack_from(info)
            found = find_mark_effects(0, changed, self._seen.mark) if mode == _RESTORE else found
        self.effects |= found
        self.ends = bool(found & {RuleEffect.TRANSLATE, RuleEffect.DROP, RuleEffect.QUEUE})


def _find_register_byte(register: memoryview) -> int:
    """Return a register's first byte: NFT_REG_1 to 4 have 16 bytes, NFT_REG32_00 to 15 four."""
    number = decode_number(register)
    return 16 * (number - 1) if number < 8 else 4 * (number - 8)


_ORDERS: Final[Mapping[int, Callable[[bytes, bytes], bool]]] = {
    2: lambda held, wanted: held < wanted,
    3: lambda held, wanted: held <= wanted,
    4: lambda held, wanted: held > wanted,
    5: lambda held, wanted: held >= wanted,
}
"""NFT_CMP_LT, LTE, GT, GTE."""
_READ: Final[Mapping[str, Callable[[_Reading, _Attributes], None]]] = {
    "payload": _Reading.evaluate_payload,
    "meta": _Reading.evaluate_meta,
    "ct": _Reading.evaluate_ct,
    "bitwise": _Reading.evaluate_bitwise,
    "cmp": _Reading.evaluate_cmp,
    "range": _Reading.evaluate_range,
    "lookup": _Reading.evaluate_lookup,
    "immediate": _Reading.evaluate_immediate,
    "match": _Reading.match,
    "target": _Reading.evaluate_target,
}
