"""The HTTP client against servers that say what the test wants, byte by byte, on loopback."""

import asyncio
import gzip
import os
from collections.abc import Awaitable, Callable

import pytest

from vipwire.http_client.client import Client, Server, reason_of
from vipwire.http_client.wire import HttpError

Story = Callable[[Client, Server], Awaitable[object]]
PACKED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CUT = "the server closed the connection before the answer was complete"


class Scripted:
    """Answers each request of each connection with the next bytes of its script; None closes."""

    def __init__(self, *connections: tuple[bytes | None, ...]) -> None:
        self._connections = iter(connections)
        self.requests: list[bytes] = []
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            for answer in next(self._connections):
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")), b": 0")
                self.requests.append(head + await reader.readexactly(int(length.partition(b": ")[2])))
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def told(script: Scripted, story: Story) -> object:
    """Let a client talk to a scripted server."""

    async def run() -> object:
        listening = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        client = Client()
        async with listening, asyncio.timeout(60):
            port = listening.sockets[0].getsockname()[1]
            found = await story(client, Server(f"http://127.0.0.1:{port}"))
            await client.close()
        return found

    return asyncio.run(run())


async def read(client: Client, server: Server, method: str = "GET", timeout: float = 60.0) -> tuple[int, bytes]:  # noqa: ASYNC109
    async with client.request(server, method, "/", {}, timeout=timeout) as answer:
        return answer.status, bytes(await answer.read())


def failure(*script: tuple[bytes | None, ...]) -> str:
    async def story(client: Client, server: Server) -> str:
        with pytest.raises(HttpError) as raised:
            await read(client, server)
        return reason_of(raised.value)

    return str(told(Scripted(*script), story))


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n1\r\n!\r\n0\r\nT: t\r\n\r\n",
            200,
            b"ok!",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 599 \r\nContent-Length: 0\r\n\r\n", 599, b""),
    ],
)
def test_every_way_to_frame_a_body_is_read(answer: bytes, status: int, body: bytes) -> None:
    assert told(Scripted((answer,)), read) == (status, body)


def test_a_packed_body_is_unpacked() -> None:
    body = gzip.compress(b"x" * 100_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    assert told(Scripted((head + body,)), read) == (200, b"x" * 100_000)


def test_header_fields_are_found_by_small_letters_and_a_beginning_can_be_read() -> None:
    async def story(client: Client, server: Server) -> tuple[str, bytes]:
        async with client.request(server, "GET", "/", {}, timeout=60.0) as answer:
            return answer.headers["retry-after"], await answer.read_at_most(1)

    assert told(Scripted((OK.replace(b"\r\n\r\n", b"\r\nRetry-After: 7\r\n\r\n"),)), story) == ("7", b"o")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"nonsense\r\n\r\n", "the answer is not HTTP: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok", CUT),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", CUT),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok", "the answer is not HTTP: "),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, "the answer is not HTTP: "),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
            "changes to another protocol",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", "Content-Encoding"),
        (PACKED + gzip.compress(bytes(4 << 20)), "more than 256 layers"),
        (PACKED + gzip.compress(b"x") + b"y" * 100_000, "has bytes after the end of its Content-Encoding"),
        (PACKED + gzip.compress(b"x") + gzip.compress(b"y"), "has bytes after the end of its Content-Encoding"),
        (PACKED + gzip.compress(os.urandom(17 << 20), 0), "longer than 16 MiB"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(17 << 20), "longer than 16 MiB"),
        (CHUNKED + b"0\r\n" + b"".join(b"T%d: t\r\n" % number for number in range(50_000)), "not body"),
        (CHUNKED + b"0\r\nT: " + b"t" * (1 << 20), "not body"),
        (CHUNKED + b"1;" + b"e" * (1 << 20), "not body"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10_000, "not body"),
        (None, CUT),
    ],
    ids=lambda value: value if isinstance(value, str) else "answer",  # packed bytes differ from process to process
)
def test_what_is_no_answer_is_an_error(answer: bytes | None, reason: str) -> None:
    assert reason in failure((answer,))


def test_a_connection_is_kept_for_the_next_request() -> None:
    async def story(client: Client, server: Server) -> None:
        for _ in range(3):
            await read(client, server)

    script = Scripted((OK, OK, OK))
    told(script, story)
    assert script.opened == 1


