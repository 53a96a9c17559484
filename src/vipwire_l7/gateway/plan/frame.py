"""Plans all objects but routes: Gateways with listeners and addresses, policies, certificates. Pure.

Gateways without addresses share the addresses of the node: one frontend for each port, whose protocol is that of the
oldest Gateway there. A Gateway with an address has its own frontends at that address.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.gateway.plan.address_pool import AddressPool, Given, list_requested_addresses
from vipwire_l7.gateway.plan.features import FEATURES, WITH_SERVICES
from vipwire_l7.gateway.plan.kinds.objects import (
    POLICY_KINDS,
    Gateway,
    GatewaySetting,
    GatewayWorld,
    Item,
    ListenerOwner,
    ListenerSet,
    Verdict,
    no,
    yes,
)
from vipwire_l7.gateway.plan.listeners import (
    Listener,
    allows_listener_set,
    count_listener_demand,
    group_sets_by_gateway,
    validate_listeners,
)
from vipwire_l7.gateway.plan.own_services import OwnService, OwnServices, ServiceState
from vipwire_l7.gateway.plan.places import SharedPort, make_place_ref
from vipwire_l7.gateway.plan.policies import Policies, read_policies
from vipwire_l7.gateway.plan.statuses import write_class_status, write_own_policy_status
from vipwire_l7.gateway.plan.tls import (
    BackendTls,
    OwnCertificate,
    drop_duplicates,
    read_backend_tls_policies,
    read_client_certificate,
)
from vipwire_l7.gateway.watch import wire
from vipwire_l7.plan.limits import Limits
from vipwire_l7.plan.sites import Certificate, DatagramFrontend
from vipwire_l7.watch.objects import IngressKind, Json
from vipwire_l7.watch.snapshot import ObjectRef

KINDS = frozenset(
    (
        IngressKind.GATEWAY_CLASS,
        IngressKind.GATEWAY,
        IngressKind.LISTENER_SET,
        IngressKind.BACKEND_TLS_POLICY,
        *POLICY_KINDS,
    )
)
"""The kinds whose every object the frame depends on."""


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """The result for one Gateway. `reached` are the addresses in its status."""

    gateway: Gateway
    listeners: tuple[Listener, ...]
    address: Verdict
    reached: tuple[str, ...]
    certificate: OwnCertificate | None


@dataclass(frozen=True, slots=True)
class SetResult:
    """The result for one ListenerSet. `address` is the address condition of its Gateway."""

    item: ListenerSet
    address: Verdict
    let_in: bool


@dataclass(slots=True)
class Frame:
    """The planned objects other than routes. `facts` holds the facts that routes may look up, by object."""

    tls: BackendTls = field(default_factory=BackendTls)
    policies: Policies = field(default_factory=Policies)
    gateways: dict[ObjectRef, GatewayResult] = field(default_factory=dict)
    sets: dict[ObjectRef, SetResult] = field(default_factory=dict)
    listeners: dict[ObjectRef, tuple[Listener, ...]] = field(default_factory=dict)
    """The listeners, by the Gateway or ListenerSet that has them."""
    ports: dict[str, SharedPort] = field(default_factory=dict)
    datagrams: dict[str, DatagramFrontend] = field(default_factory=dict)
    services: Mapping[ObjectName, OwnService] = field(default_factory=dict)
    given: Given = field(default_factory=dict)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    statuses: dict[ObjectRef, Json] = field(default_factory=dict)
    """The statuses of GatewayClasses and of vipwire's policies."""
    problems: dict[ObjectRef, tuple[Problem, ...]] = field(default_factory=dict)
    facts: dict[ObjectRef, tuple[object, ...]] = field(default_factory=dict)
    seen: Mapping[ObjectRef, frozenset[str] | None] = field(default_factory=dict)
    """The rules of routes that policies target."""

    def find_changed_facts(self, before: "Frame") -> set[ObjectRef]:
        both = self.facts.keys() | before.facts.keys()
        return {each for each in both if self.facts.get(each) != before.facts.get(each)}

    def find_client_certificate(self, gateway: ObjectName) -> str:
        found = self.gateways[IngressKind.GATEWAY, gateway].certificate
        return found.file if found is not None else ""


