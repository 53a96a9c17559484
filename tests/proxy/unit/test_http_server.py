"""The small HTTP servers, from the wire: what clients send byte by byte, good and bad."""

import asyncio
import itertools
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from vipwire.http_server.exchange import Reply, Stream
from vipwire.http_server.pages import LONGEST_BODY, Pages, Request, serve_pages
from vipwire.http_server.room import Limits, Room
from vipwire.http_server.server import Serving
from vipwire.proxy_daemon.serve.server import open_listening_socket


async def echo(request: Request) -> Reply:
    """Tell what was understood."""
    return Reply(f"{request.method} {request.path} {dict(request.query)} {request.text}")


async def broken(_request: Request) -> Reply:
    raise RuntimeError("broken on purpose")


def pages() -> Pages:
    made = Pages(echo=echo, broken=broken)
    made.add("PUT", "/echo", echo)
    return made


def at_a_server(story: Callable[[int, Serving], Awaitable[bytes]]) -> bytes:
    async def run() -> bytes:
        async with asyncio.timeout(60):
            listener = open_listening_socket("127.0.0.1", 0)
            serving = serve_pages(listener, pages())
            found = await story(listener.getsockname()[1], serving)
            await serving.close()
        return found

    return asyncio.run(run())


def said(*sent: bytes) -> bytes:
    """Send bytes, say that no more will come, and read all that is said."""

    async def story(port: int, _serving: Serving) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in sent:
            writer.write(piece)
            await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer

    return at_a_server(story)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection on which nothing is said."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


LAST = b"Connection: close\r\n\r\n"
UPGRADE = b"PUT /echo HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /echo?a=1&b=%2f HTTP/1.1\r\n" + LAST, b"200 OK", b"GET /echo {'a': '1', 'b': '/'} "),
        (b"GET /echo HTTP/1.0\r\n\r\n", b"200 OK", b"GET /echo {} "),
        (b"PUT /echo HTTP/1.1\r\nContent-Length: 2\r\n" + LAST + b"ab", b"200 OK", b"PUT /echo {} ab"),
        (b"HEAD /echo HTTP/1.1\r\n" + LAST, b"200 OK", b""),
        (b"GET /%65cho HTTP/1.1\r\n" + LAST, b"200 OK", b"GET /echo {} "),
        (b"GET /none HTTP/1.1\r\n" + LAST, b"404 Not Found", b"404: Not Found"),
        (b"DELETE /echo HTTP/1.1\r\n" + LAST, b"405 Method Not Allowed", b"405: Method Not Allowed"),
        (b"GET /broken HTTP/1.1\r\n" + LAST, b"500 Internal Server Error", b"500: Internal Server Error"),
        (b"\x16\x03\x01\x02\x00", b"400 Bad Request", b"400: Bad Request"),
        (b"GET /echo HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400 Bad Request", b"400: Bad Request"),
        (
            UPGRADE + b"Content-Length: 22\r\n\r\nGET /echo HTTP/1.1\r\n\r\n",
            b"400 Bad Request",
            b"400: Bad Request",
        ),
        (
            b"PUT /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400 Bad Request",
            b"400: Bad Request",
        ),
    ],
)
def test_a_request_is_answered(request_: bytes, status: bytes, body: bytes) -> None:
    head, _, rest = said(request_).partition(b"\r\n\r\n")
    assert head.partition(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert rest == body


def test_requests_that_came_together_are_answered_in_turn() -> None:
    many = b"".join(b"GET /echo?%d HTTP/1.1\r\n\r\n" % number for number in range(40))
    answers = said(many, b"GET /none HTTP/1.1\r\n" + LAST)
    assert answers.count(b"200 OK") == 40
    assert answers.endswith(b"404: Not Found")


def test_a_request_that_comes_in_pieces_is_one() -> None:
    whole = b"PUT /echo HTTP/1.1\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    assert said(*(whole[at : at + 1] for at in range(len(whole)))).endswith(b"PUT /echo {} abc")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"x" * LONGEST_BODY,
        b"GET /echo HTTP/1.1\r\nA: " + b"x" * LONGEST_BODY,
        b"PUT /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + bytes(LONGEST_BODY),
    ],
)
def test_a_request_that_is_too_long_is_refused(request_: bytes) -> None:
    assert said(request_).startswith(b"HTTP/1.1 413 ")


def test_another_protocol_is_not_gone_into() -> None:
    upgrade = b"GET /echo HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    assert said(upgrade).startswith(b"HTTP/1.1 200 OK")


async def asked(port: int, address: str = "127.0.0.1") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(b"GET /echo HTTP/1.1\r\n" + LAST)
    answer = await reader.read()
    writer.close()
    return answer


def test_whoever_has_waited_longest_makes_room_for_one_that_asks() -> None:
    async def story(port: int, _serving: Serving) -> bytes:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(Limits().connections)]
        (oldest, slow), (second, writer) = pairs[:2]
        slow.write(b"GET /echo HTTP/1.1\r\nA:")  # more bytes make it no younger
        answer = await asked(port)
        assert await ended(oldest)
        writer.write(b"GET /echo HTTP/1.1\r\n" + LAST)
        answer += await second.read()
        for _, each in pairs:
            each.close()
        return answer

    assert at_a_server(story).count(b"HTTP/1.1 200 OK") == 2


