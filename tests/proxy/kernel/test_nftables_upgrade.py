"""From the layout before to this one: one transaction, while connections are open and others are being made.

`nftables_memory_by_frontend.nft` is the table as it was written when clients were remembered by frontend, in maps
that all Services had together: two Services with affinity, one of them at a node port.
"""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.fakes.own_network import enter, own_network, run
from tests.fakes.values import endpoint, node_plan, port, service, slice_of

from vipwire.model.net import Family
from vipwire.model.service import TrafficPolicy
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.table.names import SET, Object, ObjectKey
from vipwire.plan.planner import Planner
from vipwire.reconcile.delta import Delta, compute_delta
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store

pytestmark = pytest.mark.kernel
BEFORE = Path(__file__).parent / "nftables_memory_by_frontend.nft"
WHOLE = (("vipwire.io/affinity-scope", "service"),)
VIP, ENDPOINTS = ("10.96.0.1", 80), ("127.0.0.1", "127.0.0.2")


def wanted(backend: NftablesBackend, **fields: Any) -> dict[ObjectKey, Object]:
    """Render the Services that the old table has; `fields` are more of theirs."""
    family = backend.family
    planner, store = Planner(node_plan(family)), Store()
    vips = (VIP[0], "10.96.0.2") if family is Family.IPV4 else ("fd00::1", "fd00::2")
    endpoints = ENDPOINTS if family is Family.IPV4 else ("fd00:1::1", "fd00:1::2")
    fields["affinity_seconds"] = 600
    store.apply(Upserted(service("web", vips[0], port(80, node_port=30080), **fields)))
    store.apply(Upserted(service("whole", vips[1], port(80), annotations=WHOLE, **fields)))
    for name in ("web", "whole"):
        store.apply(Upserted(slice_of(name, *map(endpoint, endpoints), family=family)))
    objects = dict(backend.render_node(planner.node))
    for change in planner.update(store.take_touched(), store.view).values():
        assert change.new is not None
        rendered = backend.render(change.new)
        objects.update({**rendered.shared, **rendered.own})
    return objects


@contextmanager
def echo(namespace: int) -> Iterator[None]:
    """Serve both endpoints: each connection is told where it arrived, and then gets back what it sends."""
    listeners = [socket.create_server((address, 8080)) for address in ENDPOINTS]

    def serve(listener: socket.socket) -> None:
        enter(namespace)
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            Thread(target=answer, args=(taken,), daemon=True).start()

    def answer(taken: socket.socket) -> None:
        with closing(taken):
            taken.sendall(taken.getsockname()[0].encode())
            while data := taken.recv(100):
                taken.sendall(data)

    threads = [Thread(target=serve, args=(listener,), daemon=True) for listener in listeners]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in threads:
            thread.join(10)


def connected(to: tuple[str, int] = VIP) -> tuple[socket.socket, str]:
    """Connect, and tell to which endpoint."""
    made = socket.create_connection(to, timeout=5)
    return made, made.recv(100).decode()


@contextmanager
def connecting(namespace: int) -> Iterator[list[str]]:
    """Make connections all the time, a thousand at most; yield the list of what became of them."""
    found: list[str] = []
    enough = Event()

    def connect() -> None:
        enter(namespace)
        while not enough.is_set() and len(found) < 1000:
            try:
                made, pod = connected()
                made.close()
                found.append(pod)
            except OSError as error:
                found.append(str(error))

    client = Thread(target=connect, daemon=True)
    client.start()
    try:
        yield found
    finally:
        enough.set()
        client.join(10)


def test_an_upgrade_is_one_transaction_that_no_connection_notices() -> None:
    with own_network() as here, closing(NftablesBackend(Family.IPV4)) as backend, echo(here):
        run("ip route add local 10.96.0.0/16 dev lo")
        run("nft -f -", BEFORE.read_text())
        held, pod = connected()
        assert pod in ENDPOINTS
        with closing(held):
            with connecting(here) as found:
                objects = wanted(backend)
                observed = backend.observe()
                assert (SET, b"affinity") in observed
                backend.commit(compute_delta(observed, objects))
                assert backend.observe() == objects, "nothing of the old layout is left"
            assert found
            assert set(found) <= set(ENDPOINTS)
            held.sendall(b"still there?")
            assert held.recv(100) == b"still there?"
        assert "map affinity {" not in run("nft list table ip vipwire")
        assert len({endpoint_of(VIP) for _ in range(5)}) == 1, "remembered from its first connection on"


@pytest.mark.parametrize("family", Family)
def test_a_table_that_remembers_is_loaded_from_its_listing(family: Family) -> None:
    table = "ip vipwire" if family is Family.IPV4 else "ip6 vipwire"
    with own_network(), closing(NftablesBackend(family)) as backend:
        objects = wanted(backend, external_policy=TrafficPolicy.LOCAL)
        backend.commit(Delta(added=objects))
        listing = run(f"nft list table {table}")
        assert "map affinity-local/default/web/tcp/ {" in listing
        run("nft flush ruleset")
        run("nft -f -", listing)
        assert backend.observe() == objects
        assert run(f"nft list table {table}") == listing


def endpoint_of(to: tuple[str, int]) -> str:
    """Connect once, and tell who answered."""
    made, pod = connected(to)
    made.close()
    return pod
