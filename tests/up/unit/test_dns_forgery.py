"""What a server upstream, or somebody who writes in its name, cannot do: have a forged or malformed answer taken."""

import struct

import dns.message
import dns.rrset
import pytest
from tests.fakes.upstream import records, upstream
from tests.up.unit.test_dns_upstream import ANY_NAME, forwarder, question, resolve, zone

from vipwire.errors import DecodeError
from vipwire_up.dns.messages.message import IN, NOERROR, SERVFAIL, TC, Query, encode_answer
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.upstream.answer import Answer, Cache, is_answer_to, key_of, read_answer
from vipwire_up.dns.upstream.exchange import Attempt, Forwarder
from vipwire_up.dns.upstream.exchange import encode_question as message_of

pytestmark = pytest.mark.attack

LONG_NAME = "a-name-with-quite-a-few-letters.example.org"


def wire_record(kind: int, klass: int, data: bytes, owner: bytes = b"\xc0\x0c", ttl: int = 60) -> bytes:
    return owner + struct.pack("!HHIH", kind, klass, ttl, len(data)) + data


def answer_to(query: Query, *parts: bytes, flags: int = 0x8180) -> bytes:
    return struct.pack("!HHHHHH", query.id, flags, 1, len(parts), 0, 0) + query.question + b"".join(parts)


def taken(data: bytes, query: Query) -> Answer | None:
    """Do what the forwarder does with a message."""
    if not is_answer_to(data, query.id, query.question):
        return None
    return read_answer(data, query, 0.0)


def test_an_update_with_a_record_without_contents_is_no_answer() -> None:
    query = question(kind="SOA")
    data = struct.pack("!HHHHHH", query.id, 0xA800, 1, 0, 1, 0) + query.question + wire_record(6, 255, b"")
    assert taken(data, query) is None
    assert not any(read_answer(data, query, 0.0).sections)


@pytest.mark.parametrize("flags", [0x8180 | opcode << 11 for opcode in range(1, 16)])
def test_an_answer_to_another_operation_is_ignored(flags: int) -> None:
    query = question()
    assert taken(answer_to(query, flags=flags), query) is None


def names_of(answer: Answer) -> list[str]:
    told = dns.message.from_wire(encode_answer(question("example.org"), answer.build_reply(0.0)))
    return [rrset.to_text() for section in (told.answer, told.authority, told.additional) for rrset in section]


def test_records_that_nobody_asked_for_are_not_passed_on() -> None:
    query = question("example.org")
    response = dns.message.make_response(dns.message.from_wire(message_of(query, 7)))
    response.answer = [
        dns.rrset.from_text("example.org.", 60, "IN", "CNAME", "www.example.org."),
        dns.rrset.from_text("www.example.org.", 60, "IN", "A", "192.0.2.1"),
        dns.rrset.from_text("bank.example.com.", 60, "IN", "A", "203.0.113.66"),
        dns.rrset.from_text("example.org.", 60, "IN", "TXT", '"not asked"'),
    ]
    response.authority = [
        dns.rrset.from_text("org.", 60, "IN", "NS", "ns.example.org."),
        dns.rrset.from_text("com.", 60, "IN", "NS", "ns.evil.example."),
    ]
    response.additional = [
        dns.rrset.from_text("ns.example.org.", 60, "IN", "A", "192.0.2.2"),
        dns.rrset.from_text("kubernetes.default.svc.cluster.local.", 60, "IN", "A", "203.0.113.66"),
    ]
    assert names_of(read_answer(response.to_wire(), query, 0.0)) == [
        "example.org. 60 IN CNAME www.example.org.",
        "www.example.org. 60 IN A 192.0.2.1",
        "org. 60 IN NS ns.example.org.",
        "ns.example.org. 60 IN A 192.0.2.2",
    ]


def test_a_record_of_another_class_is_not_passed_on() -> None:
    query = question(kind="TXT")
    got = taken(answer_to(query, wire_record(16, 3, b"\1x"), wire_record(16, IN, b"\1y")), query)
    assert got is not None
    assert names_of(got) == ['example.org. 60 IN TXT "y"']


def test_a_ring_of_aliases_ends_and_a_long_chain_is_refused() -> None:
    query = question()
    ring = records("example.org. 60 IN CNAME www.example.org.", "www.example.org. 60 IN CNAME example.org.")
    chain = records(*(f"{'x' * n or 'example.org'}. 60 IN CNAME {'x' * (n + 1)}." for n in range(40)))
    message = dns.message.from_wire(message_of(query, query.id))
    assert read_answer(ring(message, "udp") or b"", query, 0.0).rcode == NOERROR
    with pytest.raises(DecodeError, match="CNAMEs"):
        read_answer(chain(message, "udp") or b"", query, 0.0)


