"""(9) Relaying in userspace mode, beside HAProxy in TCP mode and no proxy at all.

    clients ── relay or HAProxy ── server          all on the loopback of a new namespace

A new connection is connect, one byte there, one byte back, close. Its cost is the CPU time of the proxy's process, so
that it gives a core's capacity in spite of other load. Turns alternate.
"""

import contextlib
import multiprocessing
import os
import resource
import select
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.options import Options
from bench.report import Figure

from vipwire.model.net import Family
from vipwire.relay.client import Call, relay_name
from vipwire.relay.messages import Hello, Listener, Opened, Put, RelaySettings, Retire, Share, SocketAddress, Welcome

TITLE = "connections relayed by a process, beside HAProxy's"
TURNS = 5
IDLE, MEASURED = 10_000, 6_000
"""Nominal idle connections, and those opened: a proxy needs two files for each."""
_BULK = 1 << 30
_LOOPBACK = b"\x7f\0\0\1"
_HAPROXY = """
global
    maxconn 7000
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    option splice-auto
    maxconn 7000
listen one
    bind 127.0.0.1:{bind} backlog 4096
    balance roundrobin
    server a 127.0.0.1:{port}
"""


def measure(options: Options) -> list[Figure]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # Clients close first, so every connection occupies a port for a minute.
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("1024 65535")
    Path("/proc/sys/net/ipv4/tcp_tw_reuse").write_text("1")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_server())
        ours, haproxy = stack.enter_context(_relay(port)), stack.enter_context(_haproxy(port))
        return [
            *_connections(options, port, ours, haproxy),
            *_throughput(port, ours, haproxy),
            *_idle(ours, haproxy),
        ]


class Proxy:
    """A proxy's process with its children, and its port."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port = pid, port

    def seconds(self) -> float:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        times = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in (self.pid, *children)]
        return sum(map(int, times)) / 1e9

    def memory(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _connections(options: Options, port: int, ours: Proxy, haproxy: Proxy) -> Iterator[Figure]:
    each = max(2000, options.connections)
    cost: dict[str, list[float]] = {"ours": [], "haproxy": []}
    pace: dict[str, list[float]] = {"ours": [], "haproxy": [], "direct": []}
    for _ in range(TURNS):
        for name, proxy in (("ours", ours), ("haproxy", haproxy)):
            before, began = proxy.seconds(), time.perf_counter()
            _in_processes(lambda number=proxy.port: _connect(number, each), 3)  # type: ignore[misc]
            pace[name].append(3 * each / (time.perf_counter() - began))
            cost[name].append((proxy.seconds() - before) / (3 * each) * 1e6)
        began = time.perf_counter()
        _in_processes(lambda: _connect(port, each), 3)
        pace["direct"].append(3 * each / (time.perf_counter() - began))
    mine, theirs = statistics.median(cost["ours"]), statistics.median(cost["haproxy"])
    yield Figure("a connection, processor time: ours", mine, "µs")
    yield Figure("  HAProxy's", theirs, "µs")
    yield Figure("  ours / HAProxy's (0.8 of its connections a core)", mine / theirs, "ratio", 1.25)
    for name, values in pace.items():
        yield Figure(f"  connections a second, whole machine: {name}", statistics.median(values), "/s")


def _throughput(port: int, ours: Proxy, haproxy: Proxy) -> Iterator[Figure]:
    rates: dict[str, list[float]] = {"ours": [], "haproxy": [], "direct": []}
    cost: dict[str, list[float]] = {"ours": [], "haproxy": []}
    for _ in range(TURNS):
        for name, number, proxy in (
            ("direct", port, None),
            ("ours", ours.port, ours),
            ("haproxy", haproxy.port, haproxy),
        ):
            before, began = proxy.seconds() if proxy else 0.0, time.perf_counter()
            _fetch(number, _BULK)
            rates[name].append(_BULK / 1e9 / (time.perf_counter() - began))
            if proxy:
                cost[name].append((proxy.seconds() - before) / (_BULK / 1e9))
    median = {name: statistics.median(values) for name, values in rates.items()}
    yield Figure("one connection: direct", median["direct"], "GB/s")
    yield Figure("  ours", median["ours"], "GB/s")
    yield Figure("  HAProxy's", median["haproxy"], "GB/s")
    yield Figure("  direct / ours (0.4 of direct)", median["direct"] / median["ours"], "ratio", 2.5)
    for name, values in cost.items():
        yield Figure(f"  processor time a GB: {name}", statistics.median(values), "s")


def _idle(ours: Proxy, haproxy: Proxy) -> Iterator[Figure]:
    for name, proxy, most in (("ours", ours, 200.0), ("HAProxy's", haproxy, None)):
        before = proxy.memory()
        open_ones = []
        for _ in range(MEASURED):
            sock = socket.create_connection(("127.0.0.1", proxy.port))
            sock.sendall(b"i")
            open_ones.append(sock)
        for sock in open_ones:
            sock.recv(1)
        each = (proxy.memory() - before) / MEASURED
        yield Figure(f"{IDLE:,} idle connections, memory of the process: {name}", before + IDLE * each, "MB", most)
        yield Figure("  of it without any", before, "MB")
        for sock in open_ones:
            sock.close()


def _connect(port: int, count: int) -> None:
    """Connect `count` times, 8 at a time, so that the proxy finds several waiting."""
    left, opened = count, 0
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    while left:
        while opened < count and len(socks) < 8:
            sock = socket.socket()
            sock.connect(("127.0.0.1", port))
            sock.send(b"c")
            socks[sock.fileno()] = sock
            poll.register(sock.fileno(), select.EPOLLIN)
            opened += 1
        for fd, _ in poll.poll():
            sock = socks.pop(fd)
            if sock.recv(8) != b"c":
                raise SystemExit("a connection failed")
            poll.unregister(fd)
            sock.close()
            left -= 1


def _fetch(port: int, size: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"b")
        buffer, got = bytearray(1 << 20), 0
        while got < size:
            got += sock.recv_into(buffer)


def _in_processes(call: Callable[[], None], count: int) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=call) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit("a client has failed")


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """Serve: answers `c` and `i` with themselves, `b` with the requested number of bytes."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(listening,), daemon=True)
    process.start()
    try:
        yield listening.getsockname()[1]
    finally:
        process.terminate()
        process.join()
        listening.close()


