"""From a Service's plan to virtual servers, real servers, VIPs and elements of sets.

    Forward                  virtual server and real servers
    Reject                   the set of those that reject, and for TCP a virtual server without any
    Drop                     the set of those that drop, and for TCP a virtual server without any
    external policy Local    two pools: see `marks`
    range of ports           marks in any case: see `ranges`

A TCP virtual server, of an address or of a mark, stays when the last endpoint goes: IPVS forgets the open connections
of one that is deleted. One of UDP stays as long as an endpoint serves that gets no new clients, such as one that is
drained. Of a frontend without endpoints the plan does not say whether its policy is Local, so it keeps the virtual
servers of both pools.

kube-ipvs0 has ClusterIPs only. Any host may have an external or load balancer IP, and any object may name it. So this
node takes in packets to such an address at the Service's port alone: KUBE-ROUTED marks them, and a `VipRoute` leads
them to IPVS.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from vipwire.linux.netlink.ipset import IpsetEntry
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.modes.ipvs.marks import Marks, MarkScope, routing_mark
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
from vipwire.modes.ipvs.objects.ranges import filtering, hairpins, marking, masquerading, segments
from vipwire.modes.ipvs.scheduling import method_of, scheduling_of
from vipwire.modes.ipvs.skeleton import node_objects
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


def render(family: Family, scheduler: str, marks: Marks, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
    """Render one Service; `scheduler` is that of Services whose annotations name none."""
    writer = _Writer(family, scheduler, marks, plan)
    for address in plan.cluster_ips:
        writer.vip(address)
    for frontend in plan.frontends:
        writer.frontend(frontend)
    for wide in plan.ranges:
        writer.wide(wide)
    if plan.health_check is not None:
        writer.own[SetEntry(set_name(family, Set.HEALTH_CHECK), IpsetEntry(port=plan.health_check.port))] = 0
    return Rendered(writer.own, writer.shared)


class _Writer:
    """Writes one Service's objects."""

    def __init__(self, family: Family, scheduler: str, marks: Marks, plan: ServicePlan) -> None:
        self._family, self._marks, self._plan = family, marks, plan
        self._scheduling, self._wanted_method = scheduling_of(plan.wishes, scheduler), method_of(plan.wishes)
        self.own: Objects = {}
        self.shared: Objects = {}

    def vip(self, address: Address) -> None:
        """Add an address to kube-ipvs0, unless another device of this node has it."""
        if address not in self._plan.own_addresses:
            self.shared[Vip(address)] = None
            self._entry(Set.IPVS_IPS, IpsetEntry(address), shared=True)

    def frontend(self, frontend: Frontend) -> None:
        """Write one frontend: on its address, or on each that serves node ports."""
        key = frontend.key
        addresses = self._plan.node_port_addresses if key.address is None else (key.address,)
        if key.address in self._plan.own_addresses:
            self._at_the_node(frontend)
            return
        method = self._method(frontend)
        for address in addresses:
            place = IpsetEntry(address, key.protocol, key.port)
            self._servers(frontend, place, method)
            self._filter(frontend, place)
            if key.address is not None:
                self._lead(frontend, place)
        if method is not Method.MASQUERADE:
            self._return_directly(frontend, method)
            return
        if (
            self._wanted_method is not method
            and frontend.kind in _DIRECT
            and not isinstance(frontend.action, Forward)
        ):
            self._return_directly(frontend, self._wanted_method)
        for which, element in _registers(frontend, addresses):
            self._entry(which, element)

    def _lead(self, frontend: Frontend, place: IpsetEntry) -> None:
        """Take packets to a frontend in: at an address of kube-ipvs0, or by a mark.

        Where nothing has open connections, packets are refused on their way past.
        """
        if place.address in self._plan.cluster_ips:
            self.vip(place.address)
        elif keeps_server(frontend, frontend.short_circuit or frontend.action):
            self._entry(Set.ROUTED, place)
            self._route(place.address, routing_mark(self._marks.avoid))

    def _route(self, address: Address, mark: int) -> None:
        """Route packets with a mark to IPVS, with the bit that asks for masquerading and without."""
        self.shared[VipRoute(address)] = None
        self.shared.update((MarkRule(each), None) for each in (mark, mark | self._marks.avoid))

    def wide(self, wide: RangeFrontend) -> None:
        """Write a range of ports; see `ranges`. At an address of this node nobody's range is left to what listens."""
        frontend, address = wide.frontend, wide.key.address
        own = address in self._plan.own_addresses
        bound = address in self._plan.cluster_ips
        method = Method.MASQUERADE if own else self._method(frontend)
        inside = frontend.short_circuit if method is Method.MASQUERADE else None
        action, mark = inside or frontend.action, self._marks.mark(wide.key, MarkScope.INSIDE)
        self._pool(wide, action, mark, method, marked=not own)
        if not (own and isinstance(action, Reject)):
            self._rules(filtering(wide, own=own, bound=bound))
        if bound:
            self.vip(address)
        elif not own and keeps_server(frontend, action):
            self._route(address, mark)
        if method is not Method.MASQUERADE:
            if wide.key.protocol is Protocol.TCP:
                self._rules((segments(wide, self._family),))
            self._receive(frontend.action, address, method)
            return
        if isinstance(action, Forward):
            self._rules(masquerading(wide))
        if inside is not None or (isinstance(action, Reject) and frontend.kind is not FrontendKind.CLUSTER_IP):
            self._pool(wide, frontend.action, self._marks.mark(wide.key), method, local=True)

    def _pool(
        self,
        wide: RangeFrontend,
        action: Action,
        mark: int,
        method: Method,
        *,
        local: bool = False,
        marked: bool = False,
    ) -> None:
        """Write a pool of a range: see `keeps_server` for the virtual server of one without endpoints.

        What is masqueraded has the bit that says so, when it comes to the virtual server. `marked`: packets need the
        mark as long as there is the virtual server, or this node does not take them in.
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
        self._entry(Set.RANGES_LOCAL if local else Set.RANGES, place, mark)
        if marked or isinstance(action, Forward):
            self._rules((marking(wide, mark, local=local),))
        if isinstance(action, Forward):
            self._rules(hairpins(wide, action))
            self._hairpins(tuple(each for each in action.pool if not wide.keeps_port(each)), wide.frontend.key)

    def _rules(self, rules: Iterable[RangeRule]) -> None:
        self.own.update((rule, 1) for rule in rules)

    def _return_directly(self, frontend: Frontend, method: Method) -> None:
        """Note a frontend whose endpoints answer clients directly, or did for the connections that are still open.

        The mark of its entry only leads to IPVS.
        """
        key = frontend.key
        if (address := key.address) is not None and keeps_server(frontend, frontend.action):
            place = IpsetEntry(address, key.protocol, key.port)
            self._entry(Set.DIRECT_RETURN, place, routing_mark(self._marks.avoid))
            self._receive(frontend.action, address, method)

    def _receive(self, action: Action, vip: Address, method: Method) -> None:
        """Have the Pods of this node take packets to a VIP for their own."""
        for target in action.pool if isinstance(action, Forward) else ():
            if target.local:
                self.shared[Receiver(target.address, vip)] = method

    def _at_the_node(self, frontend: Frontend) -> None:
        """Write a frontend at an address that this node has as well: a node port may be at the same place.

        IPVS looks for the virtual server of a mark first, so this frontend gets one. Where nobody answers, the packet
        is left to the node port.
        """
        key, action = frontend.key, frontend.action
        if key.address is None:
            return
        place = IpsetEntry(key.address, key.protocol, key.port)
        if isinstance(action, Reject):
            self._rest_at_the_node(frontend, place)
            return
        self._filter(frontend, place)
        if frontend.short_circuit is not None:
            self._two_pools_at_the_node(frontend, frontend.short_circuit, place)
        elif isinstance(action, Forward):
            # With the bit that asks for masquerading, which the rules would set in a connection's first packet only.
            self._marked(frontend, action, self._marks.mark(key) | self._marks.avoid)
            self._entry(Set.DIRECT_RETURN, place, self._marks.mark(key) | self._marks.avoid)
        else:
            return
        for which, element in _registers(frontend, (key.address,)):
            self._entry(which, element)

    def _rest_at_the_node(self, frontend: Frontend, place: IpsetEntry) -> None:
        """Keep the virtual servers of both pools for open connections; no packet gets their marks.

        The entries only say that they are ours.
        """
        if not keeps_server(frontend, frontend.action):
            return
        for which, scope in ((Set.DIRECT_RETURN, MarkScope.INSIDE), (Set.LOCAL_POOL_NODE, MarkScope.OUTSIDE)):
            mark = self._marks.mark(frontend.key, scope)
            self._entry(which, place, mark)
            for each in (mark, mark | self._marks.avoid):
                self._marked(frontend, frontend.action, each)
        self._entry(Set.NODE_NO_ENDPOINTS, place)

    def _two_pools_at_the_node(self, frontend: Frontend, inside: Forward, place: IpsetEntry) -> None:
        """Write both pools. Clients on this node have the mark of the greater one, its own processes masqueraded."""
        mark = self._marks.mark(frontend.key, MarkScope.INSIDE)
        for each in (mark, mark | self._marks.avoid):
            self._marked(frontend, inside, each)
        self._entry(Set.DIRECT_RETURN, place, mark)
        self._local_pool(frontend, Set.LOCAL_POOL_NODE, place)

    def _local_pool(self, frontend: Frontend, which: Set, place: IpsetEntry) -> None:
        """Write the pool of this node: clients outside have its mark."""
        if keeps_server(frontend, frontend.action):
            mark = self._marks.mark(frontend.key)
            self._marked(frontend, frontend.action, mark)
            self._entry(which, place, mark)

    def _marked(self, frontend: Frontend, action: Action, mark: int) -> None:
        self._server(VirtualServer(0, Address(b""), 0, mark), action, frontend)

    def _servers(self, frontend: Frontend, place: IpsetEntry, method: Method) -> None:
        action = frontend.action
        inside = frontend.short_circuit if method is Method.MASQUERADE else None
        self._server(VirtualServer(place.protocol, place.address, place.port), inside or action, frontend, method)
        if inside is not None or (isinstance(action, Reject) and frontend.kind is not FrontendKind.CLUSTER_IP):
            self._local_pool(frontend, Set.LOCAL_POOL, place)

    def _server(
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
        self.own[virtual] = self._sticky(virtual, action, frontend.key)
        for target, weight in zip(action.pool, action.weights, strict=True):
            real = RealServer(virtual, target.address, target.port)
            self.own[real] = Forwarding(weight, method)
        self._hairpins(action.pool, frontend.key)

    def _sticky(self, virtual: VirtualServer, action: Forward, key: FrontendKey) -> Scheduling:
        """Choose the scheduling, with affinity if it is asked for.

        A persistent virtual server of a mark leaves the destination port as it is (ip_vs_sched_persist, which knows
        no port of the service then). Where an endpoint has another, a hash of the client's address binds it.
        """
        seconds, chosen = action.affinity_seconds, self._scheduling
        if not seconds:
            return chosen
        if virtual.mark and any(target.port != key.port for target in action.pool):
            return Scheduling("mh", ServiceFlag.SCHEDULER_1)
        return chosen._replace(flags=chosen.flags | ServiceFlag.PERSISTENT, persistence=seconds)

    def _method(self, frontend: Frontend) -> Method:
        """Choose how packets get there. Where an endpoint does not go by the VIP's port they need translation."""
        action = frontend.action
        if frontend.kind not in _DIRECT:
            return Method.MASQUERADE
        if not isinstance(action, Forward) or any(target.port != frontend.key.port for target in action.pool):
            return Method.MASQUERADE
        return self._wanted_method

    def _hairpins(self, pool: Pool, key: FrontendKey) -> None:
        for target in pool:
            element = IpsetEntry(target.address, key.protocol, target.port, target.address)
            self._entry(Set.LOOP_BACK, element, shared=True)

    def _filter(self, frontend: Frontend, place: IpsetEntry) -> None:
        if isinstance(frontend.action, Drop):
            self._entry(Set.NO_LOCAL_ENDPOINTS, place)
        elif isinstance(frontend.action, Reject):
            self._entry(Set.NO_ENDPOINTS, place)
        if frontend.allowed_sources is None:
            return
        self._entry(Set.LOAD_BALANCER_FW, place)
        for prefix in frontend.allowed_sources:
            if prefix == Prefix.host(place.address):
                self._entry(Set.SOURCE_IP, place._replace(other=place.address))
            else:
                self._entry(Set.SOURCE_CIDR, place._replace(other=prefix))

    def _entry(self, which: Set, element: IpsetEntry, mark: int = 0, *, shared: bool = False) -> None:
        objects = self.shared if shared else self.own
        objects[SetEntry(set_name(self._family, which), element)] = mark


