"""Reads an object file of BPF programs, as clang makes them. Pure.

    cgroup/connect4, ...   a program each: instructions of eight bytes
    .rel...                instructions that load the address of a map or of constants
    maps                   attributes of maps, five words each, found by their symbols
    .rodata                constants, which the kernel holds as an array of one element
    license                for the kernel

No BTF and no CO-RE: the programs use only UAPI. Source: the ELF specification; Documentation/bpf/llvm_reloc.rst.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from vipwire.errors import DecodeError

_HEADER: Final = b"\x7fELF\x02\x01"
_RELOCATABLE_BPF: Final = (1, 247)
_PROGBITS, _SYMBOLS, _ABSENT, _RELOCATIONS = 1, 2, 8, 9
_LOAD_64: Final = 1
"""R_BPF_64_64: an instruction of two slots that loads 64 bits."""
_MAP, _MAP_VALUE = 1, 2
"""BPF_PSEUDO_MAP_FD and BPF_PSEUDO_MAP_VALUE, in the source register's field."""


class MapShape(NamedTuple):
    """The attributes of a map in the object file."""

    kind: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


class Relocation(NamedTuple):
    """An instruction that loads an address: at `offset`, that of `symbol` at `value` in `section`."""

    offset: int
    symbol: str
    section: str
    value: int


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object file's instructions by section, relocations, and maps by name."""

    programs: Mapping[str, bytes]
    relocations: Mapping[str, tuple[Relocation, ...]]
    maps: Mapping[str, MapShape]
    constants: bytes
    licence: str

    def link_program(self, section: str, maps: Mapping[str, int], constants: int) -> bytes:
        """Return a program's instructions with descriptors of maps in them; `constants` is that of .rodata."""
        code = bytearray(self.programs[section])
        for each in self.relocations.get(section, ()):
            if each.section == "maps":
                kind, low, high = _MAP, maps[each.symbol], 0
            else:
                (inline,) = struct.unpack_from("<i", code, each.offset + 4)
                kind, low, high = _MAP_VALUE, constants, each.value + inline
            code[each.offset + 1] = code[each.offset + 1] & 0x0F | kind << 4
            struct.pack_into("<i", code, each.offset + 4, low)
            struct.pack_into("<i", code, each.offset + 12, high)
        return bytes(code)

    def maps_of(self, section: str) -> frozenset[str]:
        """Return the names of a program's maps; the constants have no name."""
        found = self.relocations.get(section, ())
        return frozenset(each.symbol if each.section == "maps" else "" for each in found)


class _Section(NamedTuple):
    name: str
    kind: int
    link: int
    target: int
    body: bytes


class _Symbol(NamedTuple):
    name: str
    section: str
    value: int
    size: int


def read_object(data: bytes) -> ObjectFile:
    """Read an object file. Raise DecodeError if malformed, or if the loader lacks a feature."""
    try:
        sections = _read_sections(data)
        symbols = _read_symbols(sections)
        named = {section.name: section.body for section in sections}
        found = ObjectFile(
            {each.name: each.body for each in sections if each.kind == _PROGBITS and each.name.startswith("cgroup/")},
            {
                sections[each.target].name: tuple(_read_relocations(each, symbols))
                for each in _select_sections(sections, _RELOCATIONS)
            },
            {
                each.name: MapShape(*struct.unpack_from("<IIIII", named["maps"], each.value))
                for each in symbols
                if each.section == "maps" and each.size == 20
            },
            named.get(".rodata", b""),
            named.get("license", b"").rstrip(b"\0").decode("ascii"),
        )
    except (struct.error, IndexError, KeyError, ValueError, StopIteration) as error:
        raise DecodeError(f"not an object file of BPF programs: {error}") from error
    return _check_file(found)


def _check_file(found: ObjectFile) -> ObjectFile:
    for section, relocations in found.relocations.items():
        for each in relocations:
            fits = each.offset % 8 == 0 and 0 <= each.offset <= len(found.programs.get(section, b"")) - 16
            known = each.symbol in found.maps if each.section == "maps" else each.section == ".rodata"
            if not fits or not known:
                raise DecodeError(f"{section} of the object file uses {each.symbol or each.section} at {each.offset}")
    return found


def _read_sections(data: bytes) -> list[_Section]:
    if data[:6] != _HEADER or struct.unpack_from("<HH", data, 16) != _RELOCATABLE_BPF:
        raise DecodeError("not a relocatable little-endian object file of BPF programs")
    (at,) = struct.unpack_from("<Q", data, 40)
    each, count, names_at = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, at + index * each) for index in range(count)]
    bodies = [b"" if header[1] == _ABSENT else data[header[4] : header[4] + header[5]] for header in headers]
    return [
        _Section(_read_string(bodies[names_at], header[0]), header[1], header[6], header[7], body)
        for header, body in zip(headers, bodies, strict=True)
    ]


def _select_sections(sections: list[_Section], kind: int) -> Iterator[_Section]:
    return (section for section in sections if section.kind == kind)


def _read_symbols(sections: list[_Section]) -> list[_Symbol]:
    table = next(_select_sections(sections, _SYMBOLS))
    names = sections[table.link].body
    found = []
    for name, _, _, section, value, size in struct.iter_unpack("<IBBHQQ", table.body):
        place = sections[section].name if section < len(sections) else ""
        found.append(_Symbol(_read_string(names, name), place, value, size))
    return found


def _read_relocations(section: _Section, symbols: list[_Symbol]) -> Iterator[Relocation]:
    for offset, what in struct.iter_unpack("<QQ", section.body):
        if what & 0xFFFFFFFF != _LOAD_64:
            raise DecodeError(f"relocation of type {what & 0xFFFFFFFF} in {section.name}")
        symbol = symbols[what >> 32]
        yield Relocation(offset, symbol.name, symbol.section, symbol.value)


def _read_string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("ascii")
