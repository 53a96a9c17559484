"""(6) The cost of a new connection through vipwire's rules and through kube-proxy's, at several sizes.

    client namespace ── node namespace ── server namespace
    10.244.0.2          the rules         every endpoint's address

One process owns all sockets (a socket stays in the namespace in which it was opened), so that only the kernel's path
counts: connect() to a random VIP, then accept and reset, one after the other. Each ruleset has its own network, and
they take turns, so that other load affects all alike.
"""

import contextlib
import ctypes
import os
import random
import resource
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench import kubeproxy
from bench.cluster import ENDPOINT_NET, NODE_ADDRESS, POD_CIDR, SERVICE_CIDRS, TARGET_PORT, objects
from bench.options import Options
from bench.pipe import Pipe
from bench.report import Figure

from vipwire.model.net import format_address
from vipwire.model.service import EndpointSlice, Service
from vipwire.watched_objects.event import Kind, Listed

TITLE = "a new connection, client to server through a node"
TURNS = 20
NOISE = 1.05
"""The ratio between two runs of the same rules."""
_NET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
RESET = struct.pack("ii", 1, 0)
CLIENT, SERVER = "10.244.0.2", "10.245.0.2"
Load = Callable[[Sequence[Service], Sequence[EndpointSlice]], None]


def measure(options: Options) -> list[Figure]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    figures: list[Figure] = []
    for size in options.sizes:
        with contextlib.ExitStack() as stack:
            found = objects(size, options.endpoints)
            rules = {"none": nothing, "ours": _ours, "theirs": _theirs}
            networks = {name: stack.enter_context(network(load, *found)) for name, load in rules.items()}
            vips = [format_address(service.cluster_ips[0]) for service in found[0]]
            for _ in range(TURNS):
                for name, each in networks.items():
                    if name != "none":
                        each.connect(vips, 80, options.connections // TURNS, each.to_service)
                    each.connect([SERVER], TARGET_PORT, options.connections // TURNS, each.to_server)
        figures += _figures(size, networks)
    return figures


def _figures(size: int, networks: dict[str, "Network"]) -> Iterator[Figure]:
    """Promise stable figures only: the fastest tenth; the median includes other load."""
    ours, theirs, none = networks["ours"], networks["theirs"], networks["none"]
    for at, what, most in ((0.1, "fastest tenth within", NOISE), (0.5, "median", None)):
        mine, other = _quantile(ours.to_service, at), _quantile(theirs.to_service, at)
        yield Figure(f"to a Service of {size:,}, {what}: ours", mine, "µs")
        yield Figure("  kube-proxy's", other, "µs")
        yield Figure("  ours / kube-proxy's", mine / other, "ratio", most)
        mine, other = _quantile(ours.to_server, at), _quantile(theirs.to_server, at)
        yield Figure(f"past {size:,} Services, {what}: ours", mine, "µs")
        yield Figure("  kube-proxy's", other, "µs")
        yield Figure("  no rules", _quantile(none.to_server, at), "µs")
        yield Figure("  ours / kube-proxy's", mine / other, "ratio", most)


def _quantile(times: Sequence[float], at: float) -> float:
    return statistics.quantiles(times, n=100)[round(at * 100) - 1] * 1e6


def nothing(services: Sequence[Service], slices: Sequence[EndpointSlice]) -> None:
    del services, slices


def _ours(services: Sequence[Service], slices: Sequence[EndpointSlice]) -> None:
    pipe = Pipe()
    pipe.apply((Listed(Kind.SERVICE, tuple(services)), Listed(Kind.ENDPOINT_SLICE, tuple(slices))))
    pipe.sync()
    pipe.backend.close()


def _theirs(services: Sequence[Service], slices: Sequence[EndpointSlice]) -> None:
    text = "".join(kubeproxy.script(services, slices, NODE_ADDRESS, POD_CIDR, SERVICE_CIDRS))
    run("nft -f -", text)


@dataclass(slots=True)
class Network:
    """Three namespaces, the listener in the last, and durations of connections from the first, in seconds."""

    client: int
    node: int
    server: int
    listener: socket.socket
    to_service: list[float] = field(default_factory=list)
    to_server: list[float] = field(default_factory=list)

    def connect(self, addresses: Sequence[str], port: int, count: int, times: list[float]) -> None:
        clock, chance = time.perf_counter, random.Random(len(times))
        with inside(self.client):
            clients = [socket.socket() for _ in range(count)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            target = (chance.choice(addresses), port)
            began = clock()
            client.connect(target)
            times.append(clock() - began)
            server, _ = self.listener.accept()
            client.close()
            server.close()


@contextlib.contextmanager
def network(load: Load, services: Sequence[Service], slices: Sequence[EndpointSlice]) -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        node, client, server = (stack.enter_context(_namespace()) for _ in range(3))
        _wire(node, "c", client, CLIENT, "10.244.0.1")
        _wire(node, "s", server, SERVER, "10.245.0.1")
        with inside(server):
            run(f"ip route add local {ENDPOINT_NET} dev lo")
            listener = stack.enter_context(socket.create_server(("0.0.0.0", TARGET_PORT), backlog=1024))  # noqa: S104
        with inside(node):
            run(f"ip route add {ENDPOINT_NET} via {SERVER}")
            run("sysctl -qw net.ipv4.ip_forward=1")
            load(services, slices)
        yield Network(client, node, server, listener)


def _wire(node: int, near: str, far: int, address: str, gateway: str) -> None:
    """Connect a namespace to the node, which becomes its router."""
    with inside(far):
        run(f"ip link add eth0 type veth peer name {near} netns /proc/{os.getpid()}/fd/{node}")
        run(f"ip addr add {address}/24 dev eth0")
        run("ip link set eth0 up")
        run(f"ip route add default via {gateway}")
    with inside(node):
        run(f"ip addr add {gateway}/24 dev {near}")
        run(f"ip link set {near} up")


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """Make a network namespace that lives as long as its descriptor and sockets."""
    home = here()
    if _LIBC.unshare(_NET):
        raise OSError(ctypes.get_errno(), "unshare")
    made = here()
    enter(home)
    os.close(home)
    with inside(made):
        run("ip link set lo up")
    try:
        yield made
    finally:
        os.close(made)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    home = here()
    enter(namespace)
    try:
        yield
    finally:
        enter(home)
        os.close(home)


def here() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _NET):
        raise OSError(ctypes.get_errno(), "setns")


def run(command: str, stdin: str | None = None) -> None:
    done = subprocess.run(command.split(), input=stdin, text=True, check=False, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr[:500]}")