async def test_questions_go_out_in_letters_by_chance_and_small_ones_come_back_to_who_asked() -> None:
    async with upstream(records(ANY_NAME)) as there:
        ours = Resolver(zone(), forwarder(there.server))
        for index in range(3):
            name = f"{index}.{LONG_NAME}"
            got = await resolve(ours, question(name))
            assert [rrset.to_text() for rrset in got.answer] == [f"{name}. 60 IN A 192.0.2.1"]
        assert all(letters != letters.lower() for letters in there.letters)
        assert len({letters.partition(".")[2] for letters in there.letters}) == 3


def lowered(message: dns.message.Message, protocol: str) -> bytes | None:
    """Answer as a server does that keeps no letters."""
    small = dns.message.from_wire(message.to_wire())
    small.question = [dns.rrset.from_text(message.question[0].name.to_text().lower(), 0, "IN", "A")]
    return records(ANY_NAME)(small, protocol)


async def test_a_server_that_changes_letters_is_believed_over_tcp_and_then_asked_in_small_ones() -> None:
    asked: list[Attempt] = []

    async with upstream(lowered) as there:
        ours = forwarder(there.server, witness=asked.append)
        for index in range(2):
            assert (await ours.resolve(question(f"{index}.{LONG_NAME}"))).rcode == NOERROR
        assert [protocol for protocol, _ in there.asked] == ["udp", "tcp", "udp"]
        assert there.letters[2] == there.letters[2].lower()
    assert [each.result for each in asked] == ["suspect", "answered", "answered"]


async def test_an_operator_has_it_ask_in_small_letters_alone() -> None:
    async with upstream(records(ANY_NAME)) as there:
        ours = Forwarder([there.server], Cache(0), mixed=False)
        assert (await ours.resolve(question(LONG_NAME))).rcode == NOERROR
        assert there.letters == [f"{LONG_NAME}."]


async def test_an_answer_in_other_letters_alone_is_not_taken_and_changes_nothing() -> None:
    """Somebody has guessed port and number: the question goes over TCP, and the next one is mixed as ever."""

    def forged_over_udp(message: dns.message.Message, protocol: str) -> bytes | None:
        return lowered(message, protocol) if protocol == "udp" else records("@ 60 IN A 192.0.2.9")(message, protocol)

    async with upstream(forged_over_udp) as there:
        ours = forwarder(there.server)
        for index in range(2):
            got = await ours.resolve(question(f"{index}.{LONG_NAME}"))
            assert got.sections[0][0].endswith(bytes((192, 0, 2, 9)))
        assert [protocol for protocol, _ in there.asked] == ["udp", "tcp"] * 2


async def test_many_wrong_answers_have_the_question_asked_over_tcp() -> None:
    def guessing(message: dns.message.Message, protocol: str) -> bytes | list[bytes] | None:
        good = records(ANY_NAME)(message, protocol) or b""
        return good if protocol == "tcp" else [struct.pack("!H", message.id ^ n) + good[2:] for n in range(1, 50)]

    async with upstream(guessing) as there:
        assert (await forwarder(there.server).resolve(question())).rcode == NOERROR
        assert [protocol for protocol, _ in there.asked] == ["udp", "tcp"]


async def test_all_tries_of_a_question_together_have_a_deadline() -> None:
    async with upstream(lambda _message, _protocol: None) as there:
        ours = forwarder(*[there.server] * 8, deadline=0.5)
        assert (await ours.resolve(question())).rcode == SERVFAIL
        assert len(there.asked) == 1


async def test_an_answer_that_is_cut_over_tcp_too_stays_cut() -> None:
    def cut(message: dns.message.Message, _protocol: str) -> bytes:
        wire = dns.message.make_response(message).to_wire()
        return wire[:2] + struct.pack("!H", int.from_bytes(wire[2:4]) | TC) + wire[4:]

    async with upstream(cut) as there:
        ours = forwarder(there.server)
        assert (await ours.resolve(question())).is_cut
        assert not len(ours.cache)


def test_the_cache_is_bounded_in_bytes_too() -> None:
    cache = Cache(1000, most_bytes=200_000)
    large = records(*(f"@ 60 IN TXT {'x' * 200}{index}" for index in range(40)))
    for index in range(30):
        query = question(f"{index}.example.org", "TXT")
        message = dns.message.from_wire(message_of(query, query.id))
        cache.put(key_of(query), read_answer(large(message, "tcp") or b"", query, 0.0))
    assert 0 < len(cache) < 15
    assert cache.find(key_of(question("29.example.org", "TXT")), 0.0) is not None
    for index in range(30):
        cache.find(key_of(question(f"{index}.example.org", "TXT")), 1e9)
    assert (len(cache), cache.size) == (0, 0)
