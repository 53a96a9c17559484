"""Constants in rules: addresses, prefixes, protocols, ports, class handles, marks, states, interfaces."""

import re
import struct
from typing import NamedTuple

from vipwire.model.net import Prefix, parse_address
from vipwire.modes.nftables.language.fields import PROTOCOLS, Type
from vipwire.modes.nftables.language.scan import Scanner

_CLASS_ID = re.compile(r"([0-9a-f]{0,4}):([0-9a-f]{1,4})")
_CLASS_WORDS = {"none": 0, "0": 0, "root": 0xFFFFFFFF}  # include/uapi/linux/pkt_sched.h: TC_H_UNSPEC, TC_H_ROOT
CT_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}
CT_STATUSES = {"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512}
_CT_DIRECTIONS = {"original": 0, "reply": 1}
ADDRESS_TYPES = {"unspec": 0, "unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5}
_NAMES = {
    Type.CT_STATE: CT_STATES,
    Type.CT_STATUS: CT_STATUSES,
    Type.CT_DIRECTION: _CT_DIRECTIONS,
    Type.FIB_ADDRESS_TYPE: ADDRESS_TYPES,
    Type.PROTOCOL: PROTOCOLS,
}
_BYTES = frozenset({Type.PROTOCOL, Type.CT_DIRECTION})
_INTERFACE_LENGTH = 16

BITMASKS = frozenset({Type.CT_STATE, Type.CT_STATUS})
"""Types whose values are bits that can be listed with commas."""


class Constant(NamedTuple):
    """A value that a field is compared with.

    `value` may be shorter than the field: then only the field's first bytes count. `mask` is what of it counts, None
    for all.
    """

    value: bytes
    mask: bytes | None = None


def is_class_id(word: str) -> bool:
    """Report whether the first word of an expression is a class handle."""
    return word in _CLASS_WORDS or _CLASS_ID.fullmatch(word) is not None


def parse_constant(words: Scanner, type_: Type) -> Constant:
    """Read the constant that a field of this type is compared with or set to; fail where it does not fit."""
    match type_:
        case Type.IPV4_ADDRESS | Type.IPV6_ADDRESS:
            return _prefix(words, 4 if type_ is Type.IPV4_ADDRESS else 16)
        case Type.INTERFACE_NAME:
            return _interface(words)
        case Type.CLASS_ID:
            return Constant(_class_id(words))
        case Type.SERVICE:
            return Constant(words.number(0xFFFF).to_bytes(2))
        case Type.MARK | Type.INTEGER:
            return Constant(struct.pack("=I", words.number()))
    return Constant(_named(words, type_))


def _named(words: Scanner, type_: Type) -> bytes:
    names = _NAMES[type_]
    value = 0
    listed = words.take("a name").split(",")
    if len(listed) > 1 and type_ not in BITMASKS:
        words.fail_before("declare a named set instead of listing values in the rule")
    for name in listed:
        if name not in names:
            words.fail_before(f"{name!r} is none of {', '.join(names)}")
        value |= names[name]
    return value.to_bytes(1) if type_ in _BYTES else struct.pack("=I", value)


def _prefix(words: Scanner, size: int) -> Constant:
    word = words.take("an address")
    try:
        prefix = Prefix.parse(word) if "/" in word else Prefix.host(parse_address(word))
    except ValueError as error:
        words.fail_before(str(error))
    if len(prefix.network) != size:
        words.fail_before(f"{word} is of the other family")
    whole, part = divmod(prefix.length, 8)
    if prefix.length == 0:
        words.fail_before("a prefix of length 0 matches everything; leave the match out")
    if not part:
        return Constant(prefix.network[:whole])
    bits = size * 8
    ones = (1 << bits) - (1 << (bits - prefix.length))
    return Constant(prefix.network, ones.to_bytes(size))


def _interface(words: Scanner) -> Constant:
    name = words.quoted()
    value = name.encode()
    if not 0 < len(value) < _INTERFACE_LENGTH or value == b"*":
        words.fail_before("an interface's name has 1 to 15 bytes")
    if value.endswith(b"*"):
        return Constant(value[:-1])
    return Constant(value.ljust(_INTERFACE_LENGTH, b"\0"))


def _class_id(words: Scanner) -> bytes:
    word = words.take("a class handle")
    if word in _CLASS_WORDS:
        return struct.pack("=I", _CLASS_WORDS[word])
    match = _CLASS_ID.fullmatch(word)
    if match is None:
        words.fail_before(f"{word!r} is no class handle: none, root or major:minor in hexadecimal")
    return struct.pack("=I", int(match[1] or "0", 16) << 16 | int(match[2], 16))
