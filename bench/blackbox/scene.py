"""The surroundings of a proxy under measurement, and probes: connections that only its rules bring to an endpoint.

    client namespace ── node namespace ────────── server namespace
    probes              the proxy, its API server  every endpoint's address

The networks are those of `bench.datapath`. All sockets of the probes are this process's, so that a probe waits for
the kernel and nobody else.
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
    """Return the ClusterIP of Service `number` of the tests' clusters."""
    return f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


@dataclass(slots=True)
class Scene:
    """A node, without a proxy as yet. `services` are all but the probe's, which is the next."""

    where: Network
    api: "Api"
    services: int

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Daemon:
        """Start a proxy on the node."""
        with inside(self.where.node):
            return Daemon(command, environment)

    def first_and_last(self, daemon: Daemon) -> tuple[float, float]:
        """Wait until Services from the first to the last answer; return the ages when one did, and when all did."""
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
        """Give the probe's Service another endpoint; return the seconds until that one has answered."""
        began = self.api.do("move", number)
        return self.until(self.services, format_address(new_address(number))) - began

    def until(self, service: int, endpoint: str) -> float:
        """Wait until a certain endpoint answers for a Service; return when it has."""
        limit = time.monotonic() + PATIENCE
        while self.answer(service) != endpoint:
            if time.monotonic() > limit:
                raise SystemExit(f"Service {service} did not come to {endpoint}")
            time.sleep(_PAUSE)
        return time.monotonic()

    def answer(self, service: int) -> str | None:
        """Connect to a Service; return the address of the endpoint that accepted, None where none did."""
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
        """Wait until the node's /healthz is 200; return the age of the proxy then."""
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
    """Build a node with an API server that has so many Services and the probe's."""
    with network(nothing, (), ()) as where, inside(where.node), Api(services, endpoints) as api:
        where.listener.settimeout(_PROBE_SECONDS)
        run(f"ip addr add {NODE_ADDRESS}/32 dev lo")
        run(f"ip route add {NEW_ENDPOINT_NET} via {SERVER}")
        with inside(where.server):
            run(f"ip route add local {NEW_ENDPOINT_NET} dev lo")
        yield Scene(where, api, services)


class Api:
    """`bench.blackbox.api` in a process of its own."""

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
        """Change objects; return when the first byte of that was written, on the monotonic clock."""
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
    """Wait until a proxy has used next to no CPU for a second, twice in a row; not longer than `most` seconds.

    Once is not enough: while others have the processors, it may only be waiting for one.
    """
    limit = time.monotonic() + most
    before, quiet = daemon.cpu(), 0
    while time.monotonic() < limit and quiet < _QUIET:
        time.sleep(1.0)
        now = daemon.cpu()
        quiet = quiet + 1 if now - before < 0.05 else 0
        before = now


def each(times: Iterable[int], action: Callable[[int], float], pause: float) -> list[float]:
    """Do something several times with a pause before each; return what it returned."""
    found = []
    for number in times:
        time.sleep(pause)
        found.append(action(number))
    return found


def tools(folder: Path, variant: str) -> str:
    """Make the plain names of the iptables programs one variant's; return the PATH that says so."""
    if not folder.exists():
        folder.mkdir()
        for program in ("iptables", "ip6tables"):
            for suffix in ("", "-save", "-restore"):
                (folder / f"{program}{suffix}").symlink_to(f"/usr/sbin/xtables-{variant}-multi")
    return f"{folder}:{os.environ['PATH']}"