def _registers(frontend: Frontend, addresses: tuple[Address, ...]) -> Iterator[tuple[Set, IpsetEntry]]:
    """Yield the entries by which the rules know a frontend, and we our virtual servers.

    With two pools, clients outside must keep their source, and those on the node must not.
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
    """The operator's choices: the scheduler of Services that name none, and the addresses never to touch."""

    scheduler: str = "rr"
    exclude: tuple[Prefix, ...] = ()


DEFAULTS: Final = IpvsSettings()


class Writing:
    """What ipvs mode would write for one family, without a kernel.

    `resting`: nothing finishes its connections where there is no kernel.
    """

    def __init__(self, family: Family, settings: IpvsSettings) -> None:
        self.marks = Marks(avoid=0)
        self.resting: Mapping[VirtualServer, Mapping[RealServer, Forwarding]] = {}
        self._family, self._settings = family, settings

    def render_node(self, node: NodePlan) -> Mapping[ObjectKey, Object]:
        """Render what belongs to no Service."""
        self.marks.avoid = node.masquerade_mark
        return node_objects(node)

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        """Render one Service."""
        rendered = render(self._family, self._settings.scheduler, self.marks, plan)
        if not self._settings.exclude:
            return rendered
        return replace(rendered, own={k: v for k, v in rendered.own.items() if not self.is_excluded(k)})

    def is_excluded(self, key: ObjectKey) -> bool:
        """Report whether a virtual server, or that of a real server, is one that we keep our hands off."""
        server = key.server if isinstance(key, RealServer) else key
        return isinstance(server, VirtualServer) and any(
            server.address in prefix for prefix in self._settings.exclude
        )

    def describe(self, key: ObjectKey) -> str:
        """Name an object for a person."""
        return describe_object(key)

    def close(self) -> None:
        """Do nothing: it holds no socket."""