@pytest.mark.parametrize("answer", [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK + b"more"])
def test_one_that_shall_end_or_says_too_much_is_not_kept(answer: bytes) -> None:
    async def story(client: Client, server: Server) -> object:
        await read(client, server)
        return await read(client, server)

    script = Scripted((answer,), (OK,))
    assert told(script, story) == (200, b"ok")
    assert script.opened == 2


@pytest.mark.parametrize(("method", "opened"), [("GET", 2), ("PUT", 2), ("POST", 1), ("PATCH", 1)])
def test_a_kept_connection_that_the_server_ends_is_no_failure_of_what_may_be_sent_twice(
    method: str, opened: int
) -> None:
    async def story(client: Client, server: Server) -> object:
        await read(client, server)
        try:
            return await read(client, server, method)
        except HttpError as error:
            return str(error)

    script = Scripted((OK, None), (OK,))
    assert told(script, story) == ((200, b"ok") if opened == 2 else CUT)
    assert script.opened == opened


def test_a_body_that_never_ends_is_given_up_in_time() -> None:
    async def story(client: Client, server: Server) -> None:
        with pytest.raises(TimeoutError):
            await read(client, server, timeout=0.2)

    told(Scripted((b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok", OK)), story)


async def test_a_body_that_nobody_reads_is_not_taken_in() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
                sent += 1 << 20
        except ConnectionError:
            writer.close()

    async with await asyncio.start_server(flood, "127.0.0.1", 0) as listening:
        client, last = Client(), -1
        server = Server(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        async with client.request(server, "GET", "/", {}, timeout=60.0) as answer:
            while sent != last:  # until nothing more fits on the way
                last = sent
                await asyncio.sleep(0.2)
            await answer.read_at_most(1)
        await client.close()
    assert 0 < sent < 64 << 20


@pytest.mark.parametrize("text", ["a\r\nX: y", "a\nb", "\x00"])
def test_a_header_field_cannot_carry_another(text: str) -> None:
    async def story(client: Client, server: Server) -> None:
        with pytest.raises(HttpError, match="not allowed in a request"):
            async with client.request(server, "GET", "/", {"Authorization": text}, timeout=60.0):
                pass

    script = Scripted((OK,))
    told(script, story)
    assert script.requests == []


async def test_where_nobody_listens_is_told() -> None:
    listening = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    with pytest.raises(HttpError) as raised:
        await read(Client(), Server(f"http://127.0.0.1:{port}"))
    assert (
        reason_of(raised.value).replace(str(port), "PORT") == "cannot connect to 127.0.0.1:PORT: Connection refused"
    )


STREAM = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n",
    b"0\r\n\r\n",
)


async def fed(client: Client, server: Server, take: Callable[[bytes], bool]) -> None:
    async with client.request(server, "GET", "/", {}, timeout=60) as answer:
        await answer.feed(take)


@pytest.mark.parametrize(("enough", "taken"), [(b"", [b"one", b"two", b"three"]), (b"two", [b"one", b"two"])])
def test_a_body_is_handed_over_until_it_is_enough(enough: bytes, taken: list[bytes]) -> None:
    found: list[bytes] = []

    def take(piece: bytes) -> bool:
        found.append(piece)
        return piece != enough

    told(Scripted((b"".join(STREAM),)), lambda client, server: fed(client, server, take))
    assert found == taken


def test_a_packed_body_is_handed_over_unpacked() -> None:
    found: list[bytes] = []
    packed = gzip.compress(b"all of it")
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    told(
        Scripted((head + packed,)),
        lambda client, server: fed(client, server, lambda piece: not found.append(piece)),  # type: ignore[func-returns-value]
    )
    assert b"".join(found) == b"all of it"


def test_what_goes_wrong_while_a_body_is_handed_over_is_raised_to_who_waits() -> None:
    def broken(piece: bytes) -> bool:
        raise LookupError(piece)

    async def story(client: Client, server: Server) -> None:
        with pytest.raises(LookupError, match="one"):
            await fed(client, server, broken)
        with pytest.raises(HttpError, match=CUT):
            await fed(client, server, lambda _: True)

    told(Scripted((b"".join(STREAM),), (STREAM[0],)), story)
