"""The xtables targets that iptables mode writes: words to the kernel's structs, and back. Pure.

Numbers are in host byte order, except DNAT's ports.
"""

import re
import struct
from collections.abc import Mapping
from typing import Final

from vipwire.model.net import Address, Family, format_address
from vipwire.modes.xtables.binary.words import (
    LARGEST_PORT,
    Codec,
    Extension,
    UnknownRuleError,
    address_of,
    look_up,
)

_REJECT: Final = {
    Family.IPV4: {"--reject-with icmp-port-unreachable": 3, "--reject-with tcp-reset": 7},
    Family.IPV6: {"--reject-with icmp6-port-unreachable": 4, "--reject-with tcp-reset": 6},
}


def _encode_reject(family: Family, words: str) -> bytes:
    return struct.pack("=I4x", look_up(_REJECT[family], words))


def _decode_reject(family: Family, data: bytes) -> str:
    return look_up({_encode_reject(family, words): words for words in _REJECT[family]}, data)


_XMARK: Final = re.compile(r"--set-xmark (0x[0-9a-f]+)/(0x[0-9a-f]+)")


def _encode_set_mark(_: Family, words: str) -> bytes:
    found = _XMARK.fullmatch(words)
    if not found:
        raise UnknownRuleError(f"vipwire writes no such mark: {words!r}")
    return struct.pack("=II", int(found[1], 16), int(found[2], 16))


def _decode_set_mark(_: Family, data: bytes) -> str:
    value, mask = struct.unpack_from("=II", data)
    return f"--set-xmark {value:#x}/{mask:#x}"


_RANDOM_FULLY: Final = 16
_MASQUERADES: Final = {"": 0, "--random-fully": _RANDOM_FULLY}


def _encode_masquerade(family: Family, words: str) -> bytes:
    flags = look_up(_MASQUERADES, words)
    return struct.pack("=II12x", 1, flags) if family is Family.IPV4 else struct.pack("=I36x", flags)


def _decode_masquerade(family: Family, data: bytes) -> str:
    size = 20 if family is Family.IPV4 else 40
    return look_up({_encode_masquerade(family, words): words for words in _MASQUERADES}, data[:size])


_NAT_RANGE: Final = struct.Struct("=I16s16s2s2s8x")
_NAT_RANGE_END: Final = 40
_MAP_ADDRESS, _MAP_PORT = 1, 2
_TO: Final = re.compile(r"--to-destination (?:\[([^]\s]+)\]:([0-9]+)|([0-9.]+)(?::([0-9]+))?|([0-9a-f:]+))")


def encode_dnat(family: Family, words: str) -> bytes:
    """Encode a DNAT destination as the whole struct."""
    found = _TO.fullmatch(words)
    if not found:
        raise UnknownRuleError(f"vipwire writes no such DNAT destination: {words!r}")
    bracketed, its_port, ipv4, ipv4_port, ipv6 = found.groups()
    port = its_port or ipv4_port
    address = address_of(family, bracketed or ipv4 or ipv6)
    if port is None:
        return _NAT_RANGE.pack(_MAP_ADDRESS, address, address, b"", b"")
    if int(port) > LARGEST_PORT:
        raise UnknownRuleError(f"not a port: {words!r}")
    number = int(port).to_bytes(2)
    return _NAT_RANGE.pack(_MAP_ADDRESS | _MAP_PORT, address, address, number, number)


def _decode_dnat(family: Family, data: bytes) -> str:
    flags, address, last, port, last_port = _NAT_RANGE.unpack_from(data)
    size = family.bits // 8
    rest = (last, last_port, address[size:], data[_NAT_RANGE_END:], flags & ~_MAP_PORT)
    if rest != (address, port, bytes(16 - size), bytes(len(data) - _NAT_RANGE_END), _MAP_ADDRESS):
        raise UnknownRuleError("vipwire writes no such destination")
    text = format_address(Address(address[:size]))
    if flags & _MAP_PORT:
        text = f"{text if family is Family.IPV4 else f'[{text}]'}:{int.from_bytes(port)}"
    return f"--to-destination {text}"


TARGETS: Final[Mapping[str, Codec]] = {
    "REJECT": Codec(0, 8, _encode_reject, _decode_reject),
    "MARK": Codec(2, 8, _encode_set_mark, _decode_set_mark),
    "MASQUERADE": Codec(0, 24, _encode_masquerade, _decode_masquerade),
    "DNAT": Codec(2, _NAT_RANGE.size, encode_dnat, _decode_dnat),
}
_LONGER: Final = {("MASQUERADE", Family.IPV6): 40}


def encode_target(family: Family, words: str) -> Extension:
    """Encode a target that is not a verdict, without its `-j`."""
    name, _, options = words.partition(" ")
    codec = TARGETS.get(name)
    if codec is None:
        raise UnknownRuleError(f"unknown target: {words!r}")
    return Extension(name, codec.revision, codec.read(family, options).ljust(size_of(family, name), b"\0"))


def decode_target(family: Family, found: Extension) -> str:
    """Decode a target, without its `-j`."""
    codec = TARGETS.get(found.name)
    if codec is None or (codec.revision, size_of(family, found.name)) != (found.revision, len(found.data)):
        raise UnknownRuleError(f"unknown target: {found.name!r}")
    return f"{found.name} {codec.write(family, found.data)}".rstrip()


def size_of(family: Family, name: str) -> int:
    return _LONGER.get((name, family), TARGETS[name].size)
