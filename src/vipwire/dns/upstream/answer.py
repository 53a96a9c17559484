"""What an upstream server answered, and for how long it may be told again. Pure.

dnspython reads the message as a whole, and so decides whether it is one; it is kept as whole records, in the order
and the bytes in which they came, so that pointers in them stay right behind a question of the same length.
"""

import io
import struct
from dataclasses import dataclass
from typing import Final

import dns.exception
import dns.message
import dns.rdatatype

from vipwire.dns.message import HEADER, NOERROR, NXDOMAIN, OPT, QR, SERVFAIL, TC, Query, Reply, skip_name
from vipwire.errors import DecodeError

LONGEST_TTL: Final = 3600
"""Seconds for which an answer is kept at most, whatever its TTL."""
LONGEST_DENIAL: Final = 300
"""The same for NXDOMAIN and NODATA, which are kept as long as the SOA record says (RFC 2308 5)."""
BRIEF: Final = 1
"""Seconds for which a failure is kept, so that it is not asked for again by everybody (RFC 9520)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream answer. `sections` are its records; `lifetime` is in seconds from `stored`, 0 for not at all."""

    rcode: int
    sections: tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]]
    places: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    lifetime: float
    stored: float
    wire: bytes

    def reply(self, now: float) -> Reply:
        """Make what is to be told now: the same records with what is left of their TTL."""
        age = max(0, int(now - self.stored))
        parts = [
            tuple(_aged(record, place, age) for record, place in zip(records, places, strict=True))
            for records, places in zip(self.sections, self.places, strict=True)
        ]
        body = b"".join(record for records in parts for record in records)
        return Reply(self.rcode, parts[0], parts[1], parts[2], authoritative=False, body=body)

    def records(self, now: float) -> tuple[bytes, ...]:
        """Give the records of the answer section with full names, to stand in another message."""
        age = max(0, int(now - self.stored))
        found = []
        for rrset in dns.message.from_wire(self.wire, ignore_trailing=True).answer:
            rrset.update_ttl(max(0, rrset.ttl - age))
            for single in rrset:
                one = io.BytesIO()
                alone = type(rrset)(rrset.name, rrset.rdclass, rrset.rdtype)
                alone.add(single, rrset.ttl)
                alone.to_wire(one)
                found.append(one.getvalue())
        return tuple(found)


def failure(now: float) -> Answer:
    """Make the answer that says that nobody upstream has answered."""
    return Answer(SERVFAIL, ((), (), ()), ((), (), ()), BRIEF, now, b"")


def is_truncated(data: bytes) -> bool:
    """Tell whether an answer over UDP asks for another try over TCP."""
    return bool(HEADER.unpack_from(data)[1] & TC)


def answers(data: bytes, number: int, question: bytes) -> bool:
    """Tell whether a message is an answer to the question that was asked with a number: others are ignored."""
    if len(data) < 12 + len(question):
        return False
    found, flags, count, *_ = HEADER.unpack_from(data)
    asked = data[12 : 12 + len(question)]
    same = asked[:-4].lower() == question[:-4] and asked[-4:] == question[-4:]
    return found == number and bool(flags & QR) and count == 1 and same


def read_answer(data: bytes, query: Query, now: float) -> Answer:
    """Read an answer that `answers` the question; raise DecodeError where it is malformed."""
    try:
        message = dns.message.from_wire(data, ignore_trailing=True)
    except (dns.exception.DNSException, ValueError, struct.error) as error:
        raise DecodeError(f"a malformed answer from upstream: {error or type(error).__name__}") from error
    rcode = int(message.rcode())
    if rcode > 15:
        rcode = SERVFAIL
    sections, places = _split(data, 12 + len(query.question))
    return Answer(rcode, sections, places, _lifetime(message, rcode), now, data)


def _split(
    data: bytes, place: int
) -> tuple[
    tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]],
    tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
]:
    """Cut a message into its records, with the place of the TTL in each. What follows OPT is left out with it."""
    sections: list[tuple[bytes, ...]] = []
    places: list[tuple[int, ...]] = []
    open_ = True
    for count in HEADER.unpack_from(data)[3:]:
        found, offsets = [], []
        for _ in range(count):
            end = skip_name(data, place)
            kind, _, _, length = struct.unpack_from("!HHIH", data, end)
            after = end + 10 + length
            open_ = open_ and kind != OPT
            if open_:
                found.append(data[place:after])
                offsets.append(end + 4 - place)
            place = after
        sections.append(tuple(found))
        places.append(tuple(offsets))
    return (sections[0], sections[1], sections[2]), (places[0], places[1], places[2])


def _lifetime(message: dns.message.Message, rcode: int) -> float:
    if rcode not in (NOERROR, NXDOMAIN):
        return BRIEF
    denied = rcode == NXDOMAIN or not message.answer
    sets = [*message.answer, *message.authority]
    least = min((each.ttl for each in sets), default=0)
    if not denied:
        return min(least, LONGEST_TTL)
    soa = next((each for each in message.authority if each.rdtype == dns.rdatatype.SOA), None)
    if soa is None:
        return 0
    minimum: int = soa[0].minimum
    return min(least, minimum, LONGEST_DENIAL)


def _aged(record: bytes, place: int, age: int) -> bytes:
    ttl = int.from_bytes(record[place : place + 4])
    return record[:place] + max(0, ttl - age).to_bytes(4) + record[place + 4 :]
