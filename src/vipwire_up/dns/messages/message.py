"""DNS messages: decodes a question, encodes the answer. Pure, and no bytes make it raise.

Questions are small (a header, one question, perhaps EDNS), so the decoder slices bytes instead of building objects.
The answer repeats the question in its original case, because resolvers mix case to detect forged answers
(draft-vixie-dnsext-dns0x20); owners of records point to the question.

RFC 1035 4 (format), RFC 6891 (EDNS), RFC 9619 (there is one question).
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from vipwire_up.dns.messages.names import LONGEST

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
QR, AA, TC, RD, RA, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0010
OPCODE = 0x7800
IN, ANY_CLASS = 1, 255
OPT = 41
DO = 0x8000
OWNER = b"\xc0\x0c"
"""A pointer to the question's name, which begins right after the header."""
HEADER = struct.Struct("!HHHHHH")
_LEADING = frozenset((5, 39, 46))  # CNAME, DNAME, RRSIG
CLASSIC, OURS = 512, 1232
"""Bytes of a UDP answer without EDNS (RFC 1035 4.2.1), and the largest sent or accepted (DNS flag day 2020)."""


class Edns(NamedTuple):
    """The OPT record of a question: its UDP size, its version, its DO bit."""

    size: int
    version: int
    do: bool


class Query(NamedTuple):
    """One question. `question` has the original bytes, `name` is in lower case."""

    id: int
    flags: int
    question: bytes
    name: bytes
    type: int
    klass: int
    edns: Edns | None

    @property
    def limit(self) -> int:
        return CLASSIC if self.edns is None else min(max(self.edns.size, CLASSIC), OURS)


class Refusal(NamedTuple):
    """An invalid question. The server sends `answer`, nothing if it is empty."""

    rcode: int
    answer: bytes


class Run(NamedTuple):
    """The answers from `first` to before `last`; `start` is their first byte, `size` that of each, 0 if unequal."""

    first: int
    last: int
    start: int
    size: int

    def rotate(self, answers: tuple[bytes, ...], turn: int) -> tuple[bytes, ...]:
        cut = self.first + turn % (self.last - self.first)
        return (*answers[: self.first], *answers[cut : self.last], *answers[self.first : cut], *answers[self.last :])


@dataclass(frozen=True, slots=True)
class Reply:
    """The content of an answer: whole encoded records, in order; owners may point to the question's name.

    `run` are the answers that take turns at the beginning. `is_cut`: records are missing from the start on.
    """

    rcode: int = NOERROR
    answers: tuple[bytes, ...] = ()
    authority: tuple[bytes, ...] = ()
    additional: tuple[bytes, ...] = ()
    authoritative: bool = True
    body: bytes = b""
    run: Run | None = None
    is_cut: bool = False

    @classmethod
    def build(
        cls,
        rcode: int,
        answers: tuple[bytes, ...] = (),
        authority: tuple[bytes, ...] = (),
        additional: tuple[bytes, ...] = (),
        *,
        authoritative: bool = True,
    ) -> "Reply":
        """Build a reply; join its records now, since most answers send them all in this order."""
        body = b"".join((*answers, *authority, *additional))
        return cls(rcode, answers, authority, additional, authoritative, body, _find_rotatable_run(answers))


def _find_rotatable_run(answers: tuple[bytes, ...]) -> Run | None:
    """Return the records of one type behind the CNAMEs, if there are several."""
    if len(answers) < 2:
        return None
    kinds = [int.from_bytes(each[(end := find_name_end(each, 0)) : end + 2]) for each in answers]
    first = next((place for place, kind in enumerate(kinds) if kind not in _LEADING), len(kinds))
    last = next((place for place, kind in enumerate(kinds) if place > first and kind != kinds[first]), len(kinds))
    if last - first < 2:
        return None
    lengths = {len(each) for each in answers[first:last]}
    start = sum(map(len, answers[:first]))
    return Run(first, last, start, lengths.pop() if len(lengths) == 1 else 0)


def read_query(data: bytes) -> Query | Refusal:
    """Decode a question. Messages with QR set are not answered, or two servers would answer each other for ever."""
    if len(data) < 12 or data[2] & 0x80:  # QR
        return Refusal(FORMERR, b"")
    number, flags, questions, answers, authorities, additionals = HEADER.unpack_from(data)
    if flags & OPCODE:
        return _build_refusal(number, flags, NOTIMP)
    end = _find_question_end(data, 12)
    if questions != 1 or not end or len(data) < end + 4:
        return _build_refusal(number, flags, FORMERR)
    kind, klass = struct.unpack_from("!HH", data, end)
    edns: Edns | None = None
    if answers or authorities or additionals or len(data) > end + 4:
        found = _read_edns(data, end + 4, answers + authorities, additionals)
        if isinstance(found, str):
            return _build_refusal(number, flags, FORMERR)
        edns = found
    query = Query(number, flags, data[12 : end + 4], data[12:end].lower(), kind, klass, edns)
    if edns is not None and edns.version != 0:
        return Refusal(BADVERS, encode_answer(query, Reply(BADVERS, authoritative=False)))
    return query


