"""The xtables matches that iptables mode writes: words to the kernel's structs, and back. Pure.

Numbers are in host byte order.
"""

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from vipwire.model.net import Address, Family, format_address
from vipwire.modes.xtables.binary.words import (
    LARGEST_PORT,
    Codec,
    Extension,
    UnknownRuleError,
    look_up,
    text_of,
)

_ANY_PORT: Final = (0, LARGEST_PORT)
_PORTS: Final = re.compile(r"--dport (\d+)(?::(\d+))?")
_NUMBER_OF_CHARACTERS: Final = 256


def _encode_comment(_: Family, words: str) -> bytes:
    text = words[11:-1].encode()
    if not words.startswith('--comment "') or words[-1] != '"' or b'"' in text or b"\\" in text:
        raise UnknownRuleError(f"vipwire writes no such comment: {words!r}")
    if len(text) >= _NUMBER_OF_CHARACTERS:
        raise UnknownRuleError(f"a comment has {len(text)} bytes (allowed: at most {_NUMBER_OF_CHARACTERS - 1})")
    return text.ljust(_NUMBER_OF_CHARACTERS, b"\0")


def _decode_comment(_: Family, data: bytes) -> str:
    text = data.rstrip(b"\0").decode("latin-1")
    if not _QUOTED.fullmatch(text):
        raise UnknownRuleError(f"vipwire writes no such comment: {text!r}")
    return f'--comment "{text}"'


_QUOTED: Final = re.compile(r"(?=.*[^\w-])[ !#-&(-\[\]-~]*", re.ASCII)
"""Comments that iptables-save quotes without escapes (xtables_save_string of xtables.c)."""


def parse_ports(words: str) -> tuple[int, int]:
    """Parse the destination ports of `--dport`; all without it."""
    if not words:
        return _ANY_PORT
    found = _PORTS.fullmatch(words)
    if not found:
        raise UnknownRuleError(f"not a port or a range of them: {words!r}")
    return int(found[1]), int(found[2] or found[1])


def format_ports(first: int, last: int) -> str:
    if (first, last) == _ANY_PORT:
        return ""
    return f"--dport {first}" if first == last else f"--dport {first}:{last}"


_SCTP: Final = struct.Struct("=4H260x12s3I")
_SCTP_DESTINATION_PORTS: Final = 2
_NO_CHUNKS: Final = b"\xff\0\0" * 4


def _port_codec(size: int, layout: str) -> Codec:
    fields = struct.Struct(layout)
    unused = (0,) * (len(fields.unpack(bytes(fields.size))) - 4)

    def read(_: Family, words: str) -> bytes:
        return fields.pack(*_ANY_PORT, *parse_ports(words), *unused)

    return Codec(0, size, read, lambda _, data: format_ports(*fields.unpack_from(data)[2:4]))


def _encode_sctp(_: Family, words: str) -> bytes:
    # Without a port libxt_sctp.c writes zeros and ignores them.
    both = parse_ports(words) if words else (0, 0)
    return _SCTP.pack(*both, 0, 0, _NO_CHUNKS, 0, _SCTP_DESTINATION_PORTS * bool(words), 0)


def _decode_sctp(_: Family, data: bytes) -> str:
    fields = _SCTP.unpack_from(data)
    return format_ports(*fields[:2]) if fields[-2] else ""


_MARK: Final = struct.Struct("=IIB3x")
_MARK_WORDS: Final = re.compile(r"(! )?--mark (0x[0-9a-f]+)/(0x[0-9a-f]+)")


def parse_mark(words: str) -> tuple[int, int, bool]:
    """Parse a match of marks: value, mask, and inversion."""
    found = _MARK_WORDS.fullmatch(words)
    if not found:
        raise UnknownRuleError(f"vipwire writes no such mark: {words!r}")
    return int(found[2], 16), int(found[3], 16), bool(found[1])


def format_mark(value: int, mask: int, *, inverted: bool) -> str:
    return f"{'! ' * inverted}--mark {value:#x}/{mask:#x}"


