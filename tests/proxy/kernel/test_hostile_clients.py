"""Clients that misbehave, against the page of `vipwire view`: its memory, its log, and its answers to others."""

import contextlib
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.ports import free_port

pytestmark = pytest.mark.attack

HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /page.css" + HEAD + b"\r\n"
EVENTS = b" /api/events" + HEAD + b"\r\n"


@dataclass
class Page:
    """A page, and its process."""

    port: int
    process: subprocess.Popen[str]
    log: Path

    def memory(self) -> int:
        """Tell its memory, in MB."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20

    def connect(self, said: bytes = b"") -> socket.socket:
        stream = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        stream.sendall(said)
        return stream

    def status(self, target: str = "/", method: str = "GET") -> int:
        """Ask as an honest client does; give the status, 0 for a connection without one."""
        with (
            contextlib.suppress(ConnectionError),
            self.connect(f"{method} {target}".encode() + HEAD + b"\r\n") as stream,
        ):
            return int(stream.recv(4096)[9:12] or 0)
        return 0

    def answer(self, target: str) -> tuple[int, dict[str, str]]:
        """Ask for JSON; again while the page still answers requests of clients of an earlier test."""
        end = time.monotonic() + 30
        while True:
            with self.connect(f"GET {target}".encode() + HEAD + b"Connection: close\r\n\r\n") as stream:
                head, _, body = stream.makefile("rb").read().partition(b"\r\n\r\n")
            if b"too many requests" not in body or time.monotonic() > end:
                return int(head[9:12]), json.loads(body)
            time.sleep(0.05)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "objects").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    port = free_port()
    flags = (f"--manifests={folder / 'objects'}", f"--state-dir={folder}", f"--view-bind-address=127.0.0.1:{port}")
    command = [sys.executable, "-m", "vipwire", "view", *flags]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Serving at ")
        found = Page(port, process, folder / "log")
        while found.status("/api/service?name=a/b") == 503:  # it has yet to look
            time.sleep(0.05)
        yield found
        process.terminate()
        assert process.wait(30) == 0


def flood(streams: list[socket.socket], said: bytes, seconds: float) -> int:
    """Send as much as is taken; give how many bytes."""
    sent, end = 0, time.monotonic() + seconds
    rest = dict.fromkeys(streams, said)
    while time.monotonic() < end:
        for stream in streams:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                taken = stream.send(rest[stream])
                rest[stream] = rest[stream][taken:] or said
                sent += taken
    return sent


@pytest.mark.parametrize(
    "said",
    [
        GET * 500,
        b"HEAD /page.css" + HEAD + b"\r\n" + GET * 500,
        (b"GET /page.css" + HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000) * 100,
        (b"GET /page.css" + HEAD + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx") * 500,
        (b"GET /page.css" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n") * 500,
        b"GET" + EVENTS + GET * 500,
    ],
    ids=["GET", "HEAD", "bodies", "Expect", "chunks", "a stream first"],
)
def test_a_client_that_does_not_read_costs_a_constant(page: Page, said: bytes) -> None:
    before = page.memory()
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(page.connect()) for _ in range(20)]
        for stream in streams:
            stream.setblocking(False)  # noqa: FBT003
        flood(streams, said, 3.0)
        assert page.memory() < before + 30
        assert page.status() == 200


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /page.css HTTP/1.1\r\nA:",
        b"GET /page.css" + HEAD + b"Content-Length: 30000\r\n\r\n" + b"x" * 29_999,
        b"PUT /page.css" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 4000,
        b"".join((b"GET /page.css" + HEAD, *(b"x%d: y\r\n" % number for number in range(99)))),
        GET * 2000,
    ],
    ids=["nothing", "half a request", "a long body", "chunks", "fields", "unread"],
)
def test_a_newcomer_is_answered_while_others_hold_every_place(page: Page, said: bytes) -> None:
    before = page.memory()
    with contextlib.ExitStack() as stack:
        for _ in range(700):
            stream = stack.enter_context(page.connect())
            stream.setblocking(False)  # noqa: FBT003
            with contextlib.suppress(BlockingIOError, ConnectionError):
                stream.send(said)
        assert [page.status() for _ in range(20)] == [200] * 20
        assert page.memory() < before + 100


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /page.css" + HEAD + b"".join(b"x%d: y\r\n" % number for number in range(200)) + b"\r\n", 431),
        (b"GET /page.css" + HEAD + b"x: " + b"y" * 100_000, 413),
        (b"GET /page.css?" + b"a&" * 200 + HEAD + b"\r\n", 400),
        (
            b"PUT /page.css" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n" * 99,
            400,
        ),
        (
            b"PUT /page.css"
            + HEAD
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 99,
            413,
        ),
    ],
)
def test_what_is_too_much_of_a_request_is_refused(page: Page, said: bytes, status: int) -> None:
    with page.connect() as stream:
        with contextlib.suppress(ConnectionError):
            stream.sendall(said)
        assert int(stream.recv(4096)[9:12]) == status


def reset(stream: socket.socket) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_close(stream: socket.socket) -> None:
    stream.shutdown(socket.SHUT_WR)


def read_a_little(stream: socket.socket) -> None:
    stream.recv(10)


def stay(_stream: socket.socket) -> None:
    pass


LEAVING = (stay, reset, half_close, read_a_little)


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_a_place_for_a_stream_is_free_again_however_the_client_leaves(
    page: Page, method: bytes, leave: Callable[[socket.socket], None]
) -> None:
    for _ in range(20):
        with page.connect(method + EVENTS) as stream:
            leave(stream)
    end = time.monotonic() + 10
    while (status := page.status("/api/events")) == 503 and time.monotonic() < end:
        time.sleep(0.1)  # it has yet to see the last of them leave
    assert status == 200


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
@pytest.mark.parametrize(
    "said",
    [
        b"GET /page.css" + HEAD + b"Connection: close\r\n\r\n",
        GET * 50 + b"GET /page.css" + HEAD + b"Connection: close\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /page.css" + HEAD + b"x: " + b"y" * 60_000,
        b"GET /page.css" + HEAD + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
        b"GET /api/explain?to=10.0.0.1:80" + HEAD + b"\r\n",
        b"GET" + EVENTS,
    ],
    ids=["close", "pipeline", "nonsense", "too long", "Expect", "explain", "stream"],
)
def test_no_way_to_leave_is_an_error_in_the_log(
    page: Page, said: bytes, leave: Callable[[socket.socket], None]
) -> None:
    for pause in (0.0, 0.0, 0.002, 0.01) * 5:
        with contextlib.suppress(ConnectionError), page.connect(said) as stream:
            time.sleep(pause)
            leave(stream)
    assert page.status() == 200
    assert page.log.read_text() == "Press Ctrl-C to stop.\n"


def test_requests_before_the_end_of_what_a_client_says_are_answered(page: Page) -> None:
    with page.connect(GET + b"GET /none" + HEAD + b"\r\n") as stream:
        half_close(stream)
        answers = stream.makefile("rb").read()
    assert [answers.count(b"HTTP/1.1 " + status) for status in (b"200", b"404")] == [1, 1]


def test_an_upgrade_that_is_declined_leaves_the_connection_usable(page: Page) -> None:
    upgrade = (
        b"GET /none" + HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n"
    )
    with page.connect(upgrade + upgrade + b"GET /page.css" + HEAD + b"Connection: close\r\n\r\n") as stream:
        answers = stream.makefile("rb").read()
    assert [answers.count(b"HTTP/1.1 " + status) for status in (b"200", b"404")] == [1, 2]


@pytest.mark.parametrize("port", ["9" * 5000, "0" * 5000 + "80", "\u0663", "\u00b2", "-1", "1e3", "1_0"])
def test_a_number_that_is_none_is_refused_with_a_reason(page: Page, port: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in port.encode()) if len(port) < 9 else port
    status, document = page.answer(f"/api/explain?to=10.0.0.1:{encoded}")
    assert status == 400
    assert document["error"]