def _build_refusal(number: int, flags: int, rcode: int) -> Refusal:
    return Refusal(rcode, HEADER.pack(number, QR | (flags & (OPCODE | RD)) | rcode, 0, 0, 0, 0))


def _find_question_end(data: bytes, place: int) -> int:
    """Return the end of an uncompressed name; 0 if it is cut off, too long, or has a pointer."""
    start, size = place, len(data)
    while place < size:
        length = data[place]
        place += length + 1
        if length == 0:
            return place if place - start <= LONGEST else 0
        if length > 63:
            return 0
    return 0


def find_name_end(data: bytes, place: int) -> int:
    """Return the end of a name that may be compressed; 0 if it is cut off."""
    size = len(data)
    while place < size:
        length = data[place]
        if length >= 0xC0:
            return place + 2 if place + 2 <= size else 0
        if length > 63:
            return 0
        place += length + 1
        if length == 0:
            return place
    return 0


def _read_edns(data: bytes, place: int, before: int, additionals: int) -> Edns | str | None:
    """Walk over the records of a question to its OPT record; a str names the malformed part."""
    found: Edns | None = None
    for index in range(before + additionals):
        end = find_name_end(data, place)
        if not end or len(data) < end + 10:
            return "a record is cut"
        kind, size, _, version, flags, length = struct.unpack_from("!HHBBHH", data, end)
        if kind == OPT:
            if found is not None or index < before or end != place + 1:
                return "the message has two OPT records, or one in the wrong section or with a name"
            if length and not _has_whole_options(data[end + 10 : end + 10 + length]):
                return "an option is cut"
            found = Edns(size, version, bool(flags & DO))
        place = end + 10 + length
    return found if place == len(data) else "too short, or too long"


def _has_whole_options(data: bytes) -> bool:
    place = 0
    while place + 4 <= len(data):
        place += 4 + int.from_bytes(data[place + 2 : place + 4])
    return place == len(data)


def encode_answer(query: Query, reply: Reply, limit: int = 65535, *, turn: int = 0, recursion: bool = False) -> bytes:
    """Encode the answer to a question, of at most `limit` bytes; `turn` rotates answers.

    Records that do not fit are left out, from the end. TC is set unless only optional records are missing.
    """
    edns = b"" if query.edns is None else _encode_opt_record(reply.rcode, do=query.edns.do)
    flags = QR | (query.flags & (RD | CD)) | (reply.rcode & 15)
    if reply.authoritative:
        flags |= AA
    if recursion:
        flags |= RA
    counts = len(reply.answers), len(reply.authority), len(reply.additional)
    body, run = reply.body, reply.run
    if run is not None and run.size:
        count = run.last - run.first
        cut, end = run.start + turn % count * run.size, run.start + count * run.size
        body = body[: run.start] + body[cut:end] + body[run.start : cut] + body[end:]
    elif run is not None:
        body = b"".join((*run.rotate(reply.answers, turn), *reply.authority, *reply.additional))
    if 12 + len(query.question) + len(body) + len(edns) > limit:
        body, counts, cut_short = _fit_records(reply, limit - 12 - len(query.question) - len(edns), turn)
        flags |= TC if cut_short else 0
    if reply.is_cut:
        flags |= TC
    header = HEADER.pack(query.id, flags, 1, counts[0], counts[1], counts[2] + (1 if edns else 0))
    return header + query.question + body + edns


def _fit_records(reply: Reply, room: int, turn: int) -> tuple[bytes, tuple[int, int, int], bool]:
    """Return the records that fit, in order. Without additional records an answer is still complete."""
    answers = reply.run.rotate(reply.answers, turn) if reply.run else reply.answers
    taken: list[bytes] = []
    counts = [0, 0, 0]
    for section, records in enumerate((answers, reply.authority, reply.additional)):
        for record in records:
            if len(record) > room:
                return b"".join(taken), (counts[0], counts[1], counts[2]), section < 2
            room -= len(record)
            taken.append(record)
            counts[section] += 1
    return b"".join(taken), (counts[0], counts[1], counts[2]), False


def _encode_opt_record(rcode: int, *, do: bool) -> bytes:
    return struct.pack("!BHHBBHH", 0, OPT, OURS, rcode >> 4, 0, DO if do else 0, 0)


def encode_record(owner: bytes, kind: int, ttl: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, IN, ttl, len(data)) + data
