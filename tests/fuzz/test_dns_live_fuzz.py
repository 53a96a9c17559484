"""A server that really runs, between clients and servers upstream that say anything: it answers the next question.

Messages are drawn by their structure: any operation, code, class and type, counts that lie, records without contents
or with a wrong length, names that point forward, at themselves or in a ring, and contents of one type under another.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator

import dns.message
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fakes.dns_here import Here, dns_here
from tests.fakes.names import service

from vipwire.errors import DecodeError
from vipwire.watched_objects.event import Listed
from vipwire_up.dns.limits import ClientLimits
from vipwire_up.dns.messages.message import HEADER, NOERROR, Query, encode_answer, read_query
from vipwire_up.dns.objects import DnsKind
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.upstream.answer import Cache, is_answer_to, read_answer
from vipwire_up.dns.upstream.exchange import Forwarder, UpstreamServer
from vipwire_up.dns.zone import Zone

pytestmark = pytest.mark.attack

INSIDE, OUTSIDE = "web.shop.svc.cluster.local", "www.example.org"
TYPES = (
    1,
    2,
    5,
    6,
    12,
    13,
    15,
    16,
    24,
    25,
    28,
    29,
    33,
    35,
    39,
    41,
    43,
    46,
    47,
    48,
    50,
    55,
    64,
    65,
    99,
    249,
    250,
    255,
    257,
)
labels = st.sampled_from([b"\3www", b"\7example", b"\3org", b"\1*", b"\x3f" + b"x" * 63]) | st.binary(max_size=3)
pointers = st.integers(0, 600).map(lambda place: struct.pack("!H", 0xC000 | place & 0x3FFF))
names = st.builds(lambda parts, end: b"".join(parts) + end, st.lists(labels, max_size=4), st.just(b"\0") | pointers)
owners = st.just(b"\xc0\x0c") | names
contents = st.one_of(
    st.just(b""),
    names,
    st.binary(max_size=40),
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
    st.builds(lambda a, b, tail: a + b + tail, names, names, st.binary(max_size=20)),
    st.builds(lambda head, name: head + name, st.binary(min_size=2, max_size=6), names),
)


@st.composite
def one_record(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(TYPES) | st.integers(0, 65535))
    klass = draw(st.sampled_from((1, 1, 1, 3, 4, 254, 255, 1232)) | st.integers(0, 65535))
    data: bytes = draw(contents)
    length = draw(st.just(len(data)) | st.integers(0, 65535)) if draw(st.integers(0, 4)) == 0 else len(data)
    ttl = draw(st.sampled_from((0, 1, 60, 2**31 - 1, 2**31, 2**32 - 1)))
    owner: bytes = draw(owners)
    return owner + struct.pack("!HHIH", kind, klass, ttl, length) + data


class Drawn:
    """A message but for its number and question, which are those of the question that it answers, or its own."""

    def __init__(
        self, flags: int, sections: tuple[list[bytes], ...], lie: tuple[int, ...], own: bytes | None
    ) -> None:
        self.flags, self.sections, self.lie, self.own = flags, sections, lie, own

    def __repr__(self) -> str:
        return f"Drawn({self.flags:#x}, {self.sections}, {self.lie}, {self.own!r})"

    def wire(self, number: int, question: bytes) -> bytes:
        counts = [max(0, min(65535, len(part) + lie)) for part, lie in zip(self.sections, self.lie[1:], strict=True)]
        head = HEADER.pack(number, self.flags, min(65535, max(0, 1 + self.lie[0])), *counts)
        asked = question if self.own is None else self.own
        return head + asked + b"".join(record for part in self.sections for record in part)


lies = st.tuples(*[st.sampled_from((0, 0, 0, 0, 0, 0, 1, -1, 65535))] * 4)
sections = st.tuples(*[st.lists(one_record(), max_size=4)] * 3)
flags = st.sampled_from((0x8180, 0x8180, 0x8183, 0x8380, 0xA800, 0x0100)) | st.integers(0, 65535)
messages = st.builds(Drawn, flags, sections, lies, st.none() | st.none() | st.binary(max_size=30))
C5 = Drawn(0xA800, ([], [b"\xc0\x0c" + struct.pack("!HHIH", 6, 255, 0, 0)], []), (0, 0, 0, 0), None)
RING = Drawn(0x8180, ([b"\xc0\x22" + struct.pack("!HHIH", 5, 1, 60, 2) + b"\xc0\x22"], [], []), (0, 0, 0, 0), None)


def query_of(name: str, kind: str, *, do: bool = False, number: int = 7) -> Query:
    read = read_query(dns.message.make_query(name, kind, use_edns=0, want_dnssec=do, id=number).to_wire())
    assert isinstance(read, Query)
    return read


@given(messages, st.sampled_from(("A", "SOA", "ANY", "CNAME", "MX", "NS", "SRV", "TXT", "HTTPS", "TYPE65280")))
@example(C5, "SOA")
@example(RING, "A")
def test_any_message_from_upstream_is_an_answer_that_dnspython_reads_or_nothing(drawn: Drawn, kind: str) -> None:
    query = query_of(OUTSIDE, kind)
    data = drawn.wire(query.id, query.question)
    if is_answer_to(data, query.id, query.question):
        with contextlib.suppress(DecodeError):
            answer = read_answer(data, query, 0.0)
            told = dns.message.from_wire(encode_answer(query, answer.build_reply(1.0)))
            assert told.question[0].name.to_text() == f"{OUTSIDE}."
            answer.current_records(1.0)
            assert answer.size > 0
            assert 0 <= answer.lifetime <= 3600


@given(messages)
def test_any_message_of_a_client_is_a_question_or_refused(drawn: Drawn) -> None:
    query = query_of(INSIDE, "A")
    for data in (drawn.wire(1, query.question), drawn.wire(1, query.question)[:2] + b"\0" + drawn.wire(1, b"")[3:]):
        read = read_query(data)
        if isinstance(read, Query):
            reply = Resolver(Zone("cluster.local"), None).answer_at_once(read)
            assert reply is not None
            dns.message.from_wire(encode_answer(read, reply, read.limit))


class World:
    """A server of ours and one upstream, which says what is put into `says`; and a loop to run them."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.says: Drawn = C5
        self.open = contextlib.AsyncExitStack()
        self.here: Here
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        stream = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.open.push_async_callback(stream.wait_closed)
        self.open.callback(stream.close)
        port = stream.sockets[0].getsockname()[1]
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.open.callback(datagrams.close)
        datagrams.setblocking(False)  # noqa: FBT003  # the socket module's signature
        datagrams.bind(("127.0.0.1", port))
        loop = asyncio.get_running_loop()
        loop.add_reader(datagrams, self._answer, datagrams)
        self.open.callback(loop.remove_reader, datagrams)
        zone = Zone("cluster.local")
        zone.apply(Listed(DnsKind.SERVICE, (service("web", "10.96.0.1"),)))
        zone.apply(Listed(DnsKind.SLICE, ()))
        forwarder = Forwarder([UpstreamServer("127.0.0.1", port)], Cache(0), patience=0.02, deadline=0.1)
        limits = ClientLimits(rate=0, waiting=1000)
        self.here = await self.open.enter_async_context(dns_here(Resolver(zone, forwarder), limits))

    def _answer(self, datagrams: socket.socket) -> None:
        with contextlib.suppress(OSError):
            data, asker = datagrams.recvfrom(65535)
            datagrams.sendto(self._made(data), asker)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            made = self._made(await reader.readexactly(int.from_bytes(await reader.readexactly(2))))
            writer.write(len(made).to_bytes(2) + made)
            await writer.drain()
        writer.close()

    def _made(self, data: bytes) -> bytes:
        return self.says.wire(int.from_bytes(data[:2]), data[12:-11])[:65000]

    def close(self) -> None:
        self.runner.run(self.open.aclose())
        self.runner.close()

    async def try_it(self, question: Drawn, number: int) -> None:
        """Send anything; then a question that is asked upstream, and one from memory, must be answered."""
        anything = question.wire(60000, query_of(INSIDE, "A").question)
        async with asyncio.timeout(60):
            self.here.client.send(anything)
            for kind in ("SOA", "A"):
                wire = dns.message.make_query(f"{number}.{OUTSIDE}", kind, id=number % 50000).to_wire()
                told = dns.message.from_wire(await self.here.client.ask(wire))
                assert told.rcode() <= 10
            wire = dns.message.make_query(INSIDE, "A", id=50000 + number % 1000).to_wire()
            assert dns.message.from_wire(await self.here.client.ask(wire)).rcode() == NOERROR
            reader, writer = await self.here.connect()
            writer.write(len(anything).to_bytes(2) + anything + len(wire).to_bytes(2) + wire)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                for _ in range(2):
                    await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            writer.transport.abort()
        assert self.here.tally.failures == 0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@settings(max_examples=40 if settings().max_examples <= 100 else 2000)
@given(number=st.integers(0, 2**20), question=messages, says=messages)
@example(number=1, question=C5, says=C5)
@example(number=2, question=RING, says=RING)
def test_a_running_server_answers_the_next_question_whatever_was_said(
    world: World, number: int, question: Drawn, says: Drawn
) -> None:
    world.says = says
    world.runner.run(world.try_it(question, number))