def plan_frame(world: GatewayWorld, setting: GatewaySetting, refused: Collection[str], before: Given) -> Frame:
    """Plan the frame. `refused` are frontends that HAProxy could not bind; `before` is the pool's last assignment."""
    draft = _Draft(world, setting, refused)
    classes = [
        each
        for each in world.list_objects(IngressKind.GATEWAY_CLASS, wire.GatewayClassSpec)
        if each.spec.controller_name == setting.controller
    ]
    has_services = setting.services is not None or (world.has_address_range and not setting.pool)
    features = FEATURES | WITH_SERVICES if has_services else FEATURES
    for each in classes:
        draft.made.statuses[each.kind, each.name] = write_class_status(each, features)
    names = {each.name.name for each in classes if each.spec.parameters_ref is None}
    gateways = [
        each
        for each in world.list_objects(IngressKind.GATEWAY, wire.GatewaySpec)
        if each.spec.gateway_class_name in names
    ]
    draft.made.given = AddressPool(setting.pool).assign_addresses(gateways, before)
    if setting.services is not None:
        draft.services = OwnServices(world, setting, gateways)
    draft.judge_limits(gateways)
    for gateway in gateways:
        draft.add_gateway(gateway)
    draft.add_policies(gateways)
    return draft.finish()


class _Draft:
    def __init__(self, world: GatewayWorld, setting: GatewaySetting, refused: Collection[str]) -> None:
        self._world, self._setting, self._refused = world, setting, refused
        self._of_gateway, self._limits = group_sets_by_gateway(world), Limits(setting.limits)
        self._problems: dict[ObjectRef, list[Problem]] = {}
        self.services: OwnServices | None = None
        self.made = Frame(read_backend_tls_policies(world, has_system=setting.has_system_authorities))

    def judge_limits(self, gateways: Iterable[Gateway]) -> None:
        for gateway in gateways:
            owners: tuple[ListenerOwner, ...] = (gateway, *self._of_gateway.get(gateway.name, ()))
            for number, each in enumerate(owners):
                self._limits.record_demand((each.kind, each.name), count_listener_demand(each, min(number, 1)))
        self._limits.judge()

    def add_gateway(self, gateway: Gateway) -> None:
        made, world = self.made, self._world
        sets = [(each, allows_listener_set(each, gateway, world)) for each in self._of_gateway.get(gateway.name, ())]
        judged = validate_listeners(
            gateway, (each for each, let_in in sets if let_in), world, self._limits.find_excess
        )
        standing = self.services.plan_service(gateway, judged) if self.services is not None else None
        assigned = standing.addresses if standing is not None else self._find_assigned_addresses(gateway)
        verdict, binds, reached = _choose_addresses(
            gateway, self._setting, made.given.get(gateway.name, ()), assigned
        )
        serves = verdict.holds
        if standing is not None:
            verdict, binds = _judge_by_service(verdict, standing), (self._setting.bind,)
            # Its node ports work without the address.
            serves = verdict.holds or bool(standing.lacks) or verdict.reason == "AddressNotAssigned"
        made.sets |= {(item.kind, item.name): SetResult(item, verdict, let_in) for item, let_in in sets}
        certificate = read_client_certificate(gateway, world)
        if certificate is not None:
            self._add_problems(gateway, "spec.tls.backend", certificate.verdict)
        placed = []
        for listener in judged:
            port = listener.port if standing is None else standing.targets.get(listener.place, 0)
            placed.append(self._place_listener(listener, port, binds) if listener.serves and serves else listener)
            self._add_problems(listener.owner, "spec.listeners", placed[-1].accepted, placed[-1].resolved)
        made.gateways[gateway.kind, gateway.name] = GatewayResult(
            gateway, tuple(placed), verdict, reached, certificate
        )
        if not verdict.holds:
            self._add_problems(gateway, "spec", verdict)

    def _find_assigned_addresses(self, gateway: Gateway) -> tuple[str, ...] | None:
        """Return the addresses that `vipwire up` assigned to a Gateway; None if `vipwire up` assigns no addresses."""
        if self._setting.pool or not self._world.has_address_range:
            return None
        service = self._world.snapshot.find_address_service(gateway.name)
        return service.balanced if service is not None else ()

    def _place_listener(self, listener: Listener, port: int, binds: Iterable[str]) -> Listener:
        if not port:
            return replace(listener, waits="the Gateway's Service does not have this port yet")
        places: list[str] = []
        for bind in binds:
            place = f"{bind}:{port}"
            mark = f":{port}" if bind == self._setting.bind else f":{bind.strip('[]')}:{port}"
            name = f"{'udp' if listener.is_udp else 'gateway'}{mark}"
            text = ""
            if name in self._refused:
                text = f"HAProxy cannot bind {place}: another program uses it, or the kernel does not allow it"
            elif listener.is_udp:
                self.made.datagrams.setdefault(place, DatagramFrontend(name, bind, port))
            elif self._setting.is_used_by_ingresses(bind, port):
                text = f"{place} is reserved for Ingresses (--http, --https)"
            else:
                text = self.made.ports.setdefault(place, SharedPort(bind, port, mark)).add_listener(listener)
            if text:
                return replace(listener, accepted=no("PortUnavailable", text))
            places.append(place)
        return replace(listener, places=tuple(places))

    def add_policies(self, gateways: Iterable[Gateway]) -> None:
        """Attach vipwire's policies. This needs all Gateways."""
        self.made.policies = read_policies(self._world, gateways)
        for each in self.made.policies.all:
            self._add_problems(each.policy, "spec", *each.verdicts)
            status = write_own_policy_status(each, self._setting.controller)
            self.made.statuses[each.policy.kind, each.policy.name] = status

    def _add_problems(self, item: Item, where: str, *verdicts: Verdict) -> None:
        self._problems.setdefault((item.kind, item.name), []).extend(list_problems(item, where, *verdicts))

    def finish(self) -> Frame:
        made = self.made
        listeners = [each for result in made.gateways.values() for each in result.listeners]
        by_owner: dict[ObjectRef, list[Listener]] = {}
        for each in listeners:
            by_owner.setdefault((each.owner.kind, each.owner.name), []).append(each)
        made.listeners = {owner: tuple(own) for owner, own in by_owner.items()}
        served = drop_duplicates(each for listener in listeners if listener.serves for each in listener.certificates)
        made.certificates = {each.name: each for each in served}
        own = (each.certificate for each in made.gateways.values() if each.certificate is not None)
        made.files = {
            **made.tls.files,
            **{each.clients.file: each.clients.content for each in listeners if each.clients is not None},
            **{each.file: each.pem for each in own if each.file},
        }
        made.problems = {ref: tuple(told) for ref, told in self._problems.items() if told}
        made.services = self.services.wanted if self.services else {}
        made.seen = dict(self._world.sections_seen)
        made.facts = self._collect_facts()
        return made

    def _collect_facts(self) -> dict[ObjectRef, tuple[object, ...]]:
        made = self.made
        found: dict[ObjectRef, list[object]] = {owner: [own] for owner, own in made.listeners.items()}
        for ref, each in made.gateways.items():
            found.setdefault(ref, []).append(each.certificate)
        for place, port in made.ports.items():
            found[make_place_ref(place)] = [frozenset(port.hosts)]
        for (kind, name, section), asked in made.policies.by_place.items():
            found.setdefault((kind, name), []).append((section, asked))
        for (service, port_name), checked in made.tls.by_port.items():
            found.setdefault((IngressKind.SERVICE, service), []).append((port_name, checked))
        return {ref: tuple(facts) for ref, facts in found.items()}


