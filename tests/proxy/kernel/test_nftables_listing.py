"""Debian's nft lists our whole table without a loss: loaded from the listing, it is the same table."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.fakes.own_network import own_network
from tests.fakes.values import HERE, cidr, endpoint, ips, node_plan, port, service, slice_of
from tests.proxy.kernel.nft_transactions import nft

from vipwire.config.sections import CounterLevel
from vipwire.model.net import Family, Protocol
from vipwire.model.service import EndpointPort, EndpointSlice, Service, TrafficPolicy
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.table import text
from vipwire.modes.nftables.table.names import Object, ObjectKey
from vipwire.plan.planner import Planner
from vipwire.reconcile.delta import Delta
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store

pytestmark = pytest.mark.kernel
PREFIX = {Family.IPV4: "10.96.0.", Family.IPV6: "fd00:10:96::"}
POD = {Family.IPV4: "10.1.0.", Family.IPV6: "fd00:10::"}
OUTSIDE = {Family.IPV4: "192.0.2.", Family.IPV6: "2001:db8:e::"}
RANGE = {Family.IPV4: "203.0.113.0/24", Family.IPV6: "2001:db8:f::/64"}
CIDR = {Family.IPV4: "10.96.0.0/16", Family.IPV6: "fd00:10:96::/112"}


def services(family: Family) -> Iterator[Service]:
    """Make a Service for each thing that the table can express; Maglev would be source-hash with 16,381 slots."""
    vip, outside = PREFIX[family], OUTSIDE[family]
    for number, algorithm in enumerate(("random", "round-robin", "source-hash"), 1):
        chosen = (("vipwire.io/algorithm", algorithm),)
        yield service(algorithm, f"{vip}{number}", port(80, node_port=30000 + number), annotations=chosen)
    everywhere: dict[str, Any] = {"external_ips": ips(f"{outside}1"), "load_balancer_ips": ips(f"{outside}2")}
    ports = [port(80, each.label, each, node_port=30080) for each in Protocol]
    guarded = (("vipwire.io/nodeport-source-ranges", RANGE[family]),)
    yield service(
        "outside",
        f"{vip}5",
        *ports,
        external_policy=TrafficPolicy.LOCAL,
        source_ranges=(cidr(RANGE[family]),),
        affinity_seconds=600,
        annotations=guarded,
        **everywhere,
    )
    wide = (("vipwire.io/algorithm", "round-robin"), ("vipwire.io/port-range", "5000-5999"))
    yield service("wide", f"{vip}6", port(5000), annotations=wide, source_ranges=(cidr(RANGE[family]),))
    yield service("nobody", f"{vip}7", port(80, node_port=30007))
    yield service("elsewhere", f"{vip}8", port(80, node_port=30008), external_policy=TrafficPolicy.LOCAL)


def slices(family: Family) -> Iterator[EndpointSlice]:
    """Give each of them endpoints here and elsewhere, but for those that have none, or none here."""
    pod = POD[family]
    for each in services(family):
        name = each.name.name
        if name == "nobody":
            continue
        here = HERE if name != "elsewhere" else "elsewhere"
        endpoints = (endpoint(f"{pod}1", here), endpoint(f"{pod}2"), endpoint(f"{pod}3", here))
        ports = [EndpointPort(every.name, every.protocol, 8080) for every in each.ports]
        yield slice_of(name, *endpoints, family=family, ports=ports)


@pytest.fixture(params=Family, ids=lambda family: family.value)
def backend(request: pytest.FixtureRequest) -> Iterator[NftablesBackend]:
    """Make a mode at work in a namespace of its own, which counts all that can be counted."""
    with own_network(), closing(NftablesBackend(request.param, counters=CounterLevel.TRAFFIC)) as made:
        yield made


def everything(backend: NftablesBackend) -> dict[ObjectKey, Object]:
    """Render all of them, and what belongs to none."""
    family, store = backend.family, Store()
    planner = Planner(node_plan(family, service_cidrs=(cidr(CIDR[family]),)))
    for each in services(family):
        store.apply(Upserted(each))
    for part in slices(family):
        store.apply(Upserted(part))
    objects = dict(backend.render_node(planner.node))
    for change in planner.update(store.take_touched(), store.view).values():
        assert change.new is not None
        rendered = backend.render(change.new)
        objects.update({**rendered.own, **rendered.shared})
    return objects


def test_the_table_loaded_from_its_listing_is_the_same(backend: NftablesBackend) -> None:
    objects = everything(backend)
    backend.commit(Delta(added=objects))
    assert backend.observe() == objects
    table = text.format_table_name(backend.family)
    listing = nft("list", "table", *table.split())
    nft("delete", "table", *table.split())
    nft("-f", "-", stdin=listing)
    assert backend.observe() == objects
    assert nft("list", "table", *table.split()) == listing
