"""Renders a Service's plan to virtual servers, real servers, VIPs and set elements.

    Forward                  virtual server and real servers
    Reject                   the set of rejecting frontends; for TCP a virtual server without real servers
    Drop                     the set of dropping frontends; for TCP a virtual server without real servers
    external policy Local    two pools: see `marks`
    range of ports           always marks: see `ranges`

A TCP virtual server stays when its last endpoint goes, because IPVS drops open connections with their virtual server.
A UDP one stays while a drained endpoint serves. A plan without endpoints does not tell its policy, so it keeps both
pools' virtual servers.

kube-ipvs0 holds ClusterIPs only. Other hosts may have an external or load balancer IP, so this node accepts packets
to such an address only at the Service's port: KUBE-ROUTED marks them and a `VipRoute` leads them to IPVS.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from vipwire.linux.netlink.ipset import IpsetEntry
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.modes.ipvs.marks import Marks, MarkScope, choose_routing_mark
from vipwire.modes.ipvs.objects.names import (
    MarkRule,
    Object,
    ObjectKey,
    RangeRule,
    Receiver,
    Set,
    SetEntry,
    Vip,
    VipRoute,
    describe_object,
    set_name,
)
from vipwire.modes.ipvs.objects.ranges import (
    build_filter_rules,
    build_hairpin_rules,
    build_mark_rule,
    build_nat_rules,
    build_segment_rule,
)
from vipwire.modes.ipvs.scheduling import choose_method, choose_scheduling
from vipwire.modes.ipvs.skeleton import build_node_objects
from vipwire.modes.ipvs.termination import keeps_server
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import (
    Action,
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    FrontendKind,
    Pool,
    RangeFrontend,
    Reject,
    ServicePlan,
)
from vipwire.reconcile.backend import Rendered

Objects: TypeAlias = dict[ObjectKey, Object]

_NODE_PORT_SETS = {
    Protocol.TCP: (Set.NODE_PORT_TCP, Set.NODE_PORT_LOCAL_TCP),
    Protocol.UDP: (Set.NODE_PORT_UDP, Set.NODE_PORT_LOCAL_UDP),
    Protocol.SCTP: (Set.NODE_PORT_SCTP, Set.NODE_PORT_LOCAL_SCTP),
}


_DIRECT = (FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER)


def render_service(family: Family, scheduler: str, marks: Marks, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
    """Render one Service; `scheduler` applies if its annotations name none."""
    writer = _Writer(family, scheduler, marks, plan)
    for address in plan.cluster_ips:
        writer.write_vip(address)
    for frontend in plan.frontends:
        writer.write_frontend(frontend)
    for wide in plan.ranges:
        writer.write_range(wide)
    if plan.health_check is not None:
        writer.own[SetEntry(set_name(family, Set.HEALTH_CHECK), IpsetEntry(port=plan.health_check.port))] = 0
    return Rendered(writer.own, writer.shared)


class _Writer:
    """Writes one Service's objects."""

    def __init__(self, family: Family, scheduler: str, marks: Marks, plan: ServicePlan) -> None:
        self._family, self._marks, self._plan = family, marks, plan
        self._scheduling, self._wanted_method = choose_scheduling(plan.wishes, scheduler), choose_method(plan.wishes)
        self.own: Objects = {}
        self.shared: Objects = {}

    def write_vip(self, address: Address) -> None:
        """Add an address to kube-ipvs0, unless another device of this node has it."""
        if address not in self._plan.own_addresses:
            self.shared[Vip(address)] = None
            self._write_entry(Set.IPVS_IPS, IpsetEntry(address), shared=True)

    def write_frontend(self, frontend: Frontend) -> None:
        key = frontend.key
        addresses = self._plan.node_port_addresses if key.address is None else (key.address,)
        if key.address in self._plan.own_addresses:
            self._write_at_node(frontend)
            return
        method = self._choose_method(frontend)
        for address in addresses:
            place = IpsetEntry(address, key.protocol, key.port)
            self._write_servers(frontend, place, method)
            self._write_filter(frontend, place)
            if key.address is not None:
                self._write_server_entry(frontend, place)
        if method is not Method.MASQUERADE:
            self._write_direct_return(frontend, method)
            return
        if (
            self._wanted_method is not method
            and frontend.kind in _DIRECT
            and not isinstance(frontend.action, Forward)
        ):
            self._write_direct_return(frontend, self._wanted_method)
        for which, element in _list_set_entries(frontend, addresses):
            self._write_entry(which, element)

    def _write_server_entry(self, frontend: Frontend, place: IpsetEntry) -> None:
        """Accept packets to a frontend: by an address of kube-ipvs0, or by a mark.

        Without open connections, the forward hook refuses packets instead.
        """
        if place.address in self._plan.cluster_ips:
            self.write_vip(place.address)
        elif keeps_server(frontend, frontend.short_circuit or frontend.action):
            self._write_entry(Set.ROUTED, place)
            self._write_route(place.address, choose_routing_mark(self._marks.avoid))

    def _write_route(self, address: Address, mark: int) -> None:
        """Route packets with a mark to IPVS, with the masquerade bit and without."""
        self.shared[VipRoute(address)] = None
        self.shared.update((MarkRule(each), None) for each in (mark, mark | self._marks.avoid))

    def write_range(self, wide: RangeFrontend) -> None:
        """Write a port range; see `ranges`.

        At a node's own address, a range without endpoints leaves packets to local sockets.
        """
        frontend, address = wide.frontend, wide.key.address
        own = address in self._plan.own_addresses
        bound = address in self._plan.cluster_ips
        method = Method.MASQUERADE if own else self._choose_method(frontend)
        inside = frontend.short_circuit if method is Method.MASQUERADE else None
        action, mark = inside or frontend.action, self._marks.mark(wide.key, MarkScope.INSIDE)
        self._write_range_pool(wide, action, mark, method, marked=not own)
        if not (own and isinstance(action, Reject)):
            self._write_range_rules(build_filter_rules(wide, own=own, bound=bound))
        if bound:
            self.write_vip(address)
        elif not own and keeps_server(frontend, action):
            self._write_route(address, mark)
        if method is not Method.MASQUERADE:
            if wide.key.protocol is Protocol.TCP:
                self._write_range_rules((build_segment_rule(wide, self._family),))
            self._write_receivers(frontend.action, address, method)
            return
        if isinstance(action, Forward):
            self._write_range_rules(build_nat_rules(wide))
        if inside is not None or (isinstance(action, Reject) and frontend.kind is not FrontendKind.CLUSTER_IP):
            self._write_range_pool(wide, frontend.action, self._marks.mark(wide.key), method, local=True)

    def _write_range_pool(
        self,
        wide: RangeFrontend,
        action: Action,
        mark: int,
        method: Method,
        *,
        local: bool = False,
        marked: bool = False,
    ) -> None:
        """Write a pool of a range; `keeps_server` decides about the virtual server of an empty pool.

        Masqueraded packets reach the virtual server with the masquerade bit. `marked`: without the mark this node
        does not accept the packets, so the mark stays as long as the virtual server.
        """
        if not keeps_server(wide.frontend, action):
            return
        both = (mark,) if local or method is not Method.MASQUERADE else (mark, mark | self._marks.avoid)
        for virtual in (VirtualServer(0, Address(b""), 0, each) for each in both):
            self.own[virtual] = self._scheduling
            if isinstance(action, Forward):
                for target, weight in zip(action.pool, action.weights, strict=True):
                    real = RealServer(virtual, target.address, 0 if wide.keeps_port(target) else target.port)
                    self.own[real] = Forwarding(weight, method)
        place = IpsetEntry(wide.key.address, wide.key.protocol, wide.key.first)
        self._write_entry(Set.RANGES_LOCAL if local else Set.RANGES, place, mark)
        if marked or isinstance(action, Forward):
            self._write_range_rules((build_mark_rule(wide, mark, local=local),))
        if isinstance(action, Forward):
            self._write_range_rules(build_hairpin_rules(wide, action))
            self._write_hairpins(tuple(each for each in action.pool if not wide.keeps_port(each)), wide.frontend.key)

    def _write_range_rules(self, rules: Iterable[RangeRule]) -> None:
        self.own.update((rule, 1) for rule in rules)

    def _write_direct_return(self, frontend: Frontend, method: Method) -> None:
        """Note a frontend with direct return, also one whose open connections still use it.

        The mark of its set element only leads to IPVS.
        """
        key = frontend.key
        if (address := key.address) is not None and keeps_server(frontend, frontend.action):
            place = IpsetEntry(address, key.protocol, key.port)
            self._write_entry(Set.DIRECT_RETURN, place, choose_routing_mark(self._marks.avoid))
            self._write_receivers(frontend.action, address, method)

    def _write_receivers(self, action: Action, vip: Address, method: Method) -> None:
        for target in action.pool if isinstance(action, Forward) else ():
            if target.local:
                self.shared[Receiver(target.address, vip)] = method

    def _write_at_node(self, frontend: Frontend) -> None:
        """Write a frontend at an address of this node, which a node port may share.

        IPVS looks a mark up first, so this frontend gets a virtual server of a mark. Without endpoints, the packet is
        left to the node port.
        """
        key, action = frontend.key, frontend.action
        if key.address is None:
            return
        place = IpsetEntry(key.address, key.protocol, key.port)
        if isinstance(action, Reject):
            self._write_unserved_at_node(frontend, place)
            return
        self._write_filter(frontend, place)
        if frontend.short_circuit is not None:
            self._write_two_pools_at_node(frontend, frontend.short_circuit, place)
        elif isinstance(action, Forward):
            # With the masquerade bit from the start: the rules would set it in a connection's first packet only.
            self._write_marked(frontend, action, self._marks.mark(key) | self._marks.avoid)
            self._write_entry(Set.DIRECT_RETURN, place, self._marks.mark(key) | self._marks.avoid)
        else:
            return
        for which, element in _list_set_entries(frontend, (key.address,)):
            self._write_entry(which, element)

    def _write_unserved_at_node(self, frontend: Frontend, place: IpsetEntry) -> None:
        """Keep both pools' virtual servers for open connections; no packet gets their marks.

        The set elements only mark them as vipwire's.
        """
        if not keeps_server(frontend, frontend.action):
            return
        for which, scope in ((Set.DIRECT_RETURN, MarkScope.INSIDE), (Set.LOCAL_POOL_NODE, MarkScope.OUTSIDE)):
            mark = self._marks.mark(frontend.key, scope)
            self._write_entry(which, place, mark)
            for each in (mark, mark | self._marks.avoid):
                self._write_marked(frontend, frontend.action, each)
        self._write_entry(Set.NODE_NO_ENDPOINTS, place)

    def _write_two_pools_at_node(self, frontend: Frontend, inside: Forward, place: IpsetEntry) -> None:
        """Write both pools. Clients on this node get the cluster pool's mark, local processes with masquerading."""
        mark = self._marks.mark(frontend.key, MarkScope.INSIDE)
        for each in (mark, mark | self._marks.avoid):
            self._write_marked(frontend, inside, each)
        self._write_entry(Set.DIRECT_RETURN, place, mark)
        self._write_local_pool(frontend, Set.LOCAL_POOL_NODE, place)

    def _write_local_pool(self, frontend: Frontend, which: Set, place: IpsetEntry) -> None:
        """Write the pool of this node: clients outside get its mark."""
        if keeps_server(frontend, frontend.action):
            mark = self._marks.mark(frontend.key)
            self._write_marked(frontend, frontend.action, mark)
            self._write_entry(which, place, mark)

    def _write_marked(self, frontend: Frontend, action: Action, mark: int) -> None:
        self._write_server(VirtualServer(0, Address(b""), 0, mark), action, frontend)

    def _write_servers(self, frontend: Frontend, place: IpsetEntry, method: Method) -> None:
        action = frontend.action
        inside = frontend.short_circuit if method is Method.MASQUERADE else None
        self._write_server(
            VirtualServer(place.protocol, place.address, place.port), inside or action, frontend, method
        )
        if inside is not None or (isinstance(action, Reject) and frontend.kind is not FrontendKind.CLUSTER_IP):
            self._write_local_pool(frontend, Set.LOCAL_POOL, place)

    def _write_server(
        self,
        virtual: VirtualServer,
        action: Action,
        frontend: Frontend,
        method: Method = Method.MASQUERADE,
    ) -> None:
        if not keeps_server(frontend, action):
            return
        if not isinstance(action, Forward):
            self.own[virtual] = self._scheduling
            return
        self.own[virtual] = self._sticky_scheduling(virtual, action, frontend.key)
        for target, weight in zip(action.pool, action.weights, strict=True):
            real = RealServer(virtual, target.address, target.port)
            self.own[real] = Forwarding(weight, method)
        self._write_hairpins(action.pool, frontend.key)

    def _sticky_scheduling(self, virtual: VirtualServer, action: Forward, key: FrontendKey) -> Scheduling:
        """Return the scheduling, with affinity if the Service asks for it.

        A persistent virtual server of a mark keeps the destination port (ip_vs_sched_persist). If an endpoint's port
        differs, a hash of the client's address replaces persistence.
        """
        seconds, chosen = action.affinity_seconds, self._scheduling
        if not seconds:
            return chosen
        if virtual.mark and any(target.port != key.port for target in action.pool):
            return Scheduling("mh", ServiceFlag.SCHEDULER_1)
        return chosen._replace(flags=chosen.flags | ServiceFlag.PERSISTENT, persistence=seconds)

    def _choose_method(self, frontend: Frontend) -> Method:
        """Return the forwarding method: translation if an endpoint's port differs from the VIP's."""
        action = frontend.action
        if frontend.kind not in _DIRECT:
            return Method.MASQUERADE
        if not isinstance(action, Forward) or any(target.port != frontend.key.port for target in action.pool):
            return Method.MASQUERADE
        return self._wanted_method

    def _write_hairpins(self, pool: Pool, key: FrontendKey) -> None:
        for target in pool:
            element = IpsetEntry(target.address, key.protocol, target.port, target.address)
            self._write_entry(Set.LOOP_BACK, element, shared=True)

    def _write_filter(self, frontend: Frontend, place: IpsetEntry) -> None:
        if isinstance(frontend.action, Drop):
            self._write_entry(Set.NO_LOCAL_ENDPOINTS, place)
        elif isinstance(frontend.action, Reject):
            self._write_entry(Set.NO_ENDPOINTS, place)
        if frontend.allowed_sources is None:
            return
        self._write_entry(Set.LOAD_BALANCER_FW, place)
        for prefix in frontend.allowed_sources:
            if prefix == Prefix.host(place.address):
                self._write_entry(Set.SOURCE_IP, place._replace(other=place.address))
            else:
                self._write_entry(Set.SOURCE_CIDR, place._replace(other=prefix))

    def _write_entry(self, which: Set, element: IpsetEntry, mark: int = 0, *, shared: bool = False) -> None:
        objects = self.shared if shared else self.own
        objects[SetEntry(set_name(self._family, which), element)] = mark