def test_an_answered_client_that_does_not_close_makes_room() -> None:
    async def story(port: int, _serving: Serving) -> bytes:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(Limits().connections)]
        for reader, writer in pairs:
            writer.write(b"GET /none HTTP/1.1\r\n" + LAST)
            await reader.read()
        answer = await asked(port)
        for _, each in pairs:
            each.close()
        return answer

    assert at_a_server(story).startswith(b"HTTP/1.1 200 OK")


def test_an_address_with_many_connections_makes_room_before_one_with_few() -> None:
    async def story(port: int, _serving: Serving) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(Limits().connections + 8)]
        await ended(pairs[8][0])
        writer.write(b"GET /echo HTTP/1.1\r\n" + LAST)
        answer = await reader.read()
        for _, each in (*pairs, (reader, writer)):
            each.close()
        return answer

    assert at_a_server(story).startswith(b"HTTP/1.1 200 OK")


async def test_what_is_being_answered_makes_no_room() -> None:
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_request: Request) -> Reply:
        begun.release()
        await go.wait()
        return Reply("done")

    listener = open_listening_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    serving = serve_pages(listener, Pages(slow=slow))
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(Limits().connections)]
    for _, writer in pairs:
        writer.write(b"GET /slow HTTP/1.1\r\n" + LAST)
        await begun.acquire()
    late, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await ended(late)
    go.set()
    answers = [await reader.read() for reader, _ in pairs]
    for _, each in (*pairs, (late, writer)):
        each.close()
    await serving.close()
    assert min(answers).endswith(b"done")


async def test_costly_answers_leave_turns_to_other_work() -> None:
    answered, seen = 0, list[int]()

    async def costly(_request: Request) -> Reply:
        nonlocal answered
        time.sleep(0.03)  # noqa: ASYNC251  # as a page that is long to write
        answered += 1
        return Reply("done")

    listener = open_listening_socket("127.0.0.1", 0)
    serving = serve_pages(listener, Pages(costly=costly))
    pairs = [await asyncio.open_connection("127.0.0.1", listener.getsockname()[1]) for _ in range(48)]
    for _, writer in pairs:
        writer.write(b"GET /costly HTTP/1.1\r\n" + LAST)
    while answered < len(pairs):
        seen.append(answered)
        await asyncio.sleep(0)
    for _, writer in pairs:
        writer.close()
    await serving.close()
    assert max(after - before for before, after in itertools.pairwise(each for each in seen if each > 32)) <= 4


async def test_closing_leaves_time_for_what_is_being_answered() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> Reply:
        begun.set()
        await go.wait()
        return Reply("done")

    listener = open_listening_socket("127.0.0.1", 0)
    serving = serve_pages(listener, Pages(slow=slow))
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    idle, silent = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
    await begun.wait()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serving.close(grace=60.0))
        assert await ended(idle)
        go.set()
        answer = await reader.read()
        writer.close()
    silent.close()
    assert answer.endswith(b"done")


def streaming(
    story: Callable[[asyncio.StreamReader, asyncio.StreamWriter, "Endless"], Awaitable[None]], **limits: float
) -> None:
    """Ask a site whose answer never ends."""

    async def run() -> None:
        async with asyncio.timeout(60):
            listener, site = open_listening_socket("127.0.0.1", 0), Endless()
            serving = serve_pages(listener, site, Room(Limits(**limits)))  # type: ignore[arg-type]
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1], limit=1 << 16)
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            await story(reader, writer, site)
            writer.close()
            await serving.close(grace=30.0)

    asyncio.run(run())


class Endless:
    """Streams blocks; `closed` is set when nobody takes them any more."""

    def __init__(self) -> None:
        self.more = asyncio.Event()
        self.closed = asyncio.Event()

    async def __call__(self, _request: Request) -> Stream:
        return Stream(self.pieces())

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"first\n"
            await self.more.wait()
            while True:
                yield b"x" * 65536
        finally:
            self.closed.set()


def test_a_stream_comes_as_it_is_made_and_ends_when_the_client_leaves() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Endless) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length" not in head
        assert b"Connection: close" in head
        assert await reader.readline() == b"first\n"
        writer.close()
        await site.closed.wait()

    streaming(story)


def test_a_client_that_takes_nothing_of_a_stream_is_closed() -> None:
    async def story(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, site: Endless) -> None:
        await reader.readuntil(b"first\n")
        site.more.set()
        await site.closed.wait()

    streaming(story, stall_seconds=0.05)


def test_a_stream_that_never_waits_ends_when_the_client_resets_it(caplog: pytest.LogCaptureFixture) -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, site: Endless) -> None:
        await reader.readuntil(b"first\n")
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await asyncio.sleep(0)  # the reset is sent, and the server has yet to see it
        site.more.set()
        await site.closed.wait()

    streaming(story)
    assert not caplog.records


def test_a_server_that_closes_waits_for_no_stream() -> None:
    async def story(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _site: Endless) -> None:
        await reader.readuntil(b"first\n")

    streaming(story)
