"""Instructions that HAProxy takes for a request, with vipwire's configuration beside one by hand.

`python -m bench.ingress_instructions` (needs haproxy and valgrind; loopback only). They do not depend on who else is
here. Valgrind counts what HAProxy does itself, not what the kernel does for it, and counts each byte of a copy as
one: so it is told without the copy of each request that a retry would need (16 KiB, the same in both), too.
"""

import asyncio
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ingress_by_hand
from bench.ingress import ANSWERING, HOST, haproxy
from tests.fakes.ports import free_port
from tests.ingress.site import backend, endpoint, endpoint_slice, ingress, rule, service, site

FEW, MANY = 200, 1200
_RETRY = "    retry-on conn-failure empty-response\n"


def instructions(folder: Path, text: str, port: int, requests: int) -> int:
    """Run a HAProxy under valgrind for so many requests on one connection; give all instructions of the process."""
    file, counted = folder / "counted.cfg", folder / "counted"
    file.write_text(text)
    valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={counted}")
    command = (*valgrind, "haproxy", "-db", "-q", "-f", str(file))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        with connected(port) as client:
            answers = client.makefile("rb")
            for _ in range(requests):
                client.sendall(f"GET /app/x HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                head = b"".join(iter(answers.readline, b"\r\n")).decode().lower()
                if " 200 " not in head:
                    raise RuntimeError(head)
                answers.read(int(head.partition("content-length: ")[2].partition("\r")[0]))
        process.terminate()
    found = re.search(r"^(?:totals|summary): (\d+)", counted.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("valgrind has counted nothing")
    return int(found[1])


def connected(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError("HAProxy does not listen")


async def ours(folder: Path, pod: int, port: int, *, all_kinds: bool) -> str:
    """Have vipwire write a configuration; with `all_kinds` for rules of every kind beside the one that is asked."""
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


def counted(folder: Path, text: str, port: int) -> Iterator[tuple[str, int]]:
    for name, each in (("without the copy", text.replace(_RETRY, "")), ("with it", text)):
        few, many = (instructions(folder, each, port, number) for number in (FEW, MANY))
        yield name, round((many - few) / (MANY - FEW))


async def main() -> None:
    pod, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)):
            texts = {"by hand": ingress_by_hand.for_one_host(f"127.0.0.1:{port}", HOST, pod)}
            for title, all_kinds in (("vipwire", False), ("vipwire, rules of every kind", True)):
                run = folder / f"run-{all_kinds}"
                run.mkdir()
                texts[title] = await ours(run, pod, port, all_kinds=all_kinds)
            found = {title: dict(counted(folder, text, port)) for title, text in texts.items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
