"""Random worlds: a node, Services and EndpointSlices in a space so small that all of them interact."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, zip_longest
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from tests.fakes.values import ELSEWHERE, EVERYWHERE, HERE, NODE_ADDRESS, POD_PREFIX, cidr, ip, named

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, TrafficPolicy
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces, PodPrefixes
from vipwire.plan.plan import FrontendKey
from vipwire.plan.planner import Planner
from vipwire.plan.resolve import Packet

FEW = settings(max_examples=min(60, settings().max_examples))
"""For laws whose worlds take long to evaluate."""
NAMES = [named(name) for name in "abcd"]
SLICE_NAMES = [named(f"{name}-{number}") for name in "abcd" for number in (1, 2)]


@dataclass(frozen=True)
class Space:
    """The addresses of one family. Those of Services overlap with each other and with the node's."""

    family: Family
    cluster_ips: tuple[Address, ...]
    vips: tuple[Address, ...]
    node: tuple[Address, ...]
    loopback: Address
    here: tuple[Address, ...]
    elsewhere: tuple[Address, ...]
    outside: tuple[Address, ...]
    service_cidr: Prefix
    ranges: tuple[Prefix, ...]

    @property
    def local(self) -> frozenset[bytes]:
        return frozenset((*self.node, self.loopback))


def _ips(*texts: str) -> tuple[Address, ...]:
    return tuple(map(ip, texts))


FOUR = Space(
    Family.IPV4,
    _ips("10.96.0.1", "10.96.0.2", "10.96.0.3"),
    _ips("1.1.1.1", "2.2.2.2", "10.96.0.2", NODE_ADDRESS[Family.IPV4]),
    _ips(NODE_ADDRESS[Family.IPV4], "192.168.1.2"),
    ip("127.0.0.1"),
    _ips("10.1.0.1", "10.1.0.2", NODE_ADDRESS[Family.IPV4]),
    _ips("10.2.0.1", "10.2.0.2", "192.168.0.3"),
    _ips("203.0.113.2", "203.0.113.130", "1.1.1.1"),
    cidr("10.96.0.0/24"),
    tuple(map(cidr, ("203.0.113.0/25", "203.0.113.0/24", "192.168.0.0/24", "10.1.0.0/16", "0.0.0.0/0", "fd00::/8"))),
)
SIX = Space(
    Family.IPV6,
    _ips("fd00:96::1", "fd00:96::2", "fd00:96::3"),
    _ips("2001:db8:1::1", "2001:db8:2::2", "fd00:96::2", NODE_ADDRESS[Family.IPV6]),
    _ips(NODE_ADDRESS[Family.IPV6], "2001:db8::2"),
    ip("::1"),
    _ips("fd00:10::1", "fd00:10::2", NODE_ADDRESS[Family.IPV6]),
    _ips("fd00:10:0:0:8000::1", "fd00:10:0:0:8000::2", "2001:db8::3"),
    _ips("2001:db8:f::2", "2001:db8:f:8000::2", "2001:db8:1::1"),
    cidr("fd00:96::/112"),
    tuple(map(cidr, ("2001:db8:f::/49", "2001:db8:f::/48", "2001:db8::/64", "fd00:10::/64", "::/0", "10.0.0.0/8"))),
)
SPACES = st.sampled_from([FOUR, SIX])

port_numbers = st.sampled_from([80, 81, 30080])
node_ports = st.sampled_from([0, 30080, 30081])
protocols = st.sampled_from([Protocol.TCP, Protocol.TCP, Protocol.UDP, Protocol.SCTP])
policies = st.sampled_from(TrafficPolicy)
port_names = st.sampled_from(["", "x"])
CONDITIONS = [(True, True, False)] * 3 + list(product((True, False), repeat=3))
"""Ready, serving, terminating: mostly an ordinary endpoint's."""
interfaces = st.sampled_from(["eth0", "veth1", "cni0"])
zones = st.sampled_from([(), ("a",), ("b",)])


