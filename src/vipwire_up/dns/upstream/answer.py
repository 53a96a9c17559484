"""Decodes an upstream server's answer and caches it. Pure; any bytes, or DecodeError.

vipwire keeps the records that belong to the question (its name and the names that CNAMEs lead to, its type, class
IN), and encodes them anew. So an answer is well-formed, and unsolicited records do not reach the client.
"""

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import dns.flags
import dns.message
import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from vipwire.errors import DecodeError
from vipwire_up.dns.messages.message import (
    AA,
    BADVERS,
    CD,
    FORMERR,
    HEADER,
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    OPCODE,
    QR,
    RA,
    SERVFAIL,
    TC,
    Query,
    Reply,
    find_name_end,
)
from vipwire_up.dns.upstream.received import Received, decode_received

LONGEST_TTL: Final = 3600
"""Seconds for which an answer is cached at most."""
LONGEST_DENIAL: Final = 300
"""The same for NXDOMAIN and NODATA, which are cached as long as the SOA record says (RFC 2308 5)."""
BRIEF: Final = 1
"""Seconds for which a failure is cached (RFC 9520)."""
LONGEST_CHAIN: Final = 16
"""CNAMEs of an answer that are followed."""
_ANY: Final = dns.rdatatype.ANY
_LEADING: Final = frozenset((dns.rdatatype.CNAME, dns.rdatatype.DNAME, dns.rdatatype.RRSIG))
_OF_A_ZONE: Final = frozenset((dns.rdatatype.SOA, dns.rdatatype.NS, dns.rdatatype.DS))
_PROOFS: Final = frozenset((dns.rdatatype.NSEC, dns.rdatatype.NSEC3, dns.rdatatype.RRSIG))
_ADDRESSES: Final = frozenset((dns.rdatatype.A, dns.rdatatype.AAAA))
_TARGETS: Final = ("target", "exchange")
"""The fields of records (SRV, NS, MX, SVCB) with names whose addresses are in the additional section."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream answer. `sections` are its records; `lifetime` is in seconds from `stored`, 0 for no caching.

    `is_useful` is false if another server may answer better: this one fails, refuses, or is lame. `is_cut`: records
    are missing. `refuses_edns`: ask without EDNS (RFC 6891 7). `aliases` are the names, in lower case, to which
    CNAMEs lead, one after the other.
    """

    rcode: int
    sections: tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]]
    places: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    lifetime: float
    stored: float
    wire: bytes
    is_useful: bool = False
    is_cut: bool = False
    refuses_edns: bool = False
    aliases: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """The approximate bytes of memory of the answer."""
        return 500 + 2 * len(self.wire) + 100 * sum(map(len, self.sections))

    def build_reply(self, now: float) -> Reply:
        age = max(0, int(now - self.stored))
        parts = [
            tuple(_subtract_age(record, place, age) for record, place in zip(records, places, strict=True))
            for records, places in zip(self.sections, self.places, strict=True)
        ]
        reply = Reply.build(self.rcode, parts[0], parts[1], parts[2], authoritative=False)
        return replace(reply, is_cut=True) if self.is_cut else reply

    def current_records(self, now: float) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Return the answer and authority records with uncompressed names, for use in another message."""
        if not self.wire:
            return (), ()
        age, received = max(0, int(now - self.stored)), decode_received(self.wire, 0)
        return _encode_rrsets(received.answer, age), _encode_rrsets(received.authority, age)


def _encode_rrsets(rrsets: Iterable[dns.rrset.RRset], age: int) -> tuple[bytes, ...]:
    found = []
    for rrset in rrsets:
        for single in rrset:
            one = io.BytesIO()
            alone = dns.rrset.RRset(rrset.name, rrset.rdclass, rrset.rdtype)
            alone.add(single, max(0, rrset.ttl - age))
            alone.to_wire(one)
            found.append(one.getvalue())
    return tuple(found)


def build_failure(now: float) -> Answer:
    """Build the answer SERVFAIL for when no upstream server has answered."""
    return Answer(SERVFAIL, ((), (), ()), ((), (), ()), BRIEF, now, b"")


def is_truncated(data: bytes) -> bool:
    return bool(HEADER.unpack_from(data)[1] & TC)


def is_answer_to(data: bytes, number: int, question: bytes, *, any_case: bool = False) -> bool:
    """Report whether a message has the question's ID and the same bytes as the question.

    With `any_case`, case is ignored.
    """
    if len(data) < 12 + len(question):
        return False
    found, flags, count, *_ = HEADER.unpack_from(data)
    asked = data[12 : 12 + len(question)]
    if any_case:
        same = asked[:-4].lower() == question[:-4].lower() and asked[-4:] == question[-4:]
    else:
        same = asked == question
    return found == number and flags & (QR | OPCODE) == QR and count == 1 and same


def read_answer(data: bytes, query: Query, now: float) -> Answer:
    """Decode an answer that `is_answer_to` accepts with any case; raise DecodeError if it is malformed."""
    try:
        message = decode_received(data, query.type)
        rcode, is_cut = message.rcode, is_truncated(data)
        if rcode > 15 or (rcode not in (NOERROR, NXDOMAIN) and message.answer):
            rcode = SERVFAIL
        chain = _follow_cnames(message.answer, dns.name.from_wire(query.name, 0)[0], query.type)
        kept = _select_records(message, query, chain)
        if rcode not in (NOERROR, NXDOMAIN):
            kept.answer, kept.authority, kept.additional = [], [], []
        wire = kept.to_wire(max_size=65535)
        sections, places = _split_records(wire, 12 + len(query.question))
        is_lame = rcode == NOERROR and not message.answer and not message.flags & (AA | RA)
        return Answer(
            rcode,
            sections,
            places,
            0 if is_cut or is_lame else _compute_lifetime(kept, rcode, query.type),
            now,
            wire,
            is_useful=rcode in (NOERROR, NXDOMAIN) and not is_lame and not is_cut,
            is_cut=is_cut,
            refuses_edns=(rcode in (FORMERR, NOTIMP) and not message.knows_edns) or message.rcode == BADVERS,
            aliases=tuple(each.to_digestable() for each in chain[1:]),
        )
    except Exception as error:
        # dnspython also raises ValueError, IndexError and struct.error for malformed bytes.
        raise DecodeError(f"a malformed answer from upstream: {error or type(error).__name__}") from error


def _select_records(message: Received, query: Query, chain: Sequence[dns.name.Name]) -> dns.message.QueryMessage:
    kind = dns.rdatatype.RdataType.make(query.type)
    kept = dns.message.QueryMessage(id=0)
    kept.flags = dns.flags.QR
    kept.find_rrset(kept.question, chain[0], dns.rdataclass.RdataClass.make(query.klass), kind, create=True)
    wanted = (each for each in message.answer if kind in (_ANY, each.rdtype) or each.rdtype in _LEADING)
    kept.answer = [each for each in wanted if each.name in chain or _is_dname_above(each, chain)]
    kept.authority = [each for each in message.authority if _is_zone_record(each, chain)]
    named = {target for each in (*kept.answer, *kept.authority) for target in _list_targets(each)}
    kept.additional = [each for each in message.additional if each.rdtype in _ADDRESSES and each.name in named]
    return kept


def _follow_cnames(rrsets: Iterable[dns.rrset.RRset], name: dns.name.Name, kind: int) -> list[dns.name.Name]:
    """Return the question's name and all names that its CNAMEs lead to, one after the other."""
    aliases = {each.name: each[0].target for each in rrsets if each.rdtype == dns.rdatatype.CNAME}
    found = [name]
    while kind != dns.rdatatype.CNAME and name in aliases and aliases[name] not in found:
        name = aliases[name]
        found.append(name)
        if len(found) > LONGEST_CHAIN:
            raise DecodeError(f"more than {LONGEST_CHAIN} CNAMEs")
    return found


