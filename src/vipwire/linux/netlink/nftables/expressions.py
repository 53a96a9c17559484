"""Encodes the expressions of rules: a function per kernel expression, named as `nft --debug=netlink` shows them.

`word` is a register's place among the sixteen words of four bytes; an aligned group of four has a number of its own,
which the kernel prefers. Attributes have the kernel's order, with the defaults that it lists and without the nesting
flag, so that the kernel's dump equals the rule sent byte for byte.
"""

import struct
import sys

from vipwire.linux.netlink.message import encode_attribute, encode_string, encode_u32be
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import VerdictData

REGISTER_WORDS = 16

NETWORK_HEADER, TRANSPORT_HEADER = 1, 2
META_PRIORITY, META_MARK, META_IIFNAME, META_L4PROTO = 2, 3, 6, 16
CT_STATE, CT_DIRECTION, CT_STATUS, CT_MARK, CT_DST_IP, CT_DST_IP6 = 0, 1, 2, 3, 20, 22
CT_SRC_IP, CT_SRC_IP6 = 19, 21
CT_PROTO_SRC, CT_PROTO_DST = 11, 12
CT_PACKETS = 14
FIB_ADDRESS_TYPE = 3
FIB_SADDR, FIB_DADDR = 1, 2
NUMGEN_INCREMENTAL, NUMGEN_RANDOM = 0, 1
CMP_EQ, CMP_NEQ, CMP_GT = 0, 1, 4
LOOKUP_INVERTED = 1
DYNSET_UPDATE, DYNSET_DELETE = 1, 2
REJECT_ICMP, REJECT_TCP_RESET = 0, 1
NAT_DNAT = 1
NAT_MAP_ADDRESS, NAT_MAP_PORT, NAT_FULLY_RANDOM = 1, 2, 16


def register(word: int) -> int:
    """Return the register number of a word: an NFT_REG_n where a group of four begins, else an NFT_REG32_nn."""
    return 1 + word // 4 if word % 4 == 0 else 8 + word


def _group(kind: int, *parts: bytes) -> bytes:
    return encode_attribute(kind, b"".join(parts))


def expression(name: str, *parts: bytes) -> bytes:
    return _group(1, encode_string(1, name), _group(2, *parts))


def payload(word: int, base: int, offset: int, length: int) -> bytes:
    return expression(
        "payload",
        encode_u32be(1, register(word)),
        encode_u32be(2, base),
        encode_u32be(3, offset),
        encode_u32be(4, length),
    )


def meta(word: int, key: int) -> bytes:
    return expression("meta", encode_u32be(2, key), encode_u32be(1, register(word)))


def set_meta(word: int, key: int) -> bytes:
    return expression("meta", encode_u32be(2, key), encode_u32be(3, register(word)))


def ct(word: int, key: int, direction: int | None = None) -> bytes:
    """Load a field of the connection; `direction` 0 is that of the first packet, for keys that have one."""
    which = b"" if direction is None else encode_attribute(3, bytes((direction,)))
    return expression("ct", encode_u32be(1, register(word)), encode_u32be(2, key), which)


def fib(word: int, flags: int) -> bytes:
    """Load the type of an address from the routing tables."""
    return expression(
        "fib", encode_u32be(1, register(word)), encode_u32be(2, FIB_ADDRESS_TYPE), encode_u32be(3, flags)
    )


def numgen(word: int, kind: int, modulus: int, offset: int) -> bytes:
    """Load the next, or a random, number from `offset` to `offset + modulus - 1`."""
    return expression(
        "numgen",
        encode_u32be(1, register(word)),
        encode_u32be(2, modulus),
        encode_u32be(3, kind),
        encode_u32be(4, offset),
    )


def jhash(source: tuple[int, int], word: int, modulus: int, seed: int | None, offset: int) -> bytes:
    """Load a hash of `source`: its first word and its length in bytes. Without a seed the kernel draws one."""
    return expression(
        "hash",
        encode_u32be(1, register(source[0])),
        encode_u32be(2, register(word)),
        encode_u32be(3, source[1]),
        encode_u32be(4, modulus),
        b"" if seed is None else encode_u32be(5, seed),
        encode_u32be(6, offset) if offset else b"",
        encode_u32be(7, 0),
    )