def tuples(items: st.SearchStrategy[Any], most: int, *, least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    """Generate short tuples without duplicates."""
    return st.lists(items, min_size=least, max_size=most, unique=True).map(tuple)


service_ports = st.builds(ServicePort, port_names, protocols, port_numbers, node_ports)
endpoint_ports = st.builds(EndpointPort, port_names, protocols, st.sampled_from([8080, 9090, 80]))


@cache
def annotations(space: Space) -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    """Generate all annotations except Maglev, whose table of 16,381 slots has its own test."""
    addresses = (*space.here, *space.elsewhere)
    weights = {format_address(address): (index + 1) % 4 for index, address in enumerate(addresses)}
    wishes = {
        "affinity-scope": ["", "service"],
        "algorithm": ["", "round-robin", "source-hash"],
        "nodeport-source-ranges": ["", str(space.ranges[0]), ",".join(map(str, space.ranges[1:3]))],
        "port-range": ["", "79-90", "x=80-82", "81-81,x=80-80"],
        "weights": ["", json.dumps(weights)],
    }
    keys = [f"vipwire.io/{name}" for name in wishes]
    return st.tuples(*map(st.sampled_from, wishes.values())).map(
        lambda texts: tuple((key, text) for key, text in zip(keys, texts, strict=True) if text)
    )


@cache
def services(space: Space) -> st.SearchStrategy[Service]:
    return st.builds(
        Service,
        name=st.sampled_from(NAMES),
        ports=tuples(service_ports, 3, least=1),
        cluster_ips=st.sampled_from(space.cluster_ips).map(lambda address: (address,)),
        created=st.sampled_from([0.0, 1.0, 2.0]),
        external_ips=tuples(st.sampled_from(space.vips), 2),
        load_balancer_ips=tuples(st.sampled_from(space.vips), 2),
        source_ranges=tuples(st.sampled_from(space.ranges), 3),
        internal_policy=policies,
        external_policy=policies,
        affinity_seconds=st.sampled_from([None, None, 10, 10800]),
        annotations=st.just(()) | annotations(space),
    )


@cache
def endpoints(space: Space) -> st.SearchStrategy[Endpoint]:
    """Generate endpoints in every condition; those at this node's addresses are on this node."""

    def placed(address: Address, conditions: tuple[bool, bool, bool], hints: Any, nodes: Any) -> Endpoint:
        node = HERE if address in space.here else ELSEWHERE
        return Endpoint(address, *conditions, node, hints, nodes)

    return st.builds(
        placed,
        st.sampled_from((*space.here, *space.elsewhere)),
        st.sampled_from(CONDITIONS),
        zones,
        st.sampled_from([(), (), (HERE,), (ELSEWHERE,)]),
    )


@cache
def slices(space: Space) -> st.SearchStrategy[EndpointSlice]:
    return st.builds(
        EndpointSlice,
        name=st.sampled_from(SLICE_NAMES),
        service=st.sampled_from(NAMES),
        family=st.just(space.family),
        ports=tuples(endpoint_ports, 3, least=1),
        endpoints=st.lists(endpoints(space), min_size=1, max_size=4).map(tuple),
    )


@cache
def node_plans(space: Space) -> st.SearchStrategy[NodePlan]:
    """Generate plans of this node, with every way to recognise Pods and to serve node ports."""
    family = space.family
    pods, more = cidr(POD_PREFIX[family]), Prefix.host(space.outside[0])
    everywhere, primary = cidr(EVERYWHERE[family]), Prefix.host(space.node[0])
    return st.builds(
        NodePlan,
        family=st.just(family),
        name=st.just(HERE),
        zone=st.sampled_from(["", "a"]),
        address=st.just(space.node[0]),
        pod_traffic=st.sampled_from(
            [None, PodPrefixes((pods,)), PodPrefixes((pods, more)), PodBridge("cni0"), PodInterfaces("veth")]
        ),
        masquerade_all=st.booleans(),
        masquerade_bit=st.sampled_from([14, 0, 31]),
        node_port_addresses=st.sampled_from([(everywhere,), (primary,), (primary, everywhere), ()]),
        service_cidrs=st.sampled_from([(), (space.service_cidr,)]),
        external_ips=st.booleans() | st.just(value=True),
        addresses=st.sampled_from([space.node, ()]),
    )


@cache
def packets(space: Space) -> st.SearchStrategy[Packet]:
    """Generate first packets to all possible destinations of Services, and a few others.

    No node address lies in the ClusterIPs' range, as on real nodes.
    """
    unknown = Address(space.cluster_ips[0][:-1] + b"\x63")
    sources = st.sampled_from(
        (*space.here, *space.elsewhere, *space.outside, *space.node, space.loopback, space.vips[1])
    )
    destinations = st.sampled_from((*space.cluster_ips, *space.vips, *space.node, space.loopback, unknown))

    def made(source: Address, destination: Address, protocol: Protocol, port: int, interface: str) -> Packet:
        own = source in space.local
        where = "" if own else interface
        return Packet(source, destination, protocol, port, where, own, destination in space.local)

    return st.builds(
        made, sources, destinations, protocols, st.sampled_from([80, 81, 30080, 30081, 30082]), interfaces
    )


@dataclass(frozen=True)
class World:
    """A node with its objects."""

    space: Space
    node: NodePlan
    services: dict[ObjectName, Service]
    slices: dict[ObjectName, EndpointSlice]

    def view(self, name: ObjectName) -> tuple[Service | None, list[EndpointSlice]]:
        ordered = sorted(self.slices)
        return self.services.get(name), [self.slices[key] for key in ordered if self.slices[key].service == name]

    def planner(self) -> Planner:
        planner = Planner(self.node)
        planner.update(self.services, self.view)
        return planner


def _widened(service: Service) -> Service:
    """Return the Service with a range at its first port, and without fields that exclude ranges."""
    others = tuple((key, text) for key, text in service.annotations if key != "vipwire.io/port-range")
    port = replace(service.ports[0], port=80)
    annotations = (*others, ("vipwire.io/port-range", "79-90"))
    return replace(service, ports=(port,), affinity_seconds=None, annotations=annotations)


@st.composite
def worlds(draw: st.DrawFn, *, ranges: bool = False) -> World:
    """Generate a world of one family. Most slices belong to its Services and serve their ports.

    With `ranges` the mode serves port ranges, and some Services have one.
    """
    space = draw(SPACES)
    chosen = {item.name: item for item in draw(st.lists(services(space), min_size=1, max_size=4))}
    for name, item in chosen.items():
        if ranges and draw(st.integers(0, 2)) == 0:
            chosen[name] = _widened(item)
    found: dict[ObjectName, EndpointSlice] = {}
    drawn = draw(st.lists(st.tuples(slices(space), st.integers(0, 3)), min_size=len(chosen), max_size=5))
    for (piece, stray), owner in zip_longest(drawn, chosen.values()):
        name, of, ports = piece.name, piece.service, piece.ports
        if owner is not None and stray != 3:
            name, of = ObjectName("default", f"{owner.name.name}-1"), owner.name
            own = stray == 2  # endpoints with the Service's own port keep that of a range
            ports = tuple(
                EndpointPort(p.name, p.protocol, p.port if own else 8080 + number)
                for number, p in enumerate(owner.ports)
            )
        found[name] = EndpointSlice(name, of, space.family, ports, piece.endpoints)
    return World(space, replace(draw(node_plans(space)), port_ranges=ranges), chosen, found)


@st.composite
def packets_for(draw: st.DrawFn, world: World, keys: Iterable[FrontendKey]) -> Packet:
    """Generate a packet, mostly to one of the frontends."""
    packet = draw(packets(world.space))
    known = sorted(keys, key=str)
    if not known or draw(st.integers(0, 4)) == 0:
        return packet
    key = draw(st.sampled_from(known))
    destination = draw(st.sampled_from(world.space.node)) if key.address is None else key.address
    local = destination in world.space.local
    port = draw(st.sampled_from([key.port, key.port, key.port, 79, 85]))
    return packet._replace(destination=destination, protocol=key.protocol, port=port, to_node=local)
