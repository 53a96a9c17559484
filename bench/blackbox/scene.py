"""The network around a proxy under measurement, and probes: connections that need its rules.

    client namespace ── node namespace ────────── server namespace
    probes              the proxy, its API server  every endpoint's address

The networks are those of `bench.datapath`. This process owns all sockets of the probes, so that a probe waits for the
kernel only.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.blackbox.daemon import PATIENCE, Daemon
from bench.cluster import NEW_ENDPOINT_NET, NODE_ADDRESS, new_address
from bench.datapath import RESET, SERVER, Network, inside, network, nothing, run

from vipwire.model.net import format_address

_HEALTH = ("127.0.0.1", 10256)
_PAUSE = 0.0002
_PROBE_SECONDS = 0.1
_QUIET = 2


def vip(number: int) -> str:
    return f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


@dataclass(slots=True)
class Scene:
    """A node before its proxy starts. `services` is the number without the probe's, which follows them."""

    where: Network
    api: "Api"
    services: int

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Daemon:
        with inside(self.where.node):
            return Daemon(command, environment)

    def first_and_last(self, daemon: Daemon) -> tuple[float, float]:
        """Wait until the first to the last Service answers; return the proxy's age at the first and at all."""
        silent = every = sorted({self.services * part // 10 for part in range(11)})
        first = 0.0
        while silent:
            daemon.look_at_children()
            silent = [number for number in silent if self.answer(number) is None]
            age = daemon.age()
            if silent != every and not first:
                first = age
            time.sleep(0.002)
        return first, age

    def moved(self, number: int) -> float:
        """Replace the endpoint of the probe's Service; return the seconds until the new one answers."""
        began = self.api.do("move", number)
        return self.until(self.services, format_address(new_address(number))) - began

    def until(self, service: int, endpoint: str) -> float:
        """Wait until `endpoint` answers for a Service; return the time."""
        limit = time.monotonic() + PATIENCE
        while self.answer(service) != endpoint:
            if time.monotonic() > limit:
                raise SystemExit(f"Service {service} did not come to {endpoint}")
            time.sleep(_PAUSE)
        return time.monotonic()

    def answer(self, service: int) -> str | None:
        """Connect to a Service; return the accepting endpoint's address, None without one."""
        with inside(self.where.client):
            client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.settimeout(_PROBE_SECONDS)
        with client:
            try:
                client.connect((vip(service), 80))
                server, _ = self.where.listener.accept()
            except OSError:
                return None
            with server:
                return str(server.getsockname()[0])

    def healthy(self, daemon: Daemon) -> float:
        """Wait until the node's /healthz answers 200; return the proxy's age."""
        while not self._is_healthy():
            daemon.look_at_children()
            daemon.age()
            time.sleep(0.002)
        return daemon.age()

    def _is_healthy(self) -> bool:
        with inside(self.where.node):
            asking = socket.socket()
        asking.settimeout(_PROBE_SECONDS)
        with asking:
            try:
                asking.connect(_HEALTH)
                asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
                return asking.recv(64).startswith(b"HTTP/1.1 200")
            except OSError:
                return False


@contextlib.contextmanager
def scene(services: int, endpoints: int) -> Iterator[Scene]:
    """Build a node with an API server that has `services` Services and the probe's."""
    with network(nothing, (), ()) as where, inside(where.node), Api(services, endpoints) as api:
        where.listener.settimeout(_PROBE_SECONDS)
        run(f"ip addr add {NODE_ADDRESS}/32 dev lo")
        run(f"ip route add {NEW_ENDPOINT_NET} via {SERVER}")
        with inside(where.server):
            run(f"ip route add local {NEW_ENDPOINT_NET} dev lo")
        yield Scene(where, api, services)


class Api:
    """`bench.blackbox.api` in a separate process."""

    def __init__(self, services: int, endpoints: int) -> None:
        command = [sys.executable, "-m", "bench.blackbox.api", str(services), str(endpoints)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._line()

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("the API server has ended")
        return line.strip()

    def do(self, command: str, *numbers: int) -> float:
        """Change objects; return the monotonic time of the first written byte."""
        if self._process.stdin:
            self._process.stdin.write(f"{' '.join(map(str, (command, *numbers)))}\n")
            self._process.stdin.flush()
        return float(self._line())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def settle(daemon: Daemon, most: float) -> None:
    """Wait until a proxy has used almost no CPU for a second, twice in a row, at most `most` seconds.

    Once is not enough: on a busy machine it may be waiting for a processor.
    """
    limit = time.monotonic() + most
    before, quiet = daemon.cpu(), 0
    while time.monotonic() < limit and quiet < _QUIET:
        time.sleep(1.0)
        now = daemon.cpu()
        quiet = quiet + 1 if now - before < 0.05 else 0
        before = now


def each(times: Iterable[int], action: Callable[[int], float], pause: float) -> list[float]:
    """Run an action for each number, with a pause before each; return the results."""
    found = []
    for number in times:
        time.sleep(pause)
        found.append(action(number))
    return found


def tools(folder: Path, variant: str) -> str:
    """Link the plain names of the iptables programs to one variant; return a PATH with them."""
    if not folder.exists():
        folder.mkdir()
        for program in ("iptables", "ip6tables"):
            for suffix in ("", "-save", "-restore"):
                (folder / f"{program}{suffix}").symlink_to(f"/usr/sbin/xtables-{variant}-multi")
    return f"{folder}:{os.environ['PATH']}"