def host_to_network(word: int, length: int, size: int) -> bytes:
    """Swap `length` bytes in units of `size`; nft swaps 1 byte in units of 2, which has no effect."""
    both = encode_u32be(1, register(word)), encode_u32be(2, register(word))
    return expression("byteorder", *both, encode_u32be(3, 1), encode_u32be(4, length), encode_u32be(5, size))


def bitwise(word: int, mask: bytes, xor: bytes) -> bytes:
    """Replace a register by `(register & mask) ^ xor`."""
    both = encode_u32be(1, register(word)), encode_u32be(2, register(word))
    values = _group(4, encode_attribute(1, mask)), _group(5, encode_attribute(1, xor))
    return expression("bitwise", *both, encode_u32be(3, len(mask)), encode_u32be(6, 0), *values)


def cmp(word: int, operation: int, value: bytes) -> bytes:
    return expression(
        "cmp", encode_u32be(1, register(word)), encode_u32be(2, operation), _group(3, encode_attribute(1, value))
    )


def in_range(word: int, first: bytes, last: bytes) -> bytes:
    """Continue the rule only if a register is in the range, including both ends."""
    ends = _group(3, encode_attribute(1, first)), _group(4, encode_attribute(1, last))
    return expression("range", encode_u32be(1, register(word)), encode_u32be(2, 0), *ends)


HOST_ORDER = sys.byteorder


def host_order(number: int) -> bytes:
    """Encode a number in host byte order, as the kernel stores marks."""
    return number.to_bytes(4, HOST_ORDER)


def lookup(word: int, name: str, target: int | None = None, *, flags: int = 0) -> bytes:
    """Continue the rule only if the set has the key; load the map's value into the words from `target` on."""
    return _lookup(word, name, None if target is None else register(target), flags)


def lookup_verdict(word: int, name: str) -> bytes:
    return _lookup(word, name, 0, 0)


def _lookup(word: int, name: str, target: int | None, flags: int) -> bytes:
    into = b"" if target is None else encode_u32be(3, target)
    return expression("lookup", encode_string(1, name), encode_u32be(2, register(word)), into, encode_u32be(5, flags))


def immediate(word: int, value: bytes) -> bytes:
    return expression("immediate", encode_u32be(1, register(word)), _group(2, encode_attribute(1, value)))


def verdict(what: VerdictData) -> bytes:
    chain = encode_string(wire.VERDICT_CHAIN, what.chain) if what.chain else b""
    inner = _group(wire.DATA_VERDICT_ATTRIBUTE, encode_u32be(wire.VERDICT_CODE, what.code & 0xFFFFFFFF), chain)
    return expression("immediate", encode_u32be(1, 0), _group(2, inner))


def counter() -> bytes:
    """Count packets and bytes, from zero."""
    return expression("counter", encode_attribute(1, bytes(8)), encode_attribute(2, bytes(8)))


def reject(kind: int, code: int | None) -> bytes:
    """Reject the packet with an ICMP code, or with a TCP reset (`code` None)."""
    return expression("reject", encode_u32be(1, kind), b"" if code is None else encode_attribute(2, bytes((code,))))


def masquerade(flags: int) -> bytes:
    """Replace the connection's source by an address of the output interface."""
    return expression("masq", encode_u32be(1, flags) if flags else b"")


def dnat(family: int, address: int, port: int | None) -> bytes:
    """Set a new destination of the connection; `family` is the NFPROTO number, the others are words."""
    low, high = encode_u32be(3, register(address)), encode_u32be(4, register(address))
    ports = b"" if port is None else encode_u32be(5, register(port)) + encode_u32be(6, register(port))
    flags = NAT_MAP_ADDRESS | (0 if port is None else NAT_MAP_PORT)
    return expression(
        "nat", encode_u32be(1, NAT_DNAT), encode_u32be(2, family), low, high, ports, encode_u32be(7, flags)
    )


def flow_offload(name: str) -> bytes:
    """Add the packet's connection to a flowtable; ends the rule if the kernel cannot."""
    return expression("flow_offload", encode_string(1, name))


def dynset(name: str, operation: int, key: int, data: int | None, timeout: int) -> bytes:
    """Add, update or delete an element; `timeout` in ms, 0 for the set's own."""
    value = b"" if data is None else encode_u32be(5, register(data))
    return expression(
        "dynset",
        encode_u32be(4, register(key)),
        value,
        encode_u32be(3, operation),
        encode_string(1, name),
        encode_attribute(6, struct.pack(">Q", timeout)),
        encode_u32be(9, 0),
    )