def _serve(listening: socket.socket) -> None:
    poll = select.epoll()
    socks: dict[int, socket.socket] = {}
    poll.register(listening.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listening.fileno():
                sock, _ = listening.accept()
                socks[sock.fileno()] = sock
                poll.register(sock.fileno(), select.EPOLLIN)
                continue
            with contextlib.suppress(OSError):
                said = socks[fd].recv(1)
                if said == b"b":
                    poll.unregister(fd)
                    threading.Thread(target=_pour, args=(socks.pop(fd),), daemon=True).start()
                    continue
                if said:
                    socks[fd].send(said)
                    continue
            socks.pop(fd).close()


def _pour(sock: socket.socket) -> None:
    block, left = bytes(1 << 20), _BULK
    with contextlib.suppress(OSError), sock:
        while left:
            left -= sock.send(block[: min(len(block), left)])


@contextlib.contextmanager
def _relay(port: int) -> Iterator[Proxy]:
    call = Call.start(f"{relay_name(Family.IPV4)}-bench", RelaySettings())
    try:
        place, share = SocketAddress(_LOOPBACK, 0), Share(SocketAddress(_LOOPBACK, port))
        opened = call.ask_relay(Put({"one": Listener("bench", 6, (place,), (share,))}), Opened)
        yield Proxy(call.ask_relay(Hello(), Welcome).pid, opened.ports["one"][0])
    finally:
        call.tell(Retire())
        call.close()


@contextlib.contextmanager
def _haproxy(port: int) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            bind = probe.getsockname()[1]
        config = Path(folder) / "haproxy.cfg"
        config.write_text(_HAPROXY.format(bind=bind, port=port))
        process = subprocess.Popen(["haproxy", "-db", "-f", str(config)])
        try:
            deadline = time.monotonic() + 20
            while True:
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", bind)):
                    break
                if time.monotonic() > deadline:
                    raise SystemExit("haproxy does not listen")
            yield Proxy(process.pid, bind)
        finally:
            process.terminate()
            process.wait()