def _list_set_entries(frontend: Frontend, addresses: tuple[Address, ...]) -> Iterator[tuple[Set, IpsetEntry]]:
    """Yield the set elements of a frontend, which rules match and which mark its virtual servers as vipwire's.

    With two pools, clients outside keep their source address and clients on the node do not.
    """
    key, masked = frontend.key, frontend.short_circuit is None
    place = IpsetEntry(key.address or Address(b""), key.protocol, key.port)
    match frontend.kind:
        case FrontendKind.CLUSTER_IP:
            yield Set.CLUSTER_IP, place
        case FrontendKind.EXTERNAL_IP:
            yield (Set.EXTERNAL_IP if masked else Set.EXTERNAL_IP_LOCAL), place
        case FrontendKind.LOAD_BALANCER:
            yield Set.LOAD_BALANCER, place
            if not masked:
                yield Set.LOAD_BALANCER_LOCAL, place
        case FrontendKind.NODE_PORT:
            for which in _NODE_PORT_SETS[key.protocol][: 1 if masked else 2]:
                if key.protocol is Protocol.SCTP:
                    yield from ((which, IpsetEntry(address, key.protocol, key.port)) for address in addresses)
                else:
                    yield which, IpsetEntry(port=key.port)


@dataclass(frozen=True, slots=True)
class IpvsSettings:
    """The operator's settings: the default scheduler, and the addresses that vipwire never touches."""

    scheduler: str = "rr"
    exclude: tuple[Prefix, ...] = ()


