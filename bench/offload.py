"""The time that a flowtable saves an open connection, beside the rules and a node without any.

The networks of `datapath` each have one connection through their node, and take turns. A round trip is one byte there
and one back; in bulk, 64 KiB at a time are sent and received. One process has both ends, so that only the kernel's
path counts. A difference is the median over the turns. The kernel needs flowtables. One that has them, in an
emulator: `python -m vipwire_lab.guest_kernel --full -- python -m bench offload`. There only ratios mean something.
"""

import contextlib
import functools
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.cluster import TARGET_PORT, objects
from bench.datapath import SERVER, Load, Network, inside, network, nothing
from bench.options import Options
from bench.pipe import Pipe
from bench.report import Figure

from vipwire.linux.conntrack.flows import FlowTable
from vipwire.model.net import Family, format_address
from vipwire.model.service import EndpointSlice, Service
from vipwire.modes.nftables.probe import find_offloading_obstacle
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.watched_objects.event import Kind, Listed

TITLE = "an open connection, with and without a flowtable"
THRESHOLD = 20
TURNS = 15
ROUND_TRIPS, PIECES, PIECE = 100, 20, 1 << 16


@dataclass(slots=True)
class Talk:
    """A connection through a node, and the seconds of its turns."""

    near: socket.socket
    far: socket.socket
    round_trips: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """Exchange bytes, then send much in one direction."""
        began = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            self.near.send(b"?")
            self.far.recv(1)
            self.far.send(b"!")
            self.near.recv(1)
        between = time.perf_counter()
        for _ in range(PIECES):
            self._send(bytes(PIECE))
        self.round_trips.append((between - began) / ROUND_TRIPS)
        self.bulk.append((time.perf_counter() - between) / PIECES)

    def _send(self, data: bytes) -> None:
        left = PIECE
        self.near.sendall(data)
        while left:
            left -= len(self.far.recv(left))


def measure(options: Options) -> list[Figure]:
    if obstacle := find_offloading_obstacle([Family.IPV4]):
        raise SystemExit(obstacle)
    cyclic_garbage.collect_rarely()
    found = objects(options.services, options.endpoints)
    vip = format_address(found[0][0].cluster_ips[0])
    with contextlib.ExitStack() as stack:
        loads: dict[str, Load] = {
            "no rules": nothing,
            "rules": functools.partial(_ours, offload_after=0),
            "flowtable": functools.partial(_ours, offload_after=THRESHOLD),
        }
        nets = {name: stack.enter_context(network(load, *found)) for name, load in loads.items()}
        talks = {
            name: stack.enter_context(_connected(each, *((SERVER, TARGET_PORT) if name == "no rules" else (vip, 80))))
            for name, each in nets.items()
        }
        for talk in talks.values():
            talk.turn()
        _check(nets)
        for talk in talks.values():
            talk.round_trips, talk.bulk = [], []
        for _ in range(TURNS):
            for talk in talks.values():
                talk.turn()
        _check(nets)
        return list(_figures(talks))


def _ours(services: Sequence[Service], slices: Sequence[EndpointSlice], *, offload_after: int) -> None:
    pipe = Pipe(offload_after=offload_after)
    pipe.apply((Listed(Kind.SERVICE, tuple(services)), Listed(Kind.ENDPOINT_SLICE, tuple(slices))))
    pipe.sync()
    pipe.backend.housekeep()
    pipe.backend.close()


@contextlib.contextmanager
def _connected(where: Network, address: str, port: int) -> Iterator[Talk]:
    with inside(where.client):
        near = socket.socket()
    with contextlib.closing(near):
        near.connect((address, port))
        far, _ = where.listener.accept()
        with contextlib.closing(far):
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Talk(near, far)


def _check(nets: dict[str, Network]) -> None:
    """Raise unless a flowtable carries the intended connection, and no other."""
    for name, each in nets.items():
        with inside(each.node), FlowTable() as table:
            carried = table.count_offloaded(Family.IPV4)
        if carried != (name == "flowtable"):
            raise SystemExit(f"{name}: {carried} connections are offloaded")


def _figures(talks: dict[str, Talk]) -> Iterator[Figure]:
    for what, unit, times in (
        ("a round trip", "µs", {name: talk.round_trips for name, talk in talks.items()}),
        (f"{PIECE >> 10} KiB one way", "µs", {name: talk.bulk for name, talk in talks.items()}),
    ):
        for name, each in times.items():
            yield Figure(f"{what}: {name}", statistics.median(each) * 1e6, unit)
        for name in ("rules", "no rules"):
            pairs = zip(times["flowtable"], times[name], strict=True)
            yield Figure(f"  flowtable / {name}", statistics.median(one / other for one, other in pairs), "ratio")
