"""Costs and savings of ebpf mode beside nftables mode: connections, round trips, clusters, changes, restarts.

Four networks of `datapath`: without a proxy, with nftables mode, with ebpf mode, and with ebpf mode without
connection tracking for Pods. Each turn measures all of them, so that other load affects all alike; a difference is
the median over the turns. This process owns all sockets. Each network has its own cgroup, as each node has, in which
its sockets are opened, so that they meet that network's programs.
"""

import contextlib
import itertools
import random
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cluster import ENDPOINT_NET, POD_CIDR, TARGET_PORT, objects
from bench.datapath import RESET, SERVER, Network, inside, network, nothing, run
from bench.options import Options
from bench.pipe import Pipe
from bench.report import Figure
from tests.proxy.conformance import own_cgroup

from vipwire.config.sections import CounterLevel
from vipwire.linux.bpf.namespaces import read_netns_cookie
from vipwire.linux.bpf.pins import require_mounted
from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family, format_address
from vipwire.model.service import EndpointSlice, Service
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.kernel import EbpfBackend, ProgramSetup
from vipwire.modes.ebpf.layout import Settings
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.programs import build
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.watched_objects.event import Kind, Listed, Upserted

TITLE = "ebpf mode beside nftables mode"
SWAPS = 2_000
AT_ONCE = 100
"""Sockets of a network that are opened together, because entering a cgroup is slow."""
_NOTRACK = f"""
table ip bench-notrack {{ chain c {{ type filter hook prerouting priority raw; policy accept;
    ip saddr {POD_CIDR} ip daddr {ENDPOINT_NET} notrack; ip saddr {ENDPOINT_NET} ip daddr {POD_CIDR} notrack; }}; }}
"""


@dataclass(frozen=True, slots=True)
class Side:
    """A network, and the cgroup of its sockets."""

    network: Network
    cgroup: Path

    def opened(self, count: int, *, at_node: bool = False) -> list[socket.socket]:
        """Open sockets of its client, or of the node; closing resets them."""
        with own_cgroup.left(self.cgroup), inside(self.network.node if at_node else self.network.client):
            found = [socket.socket() for _ in range(count)]
        for each in found:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return found


def measure(options: Options) -> list[Figure]:
    cyclic_garbage.collect_rarely()
    require_mounted(may_mount=True)
    with own_cgroup.entered(), contextlib.ExitStack() as stack:
        return [*_packets(options, stack), *_objects(options, stack)]