def list_problems(item: Item, where: str, *verdicts: Verdict) -> Iterable[Problem]:
    for verdict in verdicts:
        if not verdict.holds:
            text = f"{verdict.reason}: {verdict.message}" if verdict.reason else verdict.message
            yield Problem(item.kind.value, item.name, where, text)


def _choose_addresses(
    gateway: Gateway, setting: GatewaySetting, given: tuple[str, ...], assigned: tuple[str, ...] | None
) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """Return a Gateway's address condition, the addresses to bind, and the addresses for its status.

    `given` are the addresses from the pool, `assigned` those from `vipwire up`, None if it assigns none.
    """
    if gateway.spec.infrastructure.parameters_ref is not None:
        return (
            no("InvalidParameters", "infrastructure.parametersRef: this controller does not support parameters"),
            (),
            (),
        )
    for each in gateway.spec.addresses:
        if each.type != "IPAddress":
            return no("UnsupportedAddress", f"{each.type[:80]}: only IPAddress is supported"), (), ()
    values = list_requested_addresses(gateway)
    if not values and not setting.pool and assigned is None:
        return yes("Programmed"), (setting.bind,), setting.addresses
    if not values and not given and not assigned:
        flag = "--address-pool" if setting.pool else "vipwire up --load-balancer-range"
        return no("AddressNotAssigned", f"the address pool is exhausted ({flag})"), (), ()
    pool = AddressPool(setting.pool)
    usable = setting.usable.union(assigned or ())
    if strange := [value for value in values if value not in usable and value not in pool]:
        where = "(--address, --address-pool)" if assigned is None else "in the Gateway's Service"
        text = f"this controller does not have the address {strange[0][:80]} {where}"
        return no("AddressNotUsable", text), (), ()
    values = values or given or assigned or ()
    return yes("Programmed"), tuple(f"[{v}]" if ":" in v else v for v in values), values


def _judge_by_service(verdict: Verdict, standing: ServiceState) -> Verdict:
    if standing.lacks and verdict.reason in ("Programmed", "AddressNotAssigned", "AddressNotUsable"):
        return no(standing.reason, standing.lacks)
    return verdict
