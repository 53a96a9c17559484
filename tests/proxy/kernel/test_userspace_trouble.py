"""A relay among endpoints that are not there and clients that mean no good, with the packets of a real kernel."""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.relaying import Peer, Relaying, client, heard, peers, relaying, was_reset

from vipwire.model.net import Address, parse_address
from vipwire.relay.balance import EJECT_AFTER
from vipwire.relay.listener import DIAL_TIMEOUTS
from vipwire.relay.messages import SocketAddress

pytestmark = [pytest.mark.attack, pytest.mark.kernel]
_EVERY_PACKET = 3
_SYN, _TCP = 2, 6
_EARLY = 0.01
"""Seconds that a timer may be early by: the relay takes the time once in each round."""


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """A namespace with a network where nobody is: what is sent to 10.244.0.0/24 vanishes."""
    with own_network():
        run("ip link add nobody type veth peer name void")
        run("ip link set void up")
        run("ip address add 10.244.0.254/24 dev nobody")
        run("ip link set nobody up")
        for number in range(1, 6):
            run(f"ip neighbour add 10.244.0.{number} lladdr 02:00:00:00:00:01 dev nobody nud permanent")
        yield


def silent(number: int) -> SocketAddress:
    return SocketAddress(parse_address(f"10.244.0.{number}"), 8080)


@contextlib.contextmanager
def seen() -> Iterator[socket.socket]:
    """Look at every packet that goes there."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PACKET)) as sock:
        sock.bind(("nobody", _EVERY_PACKET))
        sock.settimeout(0)
        yield sock


def dials(sock: socket.socket, found: dict[Address, float], now: float) -> None:
    """Note when each address was called first."""
    while select.select([sock], [], [], 0)[0]:
        packet = sock.recv(2048)
        header = (packet[0] & 15) * 4
        if packet[0] >> 4 == 4 and packet[9] == _TCP and packet[header + 13] == _SYN:
            found.setdefault(Address(packet[16:20]), now)


def test_a_client_is_dialled_for_four_times_each_elsewhere_and_with_more_patience() -> None:
    found: dict[Address, float] = {}
    with relaying() as at, seen() as wire, client(at.listen("web", *map(silent, range(1, 6)))) as sock:

        def over() -> bool:
            dials(wire, found, at.loop.now)
            return was_reset(sock)

        at.until(over)
        ended = at.loop.now
        assert len(found) == len(DIAL_TIMEOUTS) == 4, "each time another endpoint"
        times = [*sorted(found.values()), ended]
        gaps = [after - before for before, after in pairwise(times)]
        assert all(gap >= step - _EARLY for gap, step in zip(gaps, DIAL_TIMEOUTS, strict=True)), gaps
        assert at.counted().refused == {"no endpoint answers": 1}


def test_an_endpoint_that_hangs_costs_a_quarter_of_a_second_and_then_rests() -> None:
    with relaying() as at, peers(1) as (there,):
        port = at.listen("web", silent(1), there.place)
        waited: list[float] = []
        for _ in range(2 * EJECT_AFTER + 2):
            begun = time.monotonic()
            with client(port) as sock:
                served = at.until(there.accept)
                served.send(b"here")
                assert at.until(lambda: heard(sock)) == b"here"
            waited.append(time.monotonic() - begun)
        assert at.count("web", silent(1)).failed == EJECT_AFTER, "it is left alone from then on"
        assert sum(seconds >= DIAL_TIMEOUTS[0] - _EARLY for seconds in waited) >= EJECT_AFTER
        assert at.count("web", silent(1)).ejected
        assert "endpoint 10.244.0.1:8080 does not answer (Connection timed out); trying it again later" in at.said()


def test_those_who_hang_hold_up_nobody_who_is_served_elsewhere() -> None:
    with relaying() as at, peers(1) as (there,):
        hanging, good = at.listen("hanging", silent(1)), at.listen("good", there.place)
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(client(hanging))
            at.until(lambda: at.counted().links)
            with client(good) as sock:
                at.until(there.accept).send(b"here")
                assert at.until(lambda: heard(sock)) == b"here"


def half_open(port: int, count: int) -> None:
    """Begin handshakes from addresses of nobody's, and never go on."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        to = parse_address("127.0.0.1")
        for number in range(count):
            source = bytes((10, 244, 0, 1 + number % 5))
            ports = struct.pack("!HHIIBBHHH", 1024 + number, port, number, 0, 5 << 4, _SYN, 65535, 0, 0)
            pseudo = source + to + struct.pack("!BBH", 0, _TCP, len(ports))
            segment = ports[:16] + struct.pack("!H", _sum(pseudo + ports)) + ports[18:]
            header = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, _TCP, 0) + source + to
            raw.sendto(header + segment, ("127.0.0.1", 0))


def _sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def half_opened() -> int:
    with open("/proc/thread-self/net/tcp", encoding="ascii") as table:  # noqa: PTH123 - a line at a time
        return sum(line.split()[3] == "03" for line in table.readlines()[1:])


def test_a_flood_of_half_open_connections_is_the_kernels_and_bounded() -> None:
    """More than a listener's queue holds: none comes to the relay, and clients are served all the same."""
    flood = 6000
    run("sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lo.rp_filter=0 net.ipv4.conf.all.route_localnet=1")
    with relaying() as at, peers(1) as (there,):
        flooded, other = at.listen("flooded", there.place), at.listen("other", there.place)
        before = len(at.loop)
        half_open(flooded, flood)
        assert 100 < half_opened() <= 4097, "the kernel has taken them, and no more than the queue holds"
        for port in (other, flooded, flooded):
            answered_at(at, port, there)
        assert at.counted().refused == {}
        assert len(at.loop) <= before + 8, "a handshake that does not end costs the relay nothing"


def answered_at(at: Relaying, port: int, there: Peer) -> None:
    with client(port) as sock:
        sock.send(b"hello")
        served = at.until(there.accept)
        assert at.until(lambda: heard(served)) == b"hello"
