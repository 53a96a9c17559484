"""Attempts of an unprivileged local user against root's processes. Runs as nobody, imports no vipwire.

Reads a JSON of `paths`, `pids`, `names` (abstract sockets) and `ports`; prints the successful attempts and the data
read.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

PARTS = (
    *("environ", "mem", "maps", "cmdline", "status", "stack", "syscall", "auxv", "io", "personality", "comm"),
    *("oom_score_adj", "coredump_filter", "uid_map", "limits", "mountinfo", "sched", "clear_refs", "autogroup"),
)
REQUESTS = (
    *("/", "/metrics", "/healthz?verbose", "/readyz?verbose", "/configz", "/proxyMode", "/debug/pprof", "/status"),
    *("/api/v1/secrets", "/api/v1/nodes", "/apis", "/version", "/openapi/v2", "/../../etc/shadow"),
)


def writable(path: str) -> Iterator[str]:
    """Try to change a file, folder or socket; yield successes."""
    with contextlib.suppress(OSError):
        made = f"{path}/of-a-stranger"
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        yield f"create in {path}"
        Path(f"{path}/of-a-stranger").unlink()
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        yield f"write {path}"
    with contextlib.suppress(OSError):
        Path(path).rename(f"{path}.moved")
        yield f"rename {path}"
    with contextlib.suppress(OSError):
        Path(path).chmod(0o777)
        yield f"chmod {path}"
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as tried:
            tried.connect(path)
            yield f"connect to {path}"


def process(pid: int) -> Iterator[str]:
    """Try to control a process; yield successes."""
    for number in (0, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            yield f"signal {number} to {pid}"
    for part in ("root", "cwd", "exe", "fd/0", "ns/net"):
        with contextlib.suppress(OSError):
            yield f"link {part} of {pid}: {Path(f'/proc/{pid}/{part}').readlink()}"
    for part in PARTS:
        with contextlib.suppress(OSError):
            os.close(os.open(f"/proc/{pid}/{part}", os.O_WRONLY))
            yield f"write /proc/{pid}/{part}"
    with contextlib.suppress(OSError):
        list(Path(f"/proc/{pid}/fd").iterdir())
        yield f"list fd of {pid}"


def read(path: str) -> bytes:
    with contextlib.suppress(OSError), Path(path).open("rb") as opened:
        return opened.read(1 << 20)
    return b""


def asked(sock: socket.socket, sent: bytes) -> bytes:
    """Send bytes; return the answer until a short silence."""
    heard = b""
    with contextlib.suppress(OSError):
        sock.settimeout(0.5)
        sock.sendall(sent)
        while len(heard) < 1 << 22 and (part := sock.recv(1 << 16)):
            heard += part
    return heard


def answers(names: list[str], ports: list[int]) -> Iterator[tuple[str, bytes]]:
    """Send to abstract sockets and ports; yield their answers."""
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            for sent in (b"", b"{}\n", b"\0" * 64, b'{"retire": true}\n', os.urandom(512)):
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as made:
                    made.connect(f"\0{name}")
                    yield f"@{name}", asked(made, sent)
    for port in ports:
        for path in REQUESTS:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as made:
                yield (
                    f"{port}{path}",
                    asked(made, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()),
                )


def main() -> None:
    given = json.load(sys.stdin)
    done = [each for path in given["paths"] for each in writable(path)]
    done += [each for pid in given["pids"] for each in process(pid)]
    files = [*given["paths"], *(f"/proc/{pid}/{part}" for pid in given["pids"] for part in PARTS)]
    found = [(path, read(path)) for path in files]
    found += answers(given["names"], given["ports"])
    told = {where: text.decode("latin-1") for where, text in found if text}
    json.dump({"user": os.getuid(), "done": done, "read": told, "tried": len(files) + len(found)}, sys.stdout)


main()