def _is_dname_above(rrset: dns.rrset.RRset, chain: Sequence[dns.name.Name]) -> bool:
    """Report whether a record is a DNAME above a name of the chain, or its signature."""
    return rrset.rdtype in (dns.rdatatype.DNAME, dns.rdatatype.RRSIG) and any(
        each.is_subdomain(rrset.name) for each in chain
    )


def _is_zone_record(rrset: dns.rrset.RRset, chain: Sequence[dns.name.Name]) -> bool:
    """Report whether a record belongs to a zone above a name of the chain, or proves that a name does not exist."""
    if rrset.rdtype in _PROOFS:
        return True
    return rrset.rdtype in _OF_A_ZONE and any(each.is_subdomain(rrset.name) for each in chain)


def _list_targets(rrset: dns.rrset.RRset) -> Iterator[dns.name.Name]:
    for each in rrset:
        for field in _TARGETS:
            target = getattr(each, field, None)
            if isinstance(target, dns.name.Name):
                yield target


def _split_records(
    data: bytes, place: int
) -> tuple[
    tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]],
    tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
]:
    """Split a message that vipwire encoded into records; return the position of each TTL, too."""
    sections: list[tuple[bytes, ...]] = []
    places: list[tuple[int, ...]] = []
    for count in HEADER.unpack_from(data)[3:]:
        found, offsets = [], []
        for _ in range(count):
            end = find_name_end(data, place)
            _, _, _, length = struct.unpack_from("!HHIH", data, end)
            after = end + 10 + length
            found.append(data[place:after])
            offsets.append(end + 4 - place)
            place = after
        sections.append(tuple(found))
        places.append(tuple(offsets))
    return (sections[0], sections[1], sections[2]), (places[0], places[1], places[2])


