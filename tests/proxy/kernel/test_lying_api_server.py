"""An API server that lies, against each command that follows one, as a process: its memory, the truth afterwards."""

import gzip
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.own_network import own_network
from tests.fakes.ports import free_port

pytestmark = pytest.mark.attack

Handler = http.server.BaseHTTPRequestHandler
Lie = Callable[[Handler, bool], None]
COMMANDS = {
    "dns": ("/ready", "--bind-address=127.0.0.1", "--port=0", "--http-address=127.0.0.1:{port}"),
    "proxy": (
        "/healthz",
        "--proxy-mode=nftables",
        "--healthz-bind-address=127.0.0.1:{port}",
        "--state-dir={folder}",
        "--hostname-override=node",
    ),
    "ingress": ("/healthz", "--run-dir={folder}/run", "--https=", "--metrics-bind-address=127.0.0.1:{port}"),
    "gateway": ("/healthz", "--run-dir={folder}/run", "--ingress", "--metrics-bind-address=127.0.0.1:{port}"),
}
"""Commands, each with the page that says whether it has heard what there is, and with its flags."""
NODES = [{"metadata": {"name": "node"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}]
_BEGUN = b'{"metadata":{"resourceVersion":"1"},"items":['


def begin(handler: Handler, **headers: str) -> None:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def send_chunk(handler: Handler, piece: bytes) -> None:
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def endless(piece: bytes, first: bytes = b"") -> Lie:
    """Answer lists without an end."""

    def lie(handler: Handler, _watch: bool) -> None:  # noqa: FBT001
        begin(handler, Transfer_Encoding="chunked")
        send_chunk(handler, first or _BEGUN)
        while True:
            send_chunk(handler, piece)

    return lie


def endless_trailers(handler: Handler, _watch: bool) -> None:  # noqa: FBT001
    begin(handler, Transfer_Encoding="chunked")
    handler.wfile.write(b"0\r\n")
    number = 0
    while True:
        number += 1
        handler.wfile.write(b"T%d: %s\r\n" % (number, b"t" * 1000))


def a_gibibyte(first: bytes, byte: bytes) -> bytes:
    """Pack `first` and a GiB of one byte, whose end is missing. A block that was flushed can be repeated."""
    packer = zlib.compressobj(wbits=31)
    begun = packer.compress(first) + packer.flush(zlib.Z_FULL_FLUSH)
    return begun + (packer.compress(byte * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * (1 << 10)


def packed(data: bytes) -> Lie:
    def lie(handler: Handler, _watch: bool) -> None:  # noqa: FBT001
        begin(handler, Content_Encoding="gzip", Content_Length=str(len(data)))
        handler.wfile.write(data)

    return lie


def packed_watch(handler: Handler, watch: bool) -> None:  # noqa: FBT001
    (packed(a_gibibyte(b"", b"\0")) if watch else tell([]))(handler, watch)


def endless_line(handler: Handler, watch: bool) -> None:  # noqa: FBT001
    (endless(b"x" * 65536) if watch else tell([]))(handler, watch)


def endless_pages(handler: Handler, _watch: bool) -> None:  # noqa: FBT001
    body = json.dumps({"metadata": {"resourceVersion": "1", "continue": "x"}, "items": []}).encode()
    begin(handler, Content_Length=str(len(body)))
    handler.wfile.write(body)


def deep(handler: Handler, _watch: bool) -> None:  # noqa: FBT001
    body = b'{"items":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    begin(handler, Content_Length=str(len(body)))
    handler.wfile.write(body)


def page_of(item: bytes, size: int) -> Lie:
    """Answer lists with a page of equal items."""

    def lie(handler: Handler, _watch: bool) -> None:  # noqa: FBT001
        number = size // (len(item) + 1)
        begin(handler, Content_Length=str(len(_BEGUN) + number * (len(item) + 1) + len(item) + 2))
        handler.wfile.write(_BEGUN)
        for first in range(0, number, 100_000):
            handler.wfile.write((item + b",") * min(100_000, number - first))
        handler.wfile.write(item + b"]}")

    return lie


def tell(services: list[dict[str, Any]]) -> Lie:
    """Answer as an API server that knows no pages does."""
    body = {
        plural: json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
        for plural, items in (("services", services), ("nodes", NODES), ("", []))
    }

    def honest(handler: Handler, watch: bool) -> None:  # noqa: FBT001
        if watch:
            begin(handler, Transfer_Encoding="chunked")
            time.sleep(60)
            return
        found = body.get(handler.path.partition("?")[0].rpartition("/")[2], body[""])
        begin(handler, Content_Length=str(len(found)))
        handler.wfile.write(found)

    return honest


def service(number: int) -> dict[str, Any]:
    """Make a Service of about 1 KB."""
    address = (
        f"10.96.{number >> 8}.{number & 255}" if number < 1 << 16 else f"10.97.{number >> 8 & 255}.{number & 255}"
    )
    spec = {"clusterIP": address, "clusterIPs": [address], "ports": [{"name": "http", "port": 80}]}
    meta = {"name": f"s{number}", "namespace": "default", "annotations": {"about": f"{number} " * 130}}
    return {"metadata": meta, "spec": spec}


@contextmanager
def told_by(
    answer: list[Lie], folder: Path, asked: list[str] | None = None, name: str = "dns"
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], bool]]]:
    """Run a command with an API server that answers with `answer[0]` and notes what was asked.

    Give the process, and what tells whether it is ready.
    """

    class Server(Handler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:  # noqa: N802
            self.close_connection = True
            if asked is not None:
                asked.append(self.path)
            with suppress(OSError):
                answer[0](self, "watch=" in self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = free_port()
        page, *flags = (each.format(port=port, folder=folder) for each in COMMANDS[name])
        master = f"--master=http://127.0.0.1:{server.server_port}"
        command = [sys.executable, "-m", "vipwire", name, master, *flags]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                yield process, lambda: is_ready(port, page)
            finally:
                process.terminate()
                server.shutdown()


def memory(process: subprocess.Popen[bytes]) -> int:
    """Tell a process's memory, in MB."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def is_ready(port: int, page: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as stream:
        stream.sendall(f"GET {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return stream.recv(100).startswith(b"HTTP/1.1 200 ")
    return False


def was_told_enough(asked: list[str], lies: int) -> bool:
    """Tell whether so many lies about one kind have been taken whole or refused, or thousands of pages were."""
    anew = Counter(path.partition("?")[0] for path in asked if "continue=" not in path)
    return max(anew.values(), default=0) > lies or len(asked) > 2000


LIES: dict[str, tuple[Lie, int]] = {
    "spaces": (endless(b" " * 65536), 400),
    "strings": (endless(b'"' + b"x" * 65534 + b'",'), 400),
    "trailers": (endless_trailers, 120),
    # The kernel gives 256 KiB at a time, which may be 64 MiB unpacked.
    "gzip": (packed(a_gibibyte(_BEGUN, b" ")), 200),
    "after gzip": (packed(gzip.compress(b"x") + bytes(64 << 20)), 120),
    "gzip watch": (packed_watch, 120),
    "line": (endless_line, 200),
    "pages": (endless_pages, 120),
    "deep": (deep, 120),
    "empty objects": (page_of(b"{}", 100 << 20), 400),
    "numbers": (page_of(b"0", 100 << 20), 400),
    "half a million empty objects": (page_of(b"{}", 2 << 20), 120),
}
"""Lies, each with the MB that DNS may have at most meanwhile."""
MORE_MB = 300
"""What other commands may have besides: they follow up to 18 kinds, each with 4 MiB of its own."""


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("name", ["proxy", "ingress", "gateway"])
def test_each_command_bears_all_lies_one_after_another(name: str, tmp_path: Path) -> None:
    answer, asked, largest = [tell([])], list[str](), dict[str, int]()
    with own_network(), told_by(answer, tmp_path, asked, name) as (process, ready):
        for about, (lie, _) in LIES.items():
            answer[0], end, largest[about] = lie, time.monotonic() + 4, 0
            asked.clear()
            while time.monotonic() < end and not was_told_enough(asked, 1):
                assert process.poll() is None, (tmp_path / "log").read_text()
                largest[about] = max(largest[about], memory(process))
                time.sleep(0.05)
        answer[0] = tell([service(1)])
        end = time.monotonic() + 90
        while not ready():
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
    assert max(largest.values()) < max(most for _, most in LIES.values()) + MORE_MB, largest
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("lie", "most"), LIES.values(), ids=LIES)
def test_a_lie_costs_bounded_memory_and_the_truth_is_taken_afterwards(lie: Lie, most: int, tmp_path: Path) -> None:
    answer, asked, largest = [lie], list[str](), 0
    with told_by(answer, tmp_path, asked) as (process, ready):
        end = time.monotonic() + 90
        while not was_told_enough(asked, 2):
            assert process.poll() is None
            assert time.monotonic() < end
            largest = max(largest, memory(process))
            time.sleep(0.05)
        assert largest < most
        answer[0] = tell([service(1)])
        end = time.monotonic() + 90
        while not ready():
            assert time.monotonic() < end
            time.sleep(0.2)
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_hundred_thousand_services_in_one_answer_are_taken(tmp_path: Path) -> None:
    with told_by([tell([service(number) for number in range(100_000)])], tmp_path) as (process, ready):
        end = time.monotonic() + 120
        while not ready():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
