"""A test's own folder in bpffs, namespace and cgroup, and content for its maps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.own_network import own_network
from tests.proxy.conformance import own_cgroup

from vipwire.config.sections import CounterLevel
from vipwire.linux.bpf.namespaces import read_netns_cookie
from vipwire.linux.bpf.pins import is_mounted, require_mounted
from vipwire.model.net import Address, Family, Protocol, parse_address
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.layout import FRONTENDS, HEAD, MEMBERS, Flag, Ours, Settings, endpoint_slot, frontend_key
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.programs import build
from vipwire.modes.ebpf.tables import Tables
from vipwire.reconcile.delta import compute_delta

VIP = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::10"}
POD = {Family.IPV4: "10.244.0.1", Family.IPV6: "fd00:10:244::1"}


@contextmanager
def own_folder() -> Iterator[Path]:
    """Be in a cgroup without programs; yield it."""
    require_mounted(may_mount=True)
    assert is_mounted()
    with own_cgroup.beside("kernel") as path:
        yield path


@contextmanager
def own_pins(cgroup: Path) -> Iterator[NodePins]:
    """Be in a namespace as a node without anything in bpffs; yield its folder."""
    with own_network():
        made = NodePins(find_node_folder(), cgroup)
        try:
            yield made
        finally:
            made.remove()


def settings() -> bytes:
    """Return settings with this namespace as the node."""
    return Settings(
        read_netns_cookie(), 0, 0, listed=True, counting=CounterLevel.CONNECTIONS, build=build().number
    ).packed


def objects(family: Family, services: int, ends: int = 2, protocol: Protocol = Protocol.TCP) -> Ours:
    """Return frontends, each with its own endpoints."""
    vip, pod = (int.from_bytes(parse_address(text[family])) for text in (VIP, POD))
    found: Ours = {}
    for number in range(services):
        key = frontend_key(_address(family, vip + number), protocol, 80)
        dealt = [endpoint_slot(_address(family, pod + number * ends + each), 8080) for each in range(ends)]
        found[FRONTENDS, key] = HEAD.pack(Flag.NODE) + b"".join(dealt)
        if protocol is Protocol.UDP:
            size = len(dealt[0]) if family is Family.IPV4 else 20
            found.update(((MEMBERS, key + each[:size]), b"") for each in dealt)
    return found


def _address(family: Family, number: int) -> Address:
    return Address(number.to_bytes(family.bits // 8))


def write(tables: Tables, have: Ours, want: Ours) -> None:
    tables.commit(compute_delta(have, want))
