"""What ebpf mode's programs count and note: it outlives changes of pools and maps; notes end with their sockets."""

import os
import socket
import struct
from collections import Counter
from contextlib import closing

import pytest
from tests.proxy.kernel.ebpf_maps import objects, settings, write

from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.pins import pin
from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf.counts import NUMBER, CountedConnections
from vipwire.modes.ebpf.layout import (
    FRONTEND,
    FRONTENDS,
    HEAD,
    Flag,
    Ours,
    choose_family_suffix,
    endpoint_slot,
    endpoints,
    frontend_key,
)
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.programs import build
from vipwire.modes.ebpf.tables import Tables

pytestmark = pytest.mark.kernel

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=str)
HAD = (5, 7, 11)


def led(pins: NodePins, family: Family, key: bytes) -> int:
    """Tell to which slot a frontend leads first."""
    frontends = pins.require_map(f"frontends{choose_family_suffix(family)}")
    return int(FRONTEND.unpack(frontends.lookup(key) or b"")[0])


def hit(pins: NodePins, family: Family, key: bytes, numbers: tuple[int, ...]) -> None:
    """Count so many connections more in a frontend's slots, as a program does."""
    first = led(pins, family, key) * NUMBER
    with closing(pins.require_map(f"hits{choose_family_suffix(family)}").map_memory(write=True)) as view:
        for at, number in zip(range(first, first + NUMBER * len(numbers), NUMBER), numbers, strict=True):
            view[at : at + NUMBER] = struct.pack("=Q", number + struct.unpack_from("=Q", view, at)[0])


def counted(pins: NodePins, family: Family) -> Counter[bytes]:
    """Add up what anybody reads who looks."""
    found: Counter[bytes] = Counter()
    with closing(NodePins(pins.folder, None)) as others:
        for pair, number in CountedConnections(family, others).read():
            found[pair] += number
    return found


@FAMILIES
def test_connections_are_kept_whatever_becomes_of_a_pool(pins: NodePins, family: Family) -> None:
    """Endpoints go and come back, one stands there twice, others empty the map, maps grow, the Service goes."""
    tables, whole = Tables(family, pins), objects(family, 1, 3)
    ((space, key), value), *_ = whole.items()
    ends = endpoints(family, value)
    each = (len(value) - HEAD.size) // 3
    slots = [value[at : at + each] for at in range(HEAD.size, len(value), each)]
    write(tables, {}, whole)
    hit(pins, family, key, HAD)
    expected = Counter({key + end: number for end, number in zip(ends, HAD, strict=True)})
    assert counted(pins, family) == expected
    have = whole
    for dealt in ((2, 1), (1, 0, 1), (0, 1, 2), (2,)):
        want: Ours = {(space, key): value[: HEAD.size] + b"".join(slots[index] for index in dealt)}
        write(tables, have, want)
        have = want
        assert counted(pins, family) == expected, dealt
        hit(pins, family, key, tuple(1 for _ in dealt))
        expected.update(key + ends[index] for index in dealt)
        assert counted(pins, family) == expected, dealt
    pins.require_map(f"frontends{choose_family_suffix(family)}").remove([key])
    assert tables.observe() == {}
    write(tables, {}, whole)
    hit(pins, family, key, HAD)
    expected.update({key + end: number for end, number in zip(ends, HAD, strict=True)})
    assert counted(pins, family) == expected
    tables.enlarge_maps(whole)
    tables.collect_outgrown_counts()
    assert counted(pins, family) == expected
    hit(pins, family, key, HAD)
    write(tables, whole, {})
    expected.update({key + end: number for end, number in zip(ends, HAD, strict=True)})
    assert counted(pins, family) == expected


def test_what_is_counted_before_programs_know_the_larger_maps_is_kept(pins: NodePins) -> None:
    tables, whole = Tables(Family.IPV4, pins), objects(Family.IPV4, 1, 3)
    ((_, key), value), *_ = whole.items()
    write(tables, {}, whole)
    first, smaller = led(pins, Family.IPV4, key), Map(os.dup(pins.require_map("hits4").descriptor))
    tables.enlarge_maps(whole)
    with closing(smaller.map_memory(write=True)) as view:
        view[first * NUMBER] = 3
    smaller.close()
    tables.collect_outgrown_counts()
    assert counted(pins, Family.IPV4) == {key + endpoints(Family.IPV4, value)[0]: 3}


def test_only_what_frontends_lead_to_now_is_taken_from_slots(pins: NodePins) -> None:
    """A process that was killed may have left numbers in slots that nobody uses."""
    tables, whole = Tables(Family.IPV4, pins), objects(Family.IPV4, 1, 3)
    with closing(pins.open_or_create("hits4").map_memory(write=True)) as view:
        view[: 4 * NUMBER] = b"\1" * 4 * NUMBER
    write(tables, {}, whole)
    assert counted(pins, Family.IPV4) == {}


@pytest.mark.parametrize("room", [0, 1])
def test_a_stream_knows_its_service_until_it_is_closed(pins: NodePins, room: int) -> None:
    """Those that `peers` has no room for have it in the socket."""
    vip = ("10.96.0.10", 80)
    shape = build().object.maps["peers4"]
    if room:
        made = Map.create("small", shape._replace(max_entries=room))
        pin(made.descriptor, pins.folder / "maps" / "peers4")
        made.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        want: Ours = {
            (FRONTENDS, frontend_key(parse_address(vip[0]), Protocol.TCP, vip[1])): HEAD.pack(Flag.NODE)
            + endpoint_slot(parse_address("127.0.0.1"), server.getsockname()[1])
        }
        write(Tables(Family.IPV4, pins), {}, want)
        pins.attach_programs(HOOKS, settings())
        clients = [socket.create_connection(vip, timeout=5) for _ in range(3)]
        direct = socket.create_connection(server.getsockname(), timeout=5)
        assert [each.getpeername() for each in clients] == [vip] * 3
        assert direct.getpeername() == server.getsockname()
        assert len(list(pins.require_map("peers4").items())) == (room or 3)
        for each in (*clients, direct):
            each.close()
        assert list(pins.require_map("peers4").items()) == []
        for _ in range(4):
            server.accept()[0].close()