def _decode_mark(_: Family, data: bytes) -> str:
    value, mask, inverted = _MARK.unpack_from(data)
    return format_mark(value, mask, inverted=bool(inverted))


_STATE: Final = {"INVALID": 1, "ESTABLISHED": 2, "RELATED": 4, "NEW": 8, "SNAT": 64, "DNAT": 128, "UNTRACKED": 256}
_STATE_ORDER: Final = ("INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
_STATE_WORDS: Final = re.compile(r"(! )?--ctstate ([A-Z,]+)")
_CONNTRACK: Final = struct.Struct("=146x4H10x")
_MATCHES_STATE: Final = 1
"""XT_CONNTRACK_STATE."""


def _encode_conntrack(_: Family, words: str) -> bytes:
    found = _STATE_WORDS.fullmatch(words)
    if not found or not _STATE.keys() >= set(found[2].split(",")):
        raise UnknownRuleError(f"not a match of a connection's state that is ours: {words!r}")
    states = sum({_STATE[name] for name in found[2].split(",")})
    return _CONNTRACK.pack(_MATCHES_STATE, _MATCHES_STATE * bool(found[1]), states, 0)


def _decode_conntrack(_: Family, data: bytes) -> str:
    _, inverted, states, _ = _CONNTRACK.unpack_from(data)
    return f"{'! ' * bool(inverted)}--ctstate {','.join(name for name in _STATE_ORDER if states & _STATE[name])}"


_STATISTIC: Final = struct.Struct("=HHIII8x")
_RANDOM, _NTH = 0, 1
_ALWAYS: Final = 0x80000000
_RANDOM_WORDS: Final = re.compile(r"--mode random --probability (\d\.\d{11})")
_NTH_WORDS: Final = re.compile(r"--mode nth --every (\d+) --packet 0")


def _encode_statistic(_: Family, words: str) -> bytes:
    # In mode nth, the kernel starts to count at the last number. iptables sets it to N - 1: the first packet matches.
    if found := _RANDOM_WORDS.fullmatch(words):
        mode, number = _RANDOM, round(float(found[1]) * _ALWAYS)
    elif found := _NTH_WORDS.fullmatch(words):
        mode, number = _NTH, int(found[1]) - 1
    else:
        raise UnknownRuleError(f"vipwire writes no such statistic match: {words!r}")
    return _STATISTIC.pack(mode, 0, number, 0, number)


def _decode_statistic(_: Family, data: bytes) -> str:
    fields = _STATISTIC.unpack_from(data)
    mode, number = fields[0], fields[2]
    if mode == _RANDOM:
        return f"--mode random --probability {number / _ALWAYS:.11f}"
    return f"--mode nth --every {number + 1} --packet 0"


_RECENT: Final = struct.Struct("=IIBB200sBx16s")
_SET, _CHECK_AND_REAP = 2, 1 | 32
_RECENT_WORDS: Final = re.compile(
    r"(?:(--set)|--rcheck --seconds (\d+) --reap) --name ([A-Z0-9-]+) --mask (\S+) --rsource"
)


def _encode_recent(family: Family, words: str) -> bytes:
    found = _RECENT_WORDS.fullmatch(words)
    if not found or found[4] != _write_full_mask(family):
        raise UnknownRuleError(f"vipwire writes no such recent match: {words!r}")
    kind = _SET if found[1] else _CHECK_AND_REAP
    mask = bytes([255] * (family.bits // 8))
    return _RECENT.pack(int(found[2] or 0), 0, kind, 0, found[3].encode(), 0, mask)


def _decode_recent(family: Family, data: bytes) -> str:
    seconds, _, kind, _, name, *_ = _RECENT.unpack_from(data)
    what = "--set" if kind == _SET else f"--rcheck --seconds {seconds} --reap"
    return f"{what} --name {text_of(name)} --mask {_write_full_mask(family)} --rsource"


@lru_cache
def _write_full_mask(family: Family) -> str:
    return format_address(Address(bytes([255] * (family.bits // 8))))


_LOCAL: Final = 1 << 2  # RTN_LOCAL
_ADDRTYPE: Final = {
    "--src-type LOCAL": struct.pack("=HHI", _LOCAL, 0, 0),
    "--dst-type LOCAL": struct.pack("=HHI", 0, _LOCAL, 0),
}
_ADDRTYPES: Final = {data: words for words, data in _ADDRTYPE.items()}


_BYTECODE: Final = re.compile(r'--bytecode "(\d+),([0-9, ]+)"')
_MOST_INSTRUCTIONS: Final = 64
_INSTRUCTION: Final = struct.Struct("=HBBI")
_BPF: Final = struct.Struct("=HHi512s8x")


def _encode_bpf(_: Family, words: str) -> bytes:
    found = _BYTECODE.fullmatch(words)
    steps = [tuple(map(int, step.split())) for step in found[2].split(",")] if found else []
    if not found or len(steps) != int(found[1]) or len(steps) > _MOST_INSTRUCTIONS:
        raise UnknownRuleError(f"vipwire writes no such bpf match: {words!r}")
    try:
        program = b"".join(_INSTRUCTION.pack(*step) for step in steps)
    except struct.error as error:
        raise UnknownRuleError(f"vipwire writes no such bpf match: {words!r}") from error
    return _BPF.pack(0, len(steps), 0, program)


def _decode_bpf(_: Family, data: bytes) -> str:
    mode, count, _, program = _BPF.unpack_from(data)
    if mode or count > _MOST_INSTRUCTIONS:
        raise UnknownRuleError("vipwire writes no such program")
    steps = _INSTRUCTION.iter_unpack(program[: count * _INSTRUCTION.size])
    return f'--bytecode "{count},{",".join("{} {} {} {}".format(*step) for step in steps)}"'


def _encode_nfacct(_: Family, words: str) -> bytes:
    name = words.removeprefix("--nfacct-name ").strip()
    if not re.fullmatch(r"[a-z_]{1,31}", name):
        raise UnknownRuleError(f"vipwire writes no such nfacct match: {words!r}")
    return name.encode().ljust(40, b"\0")


MATCHES: Final[Mapping[str, Codec]] = {
    "comment": Codec(0, 256, _encode_comment, _decode_comment),
    "tcp": _port_codec(16, "=4H4B"),
    "udp": _port_codec(16, "=4HB"),
    "sctp": Codec(0, 296, _encode_sctp, _decode_sctp),
    "mark": Codec(1, 16, lambda _, words: _MARK.pack(*parse_mark(words)), _decode_mark),
    "conntrack": Codec(3, 168, _encode_conntrack, _decode_conntrack),
    "statistic": Codec(0, 24, _encode_statistic, _decode_statistic),
    "recent": Codec(1, 232, _encode_recent, _decode_recent),
    "addrtype": Codec(1, 8, lambda _, words: look_up(_ADDRTYPE, words), lambda _, data: look_up(_ADDRTYPES, data)),
    "bpf": Codec(1, 528, _encode_bpf, _decode_bpf),
    "nfacct": Codec(1, 40, _encode_nfacct, lambda _, data: f"--nfacct-name {text_of(data[:32])}"),
}


def encode_match(family: Family, words: str) -> Extension:
    """Encode a match, without its `-m`."""
    name, _, options = words.partition(" ")
    codec = MATCHES.get(name)
    if codec is None:
        raise UnknownRuleError(f"unknown match: {words!r}")
    return Extension(name, codec.revision, codec.read(family, options).ljust(codec.size, b"\0"))


def decode_match(family: Family, found: Extension) -> str:
    """Decode a match, without its `-m`. Raise UnknownRuleError if the words do not encode to exactly this data."""
    codec = MATCHES.get(found.name)
    if codec is None or (codec.revision, codec.size) != (found.revision, len(found.data)):
        raise UnknownRuleError(f"unknown match: {found.name!r}")
    words = codec.write(family, found.data)
    if codec.read(family, words).ljust(codec.size, b"\0") != found.data:
        raise UnknownRuleError(f"the match has more options than these words: {words!r}")
    return f"{found.name} {words}".rstrip()
