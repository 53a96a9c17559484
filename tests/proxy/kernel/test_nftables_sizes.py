"""Sets with a size: a larger one replaces a full one, and no packet finds an element missing."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread

import pytest
from tests.fakes.own_network import enter, own_network, run
from tests.fakes.values import endpoint, node_plan, port, service, slice_of
from tests.fakes.waiting import until
from tests.proxy.kernel.nft_transactions import dump

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.pooled import PooledBackend
from vipwire.modes.nftables.table.names import TABLE, Object, ObjectKey
from vipwire.modes.nftables.table.sizes import SIZED, SMALLEST, choose_size
from vipwire.plan.planner import Planner
from vipwire.reconcile.reconciler import Reconciler, Report
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store

pytestmark = pytest.mark.kernel
VIP, POD = "10.96.0.1", "127.0.0.1"


class World:
    """Services of one node, planned and synced."""

    def __init__(self, backend: NftablesBackend) -> None:
        self.backend, self.store = backend, Store()
        self.planner = Planner(node_plan(backend.family))
        self.reconciler: Reconciler[ObjectKey, Object] = Reconciler(PooledBackend(backend))
        self.reconciler.desire_node(backend.render_node(self.planner.node))

    def add(self, numbers: range, *, affinity: int = 0) -> None:
        for number in numbers:
            name, vip = f"s{number}", f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            self.store.apply(Upserted(service(name, vip, port(80), affinity_seconds=affinity or None)))
            self.store.apply(Upserted(slice_of(name, endpoint(POD), endpoint("127.0.0.2"))))

    def sync(self) -> Report[ObjectKey]:
        for name, change in self.planner.update(self.store.take_touched(), self.store.view).items():
            self.reconciler.desire(name, change.new)
        return self.reconciler.sync()


def sizes() -> dict[str, int]:
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        found = dump(
            netlink, MessageType.GETSET, encode.list_objects(Family.IPV4, TABLE), decode.decode_set_declaration
        )
    return {item.name: item.size for item in found if item.name in SIZED}


@contextmanager
def connecting(namespace: int) -> Iterator[list[str]]:
    """Serve both endpoints and connect to the first Service all the time; yield what became of each connection."""
    found: list[str] = []
    enough = Event()
    listeners = [socket.create_server((address, 8080)) for address in (POD, "127.0.0.2")]

    def serve(listener: socket.socket) -> None:
        enter(namespace)
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            with taken:
                taken.sendall(taken.getsockname()[0].encode())

    def connect() -> None:
        enter(namespace)
        while not enough.wait(0.002):
            try:
                with socket.create_connection((VIP, 80), timeout=5) as made:
                    found.append(made.recv(100).decode())
            except OSError as error:
                found.append(str(error))

    threads = [Thread(target=serve, args=(listener,), daemon=True) for listener in listeners]
    threads.append(Thread(target=connect, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        enough.set()
        threads[-1].join(10)
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def test_a_small_cluster_has_small_sets_and_a_large_one_has_room() -> None:
    assert choose_size(0) == choose_size(2000) == SMALLEST
    assert choose_size(100_000) == 3 << 16
    with own_network(), closing(NftablesBackend(Family.IPV4)) as backend:
        world = World(backend)
        world.add(range(1, 3000))
        world.sync()
        assert sizes()["service-ips"] == choose_size(2999)
        assert sizes()["service-endpoints"] == choose_size(5998)
        assert sizes()["service-nodeports"] == SMALLEST


def test_many_services_at_once_enlarge_sets_and_no_connection_fails() -> None:
    with own_network() as here, closing(NftablesBackend(Family.IPV4)) as backend:
        run("ip route add local 10.96.0.0/12 dev lo")
        world = World(backend)
        world.add(range(1, 2), affinity=600)
        world.sync()
        with connecting(here) as found:
            until(lambda: len(found) >= 20, "connections are made")
            for last in (4_000, 14_000):
                world.add(range(2, last))
                report = world.sync()
                assert not world.reconciler.isolated
                assert report.added
                assert sizes()["service-ips"] == choose_size(last - 1)
                assert sizes()["service-endpoints"] == choose_size(2 * (last - 2))
            seen = len(found)
            until(lambda: len(found) >= seen + 20, "connections are made after the growth")
        assert set(found) == {found[0]}, "each connection reaches the endpoint that the client had first"
        assert found[0] in (POD, "127.0.0.2")
        world.reconciler.distrust()
        again = world.sync()
        assert (again.repaired, again.size) == ([], 0)


def test_a_new_process_takes_sets_of_any_size_and_sets_without_one() -> None:
    with own_network(), closing(NftablesBackend(Family.IPV4)) as backend:
        world = World(backend)
        world.add(range(1, 5000))
        world.sync()
        listed = run("nft list table ip vipwire")
        for script, limit in ((listed, True), ("\n".join(_without_sizes(listed)), False)):
            run("nft -f -", f"delete table ip vipwire\n{script}")
            with closing(NftablesBackend(Family.IPV4)) as other:
                restarted = World(other)
                restarted.add(range(1, 5000))
                assert restarted.sync().size == 0, "the table of the process before is right"
                restarted.add(range(5000, 20_000))
                restarted.sync()
                assert not restarted.reconciler.isolated
                assert sizes()["service-ips"] == (choose_size(19_999) if limit else 0)


def _without_sizes(listed: str) -> Iterator[str]:
    """Leave out the sizes of hashes, as earlier versions declared them."""
    name = ""
    for line in listed.splitlines():
        words = line.split()
        name = words[1] if words[:1] in (["set"], ["map"]) else name
        if words[:1] != ["size"] or name not in SIZED:
            yield line


def test_a_set_that_another_program_has_filled_is_emptied_and_told() -> None:
    with own_network(), closing(NftablesBackend(Family.IPV4)) as backend:
        world = World(backend)
        world.add(range(1, 100))
        world.sync()
        foreign = ", ".join(f"10.200.{number >> 8}.{number & 255}" for number in range(SMALLEST - 99))
        run("nft -f -", f"add element ip vipwire cluster-ips {{ {foreign} }}")
        world.add(range(100, 110))
        report = world.sync()
        assert not world.reconciler.isolated
        assert len(report.repaired) == SMALLEST - 99
        assert not world.reconciler.pending
