"""Decodes an upstream server's message record by record. Pure.

dnspython's own decoder refuses a whole message for one record. Here an unreadable record costs only itself, and one
without names is passed on as it is (RFC 3597 3, RFC 5625 4.2). OPT is hop by hop: only its bits of the code count.
"""

import struct
from typing import Final, NamedTuple

import dns.exception
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from vipwire.errors import DecodeError
from vipwire_up.dns.messages.message import HEADER, IN, OPT, find_name_end

_DECODED: Final = frozenset(
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15, 17, 18, 21, 24, 26, 28, 30, 33, 35, 36, 39)  # A to DNAME: RFC 3597 4
)
"""Types whose records may hold compressed names, or addresses: vipwire never passes these on undecoded."""
_LEADING: Final = frozenset((dns.rdatatype.CNAME, dns.rdatatype.DNAME))
_NEGATIVE_TTL: Final = 1 << 31
"""TTLs from here on count as 0 (RFC 2181 8)."""


class Received(NamedTuple):
    """A message's code, flags and records of class IN. `knows_edns`: it has an OPT record."""

    rcode: int
    flags: int
    knows_edns: bool
    answer: list[dns.rrset.RRset]
    authority: list[dns.rrset.RRset]
    additional: list[dns.rrset.RRset]


def decode_received(data: bytes, kind: int) -> Received:
    """Decode a message with one question, for a type.

    Raise DecodeError if its records do not fit into it, or if an answer of the type or a CNAME is unreadable.
    """
    _, flags, _, *counts = HEADER.unpack_from(data)
    rcode, knows_edns, place = flags & 15, False, find_name_end(data, 12) + 4
    sections = list[list[dns.rrset.RRset]]()
    for count in counts:
        found = dict[tuple[dns.name.Name, int, int], dns.rrset.RRset]()
        for _ in range(count):
            end = find_name_end(data, place)
            if not end or len(data) < end + 10:
                raise DecodeError("a record is cut")
            what, klass, ttl, length = struct.unpack_from("!HHIH", data, end)
            after = end + 10 + length
            if after > len(data):
                raise DecodeError("a record is cut")
            if what == OPT:
                rcode, knows_edns = rcode | ttl >> 24 << 4, True
            elif klass == IN:
                try:
                    _add_record(found, data, place, end + 10, after)
                except dns.exception.DNSException as error:
                    if not sections and (what == kind or what in _LEADING):
                        raise DecodeError(f"a record of type {what}: {error}") from error
            place = after
        sections.append([*found.values()])
    return Received(rcode, flags, knows_edns, *sections)


def _add_record(
    found: dict[tuple[dns.name.Name, int, int], dns.rrset.RRset], data: bytes, place: int, start: int, end: int
) -> None:
    """Add the record at `place`, whose content is from `start` to `end`, to the others of its name and type."""
    name, _ = dns.name.from_wire(data, place)
    number, _, ttl, _ = struct.unpack_from("!HHIH", data, start - 10)
    kind = dns.rdatatype.RdataType.make(number)
    try:
        content = dns.rdata.from_wire(dns.rdataclass.IN, kind, data, start, end - start)
    except dns.exception.DNSException:
        if kind in _DECODED:
            raise
        content = dns.rdata.GenericRdata(dns.rdataclass.IN, kind, data[start:end])
    covers = dns.rdatatype.RdataType.make(0) if isinstance(content, dns.rdata.GenericRdata) else content.covers()
    key = name, number, covers
    if key not in found:
        found[key] = dns.rrset.RRset(name, dns.rdataclass.IN, kind, covers)
    found[key].add(content, ttl if ttl < _NEGATIVE_TTL else 0)