DEFAULTS: Final = IpvsSettings()


class Writing:
    """Renders ipvs mode's objects of one family without a kernel."""

    def __init__(self, family: Family, settings: IpvsSettings) -> None:
        self.family, self._settings = family, settings
        self.marks = Marks(avoid=0)
        self.resting: Mapping[VirtualServer, Mapping[RealServer, Forwarding]] = {}
        """Virtual servers with draining real servers, as last read from the kernel; see `include_resting_servers`."""

    def render_node(self, node: NodePlan) -> Mapping[ObjectKey, Object]:
        self.marks.avoid = node.masquerade_mark
        return build_node_objects(node)

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        rendered = render_service(self.family, self._settings.scheduler, self.marks, plan)
        if not self._settings.exclude:
            return rendered
        return replace(rendered, own={k: v for k, v in rendered.own.items() if not self.is_excluded(k)})

    def is_excluded(self, key: ObjectKey) -> bool:
        """Report whether the operator excluded the address of this virtual or real server."""
        server = key.server if isinstance(key, RealServer) else key
        return isinstance(server, VirtualServer) and any(
            server.address in prefix for prefix in self._settings.exclude
        )

    def describe(self, key: ObjectKey) -> str:
        return describe_object(key)

    def close(self) -> None:
        """Do nothing: no socket is open."""
