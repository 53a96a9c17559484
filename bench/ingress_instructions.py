"""Instructions of HAProxy for a request, with vipwire's configuration beside one by hand.

`python -m bench.ingress_instructions` (needs haproxy and valgrind; loopback only). The counts do not depend on other
load. Valgrind counts HAProxy's own work without the kernel's, and each copied byte as one instruction: 33,000 are the
copy of each request that a retry needs (16 KiB, the same in both).
"""

import asyncio
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from bench import ingress_by_hand
from bench.ingress import ANSWERING, HOST, haproxy
from tests.fakes.ports import free_port
from tests.l7.ingress.site import backend, endpoint, endpoint_slice, ingress, rule, service, site

WARMING, COUNTED = 200, 1000
Asking = Callable[[int], Iterator[int]]
"""Sends requests to a port twice, to warm up and to be counted; yields the number of requests each time."""


def instructions(folder: Path, text: str, port: int, asking: Asking | None = None) -> int:
    """Run HAProxy under valgrind; return the instructions for a request, without those of start and end."""
    asked = (asking or one_after_the_other)(port)
    file, counted = folder / "counted.cfg", folder / "counted"
    file.write_text(text)
    valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={counted}")
    command = (*valgrind, "haproxy", "-db", "-q", "-f", str(file))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            next(asked)
            control("--zero", process.pid)
            count = next(asked)
            control("--dump", process.pid)
        finally:
            process.terminate()
    found = re.search(r"^(?:totals|summary): (\d+)", counted.with_suffix(".1").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("valgrind has counted nothing")
    return round(int(found[1]) / count)


def one_after_the_other(port: int) -> Iterator[int]:
    with connected(port) as client:
        answers = client.makefile("rb")
        for count in (WARMING, COUNTED):
            ask(client, answers, count)
            yield count


def control(what: str, pid: int) -> None:
    """Tell valgrind to begin counting, or to write its counts."""
    subprocess.run(("callgrind_control", what, str(pid)), check=True, capture_output=True)


def ask(client: socket.socket, answers: BinaryIO, requests: int) -> None:
    """Send requests on one connection, each after the previous answer."""
    for _ in range(requests):
        client.sendall(f"GET /app/x HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        head = b"".join(iter(answers.readline, b"\r\n")).decode().lower()
        if " 200 " not in head:
            raise RuntimeError(head)
        answers.read(int(head.partition("content-length: ")[2].partition("\r")[0]))


def connected(port: int) -> socket.socket:
    end = time.monotonic() + 300  # valgrind reads a thousand backends slowly
    while time.monotonic() < end:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError("HAProxy does not listen")


async def ours(folder: Path, pod: int, port: int, *, all_kinds: bool) -> str:
    """Let vipwire write a configuration; with `all_kinds` for rules of every kind beside the requested one."""
    async with site(folder) as here:
        here.put(service("web"), endpoint_slice("web", pod, [endpoint("127.0.0.1")]))
        here.put(ingress("web", rule(HOST, "/app")))
        if all_kinds:
            rules = rule("e.example.com", "/x", kind="Exact"), rule("*.w.example.com", "/"), rule("", "/y")
            here.put(ingress("exact", *rules))
            here.put(ingress("default", defaultBackend=backend("web")))
        await here.settled()
        text = (here.haproxy.folder / "haproxy.cfg").read_text()
        text = re.sub(r" *(?:stats socket|bind .* ssl) .*\n", "", text)
        return text.replace(f"127.0.0.1:{here.http}", f"127.0.0.1:{port}")


async def main() -> None:
    pod, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)):
            texts = {"by hand": ingress_by_hand.for_one_host(f"127.0.0.1:{port}", HOST, pod)}
            for title, all_kinds in (("vipwire", False), ("vipwire, rules of every kind", True)):
                run = folder / f"run-{all_kinds}"
                run.mkdir()
                texts[title] = await ours(run, pod, port, all_kinds=all_kinds)
            found = {title: instructions(folder, text, port) for title, text in texts.items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
