"""`vipwire dns` as a process of its own on loopback, and dig to ask it.

with running(manifests, "--ttl", "7") as server:
    answer = server.dig("web.shop.svc.cluster.local", "A")
"""

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

LONG = 60.0
"""Seconds that no step takes, even on a loaded machine."""


@dataclass(frozen=True)
class Told:
    """dig's output: the code, the flags, and each section's records without owners and TTLs."""

    status: str
    flags: frozenset[str]
    answers: tuple[str, ...]
    authority: tuple[str, ...]
    owners: tuple[str, ...]
    ttls: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Server:
    """One running server; `lines` are the unread lines of its log."""

    port: int
    process: subprocess.Popen[str]
    lines: "Queue[str]"

    def dig(self, *words: str) -> Told:
        command = ["dig", "@127.0.0.1", "-p", str(self.port), "+tries=3", "+time=10", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return told(done.stdout)

    def wait_for(self, words: str) -> str:
        while True:
            line = self.lines.get(timeout=LONG)
            if words in line:
                return line


def told(text: str) -> Told:
    head = re.search(r"status: (\w+),.*\n;; flags: ([a-z ]*);", text)
    assert head, text
    sections: dict[str, list[list[str]]] = {}
    for name, body in re.findall(r"^;; (\w+) SECTION:\n((?:[^;\n].*\n)*)", text, re.MULTILINE):
        sections[name] = [line.split(None, 4) for line in body.splitlines()]
    answers = sections.get("ANSWER", [])
    return Told(
        status=head[1],
        flags=frozenset(head[2].split()),
        answers=tuple(f"{row[3]} {row[4]}" for row in answers),
        authority=tuple(f"{row[3]} {row[4]}" for row in sections.get("AUTHORITY", [])),
        owners=tuple(row[0] for row in answers),
        ttls=tuple(int(row[1]) for row in answers),
        text=text,
    )


@contextlib.contextmanager
def running(manifests: Path, *flags: str) -> Iterator[Server]:
    """Run a server for the block, which begins when it has listed everything."""
    command = [sys.executable, "-m", "vipwire", "dns", "--manifests", str(manifests), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--bind-address", "127.0.0.1", *flags], stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    lines: Queue[str] = Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        server = Server(0, process, lines)
        found = re.search(r"port=(\d+)", server.wait_for("serving DNS"))
        assert found
        server.wait_for("all objects are listed")
        yield Server(int(found[1]), process, lines)
    finally:
        process.terminate()
        process.wait(LONG)
        reader.join(LONG)
        if process.stderr is not None:
            process.stderr.close()


def _read(process: subprocess.Popen[str], lines: "Queue[str]") -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.put(line)
    lines.put("ended: serving DNS, all objects are listed")