def _compute_lifetime(message: dns.message.Message, rcode: int, kind: int) -> float:
    if rcode not in (NOERROR, NXDOMAIN):
        return BRIEF
    # A CNAME that leads to nothing is a denial, too (RFC 2308 2.2).
    denied = rcode == NXDOMAIN or not any(kind in (_ANY, each.rdtype) for each in message.answer)
    sets = [*message.answer, *message.authority]
    least = min((each.ttl for each in sets), default=0)
    if not denied:
        return min(least, LONGEST_TTL)
    soa = next((each for each in message.authority if each.rdtype == dns.rdatatype.SOA), None)
    if soa is None:
        return 0
    minimum: int = soa[0].minimum
    return min(least, minimum, LONGEST_DENIAL)


def _subtract_age(record: bytes, place: int, age: int) -> bytes:
    ttl = int.from_bytes(record[place : place + 4])
    return record[:place] + max(0, ttl - age).to_bytes(4) + record[place + 4 :]


CAPACITY: Final = 10_000
MOST_BYTES: Final = 64 << 20
"""Bytes of all cached answers: clients could ask for many large ones."""


class QuestionKey(NamedTuple):
    """The fields in which two questions with the same answer are equal."""

    name: bytes
    type: int
    klass: int
    do: bool
    unchecked: bool


def key_of(query: Query) -> QuestionKey:
    do = query.edns is not None and query.edns.do
    return QuestionKey(query.name, query.type, query.klass, do, bool(query.flags & CD))


class Cache:
    """Caches at most `capacity` answers of `most_bytes` together; the oldest leaves first."""

    def __init__(self, capacity: int = CAPACITY, most_bytes: int = MOST_BYTES) -> None:
        self._capacity, self._most_bytes = capacity, most_bytes
        self.size = 0
        self._held: dict[QuestionKey, Answer] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: QuestionKey, now: float) -> Answer | None:
        answer = self._held.get(key)
        if answer is None:
            return None
        if now - answer.stored < answer.lifetime:
            return answer
        self._remove(key)
        return None

    def put(self, key: QuestionKey, answer: Answer) -> None:
        if key in self._held:
            self._remove(key)
        if answer.lifetime <= 0 or not self._capacity or answer.size > self._most_bytes:
            return
        while len(self._held) >= self._capacity or self.size + answer.size > self._most_bytes:
            self._remove(next(iter(self._held)))
        self._held[key] = answer
        self.size += answer.size

    def clear(self) -> None:
        self._held.clear()
        self.size = 0

    def _remove(self, key: QuestionKey) -> None:
        self.size -= self._held.pop(key).size