def _packets(options: Options, stack: contextlib.ExitStack) -> Iterator[Figure]:
    found = objects(options.services, options.endpoints)
    vips = [format_address(each.cluster_ips[0]) for each in found[0]]
    names = ("no proxy", "nftables", "ebpf", "ebpf, notrack")
    sides = {name: _side(name, found, stack) for name in names}
    pipes = {name: _loaded(name, sides[name], found, stack) for name in names[1:]}
    ends = [format_address(each.address) for piece in found[1] for each in piece.endpoints]
    yield from _connects("a Pod", sides, vips, ends, options.connections, at_node=False)
    yield from _connects("the node", sides, vips, ends, options.connections // 2, at_node=True)
    yield from _round_trips(sides, vips, options.connections)
    yield from _swapped(sides["ebpf"], vips, pipes["ebpf"])


def _side(name: str, found: tuple[Sequence[Service], Sequence[EndpointSlice]], stack: contextlib.ExitStack) -> Side:
    cgroup = stack.enter_context(own_cgroup.beside(f"bench {name}"))
    return Side(stack.enter_context(network(nothing, *found)), cgroup)


def _loaded(
    name: str, side: Side, found: tuple[Sequence[Service], Sequence[EndpointSlice]], stack: contextlib.ExitStack
) -> Pipe:
    with inside(side.network.node):
        pipe = Pipe() if name == "nftables" else Pipe(lambda rules: _programs(rules, side, stack))
        pipe.apply((Listed(Kind.SERVICE, tuple(found[0])), Listed(Kind.ENDPOINT_SLICE, tuple(found[1]))))
        pipe.sync()
        run(f"ip route add default via {SERVER}")  # rules translate only packets with a route, if a wrong one
        if name.endswith("notrack"):
            run("nft -f -", _NOTRACK)
    return pipe


def _programs(rules: NftablesBackend, side: Side | None, stack: contextlib.ExitStack) -> EbpfBackend:
    """Add ebpf mode to the rules of this namespace; its Pod is the client."""
    clients = frozenset[int]()
    if side is not None:
        with inside(side.network.client):
            clients = frozenset({read_netns_cookie()})
    settings = Settings(
        read_netns_cookie(), 0, 0, listed=True, counting=CounterLevel.CONNECTIONS, build=build().number
    )
    pins = NodePins(find_node_folder(), side.cgroup if side is not None else own_cgroup.path())
    stack.callback(pins.remove)
    return EbpfBackend(Family.IPV4, rules, pins, ProgramSetup(settings, clients), tuple(HOOKS))


def _connects(
    who: str, sides: dict[str, Side], vips: Sequence[str], ends: Sequence[str], count: int, *, at_node: bool
) -> Iterator[Figure]:
    """Connect to endpoints directly and to Services, in each network, in random order."""
    chance = random.Random(count)
    ways = [
        (name, to_service) for name in sides for to_service in (False, True) if to_service <= (name != "no proxy")
    ]
    taken: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
    for _ in range(-(-count // AT_ONCE)):
        opened = {name: side.opened(2 * AT_ONCE, at_node=at_node) for name, side in sides.items()}
        for _ in range(AT_ONCE):
            for way in chance.sample(ways, len(ways)):
                target = (chance.choice(vips), 80) if way[1] else (chance.choice(ends), TARGET_PORT)
                taken[way].append(_connect(opened[way[0]].pop(), sides[way[0]].network.listener, target))
        for each in itertools.chain.from_iterable(opened.values()):
            each.close()
    direct = statistics.quantiles(taken["no proxy", False], n=10)[0] * 1e6
    yield Figure(f"{who} connects directly, no proxy: fastest tenth within", direct, "µs")
    added = {name: _difference(taken[name, True], taken[name, False]) for name in sides if name != "no proxy"}
    yield Figure("  to a Service, more than directly: nftables", added["nftables"], "µs")
    yield Figure("  the same: ebpf", added["ebpf"], "µs", None if at_node else 1.2)
    yield Figure("  ebpf / nftables", added["ebpf"] / added["nftables"], "ratio", 0.6)
    if not at_node:
        bare = taken["no proxy", False]
        for name in ("nftables", "ebpf", "ebpf, notrack"):
            ratio = (statistics.median(taken[name, True])) / statistics.median(bare)
            yield Figure(f"  to a Service / no proxy: {name}", ratio, "ratio", 1.05 if "notrack" in name else None)


def _connect(client: socket.socket, listener: socket.socket, target: tuple[str, int]) -> float:
    began = time.perf_counter()
    client.connect(target)
    took = time.perf_counter() - began
    listener.accept()[0].close()
    client.close()
    return took


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a - b for a, b in zip(one, other, strict=True)) * 1e6


def _round_trips(sides: dict[str, Side], vips: Sequence[str], count: int) -> Iterator[Figure]:
    """Send a byte and its answer over open connections."""
    with contextlib.ExitStack() as stack:
        pairs = {}
        for name, side in sides.items():
            for target in ((SERVER, TARGET_PORT), (vips[0], 80)) if name != "no proxy" else ():
                (client,) = map(stack.enter_context, side.opened(1))
                client.connect(target)
                pairs[name, target[1] == 80] = client, stack.enter_context(side.network.listener.accept()[0])
        taken: dict[tuple[str, bool], list[float]] = {way: [] for way in pairs}
        for _ in range(count):
            for way, (client, server) in pairs.items():
                began = time.perf_counter()
                client.send(b"x")
                server.recv(1)
                server.send(b"y")
                client.recv(1)
                taken[way].append(time.perf_counter() - began)
    for name in ("nftables", "ebpf"):
        more = _difference(taken[name, True], taken[name, False])
        yield Figure(f"a round trip, more than directly: {name}", more, "µs", 0.1 if name == "ebpf" else None)


def _swapped(side: Side, vips: Sequence[str], pipe: Pipe) -> Iterator[Figure]:
    """Replace programs under traffic, as a restart with another version does."""
    backend = pipe.backend
    if not isinstance(backend, EbpfBackend):
        raise TypeError(backend)
    failed = swaps = 0
    while swaps < SWAPS:
        backend.pins.close()
        backend.pins.attach_programs((), backend.wanted.settings.packed)
        swaps += len(HOOKS)
        for vip in (vips[0], vips[-1]):
            (opened,) = side.opened(1)
            with opened as client:
                client.settimeout(5)
                failed += client.connect_ex((vip, 80)) != 0
                side.network.listener.accept()[0].close()
    yield Figure(f"connections that failed in {swaps:,} swaps of programs", failed, "number", 0)


def _objects(options: Options, stack: contextlib.ExitStack) -> Iterator[Figure]:
    """Load a whole cluster and change a Service, with rules only and with programs, in turn."""
    services, slices = objects(options.services, options.endpoints)
    pipes: dict[str, Pipe] = {}
    totals: dict[str, list[float]] = {"nftables": [], "ebpf": []}
    for _ in range(3):
        for name, times in totals.items():
            where = stack.enter_context(network(nothing, [], []))
            with inside(where.node):
                pipe = pipes[name] = (
                    Pipe() if name == "nftables" else Pipe(lambda rules: _programs(rules, None, stack))
                )
                began = time.perf_counter()
                pipe.apply((Listed(Kind.SERVICE, tuple(services)), Listed(Kind.ENDPOINT_SLICE, tuple(slices))))
                pipe.sync()
                times.append(time.perf_counter() - began)
    best = {name: min(times) for name, times in totals.items()}
    yield Figure("from objects to the kernel: nftables", best["nftables"], "s")
    yield Figure("  ebpf", best["ebpf"], "s")
    yield Figure("  more", best["ebpf"] - best["nftables"], "s", 0.3)
    changes: dict[str, list[float]] = {name: [] for name in pipes}
    for index in range(options.samples):
        piece = slices[index * 7919 % len(slices)]
        for endpoints in (piece.endpoints[:-1], piece.endpoints):
            for name, pipe in pipes.items():
                began = time.perf_counter()
                pipe.apply([Upserted(replace(piece, endpoints=endpoints))])
                pipe.sync()
                changes[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) * 1e3 for name, times in changes.items()}
    yield Figure("one endpoint goes or comes: nftables", medians["nftables"], "ms")
    yield Figure("  ebpf", medians["ebpf"], "ms")
    yield Figure("  ebpf / nftables", medians["ebpf"] / medians["nftables"], "ratio", 1.3)
