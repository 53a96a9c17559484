"""From the objects of the Gateway API to a `SitePlan`, and to what all statuses say.

Gateways without addresses share the node's: one frontend for each port, where the oldest Gateway has the protocol. A
Gateway with an address has frontends of its own there. Each route costs itself: what cannot be read, or fails in a
way that nobody has thought of, is left out and told in its status.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vipwire.kube.gateway_addresses import GATEWAY
from vipwire.kube.resource import unexpected
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.gateway.plan.address_pool import AddressPool, Given, named
from vipwire_l7.gateway.plan.attach import Parent, parents_of
from vipwire_l7.gateway.plan.datagrams import DatagramPlace, shares_of
from vipwire_l7.gateway.plan.features import FEATURES, WITH_SERVICES
from vipwire_l7.gateway.plan.kinds.objects import (
    POLICY_KINDS,
    ROUTE_KINDS,
    GatewaySetting,
    GatewayWorld,
    Item,
    Verdict,
    no,
    world_of,
    yes,
)
from vipwire_l7.gateway.plan.listeners import Listener, is_let_in, listeners_of, sets_by_gateway
from vipwire_l7.gateway.plan.own_services import OwnService, OwnServices, Standing
from vipwire_l7.gateway.plan.places import Brought, SharedPort
from vipwire_l7.gateway.plan.policies import policies_of
from vipwire_l7.gateway.plan.rules import Read, entries_of, services_of
from vipwire_l7.gateway.plan.statuses import (
    Json,
    class_status,
    gateway_status,
    ordered,
    own_policy_status,
    parents_status,
    policy_status,
    set_status,
    tls_conditions,
)
from vipwire_l7.gateway.plan.targets import Targets
from vipwire_l7.gateway.plan.tls.backend_tls import backend_tls_of, targets_of
from vipwire_l7.gateway.plan.tls.certified import distinct
from vipwire_l7.gateway.plan.tls.clients import OwnCertificate, own_certificate
from vipwire_l7.plan.budget import Budget
from vipwire_l7.plan.sites import Route, SitePlan
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot

Key = tuple[IngressKind, ObjectName]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """What shall be served, and the statuses of all objects that are ours."""

    sites: SitePlan
    statuses: Mapping[Key, Json]
    given: Given = field(default_factory=dict)
    """The addresses of the pool, by Gateway."""
    services: Mapping[ObjectName, OwnService] = field(default_factory=dict)
    """The Services that Gateways are to have, if we make them."""


class GatewayPlanner:
    """Plans the Gateway API; `statuses` and `services` are those of the last plan."""

    def __init__(self, setting: GatewaySetting, reached: Callable[[], tuple[str, ...]] | None = None) -> None:
        """`reached` finds where clients reach Gateways that name no address, if the setting does not say it."""
        self._setting, self._reached = setting, reached or (lambda: setting.addresses)
        self._given: Given = {}
        self.statuses: Mapping[Key, Json] = {}
        self.services: Mapping[ObjectName, OwnService] | None = None

    @property
    def zone(self) -> str:
        """The zone that we are in, if known."""
        return self._setting.zone

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Plan everything but the frontends that HAProxy has refused."""
        self._setting = replace(self._setting, addresses=self._reached())
        made = plan_gateways(world_of(snapshot, now), self._setting, refused, self._given)
        self.statuses, self.services, self._given = made.statuses, made.services, made.given
        return made.sites

    def wants(self, snapshot: Snapshot, kind: IngressKind, name: ObjectName) -> bool:
        """Report whether an object may change the plan: any of the API's own kinds; others once they are named.

        A Service matters as well that has a Gateway's addresses.
        """
        if kind is IngressKind.SERVICE:
            service = snapshot.services.get(name)
            return service is not None and GATEWAY in service.annotations
        return kind in _MATTER

    def moved(self) -> bool:
        """Report whether clients reach us elsewhere than at the last plan."""
        return self._reached() != self._setting.addresses


_MATTER = frozenset(
    (
        IngressKind.GATEWAY_CLASS,
        IngressKind.GATEWAY,
        IngressKind.LISTENER_SET,
        IngressKind.REFERENCE_GRANT,
        IngressKind.BACKEND_TLS_POLICY,
        *POLICY_KINDS,
        IngressKind.NAMESPACE,
        IngressKind.CONFIG_MAP,
        IngressKind.CLUSTER_TRUST_BUNDLE,
        *ROUTE_KINDS,
    )
)


def plan_gateways(
    world: GatewayWorld, setting: GatewaySetting, refused: Collection[str] = (), before: Given | None = None
) -> GatewayPlan:
    """Plan everything. `refused` are frontends whose addresses cannot be had; `before` is what the pool gave last."""
    tls = backend_tls_of(world, has_system=setting.has_system_authorities)
    draft = _Draft(world, setting, Targets(world, tls), refused)
    classes = [
        each for each in world.all(IngressKind.GATEWAY_CLASS) if each.spec.controller_name == setting.controller
    ]
    has_services = setting.services is not None or (world.is_pooled and not setting.pool)
    features = FEATURES | WITH_SERVICES if has_services else FEATURES
    for each in classes:
        draft.statuses[each.kind, each.name] = class_status(each, features)
    names = {each.name.name for each in classes if each.spec.parameters_ref is None}
    gateways = [each for each in world.all(IngressKind.GATEWAY) if each.spec.gateway_class_name in names]
    given = AddressPool(setting.pool).give(gateways, before or {})
    if setting.services is not None:
        draft.services = OwnServices(world, setting, gateways)
    for gateway in gateways:
        draft.add_gateway(gateway, given.get(gateway.name, ()))
    draft.attach_policies()
    routes = [each for kind in ROUTE_KINDS for each in world.all(kind)]
    for route in sorted(routes, key=lambda each: each.age):
        draft.add_route(route)
    return replace(draft.finished(), given=given)


class _Draft:
    """A plan in the making."""

    def __init__(
        self, world: GatewayWorld, setting: GatewaySetting, targets: Targets, refused: Collection[str]
    ) -> None:
        self._world, self._setting, self._targets, self._refused = world, setting, targets, refused
        self._places: dict[Place, SharedPort] = {}
        self._ports: dict[int, list[SharedPort]] = {}
        self._datagram_ports: dict[int, list[DatagramPlace]] = {}
        """Where listeners are, by their `id`."""
        self._datagrams: dict[Place, DatagramPlace] = {}
        self._listeners: list[Listener] = []
        self._by_owner: dict[tuple[str, ObjectName], list[Listener]] = {}
        self._gateways: list[tuple[Item, list[Listener], Verdict, tuple[str, ...]]] = []
        self._sets: list[tuple[Item, bool, Verdict]] = []
        self._of_gateway = sets_by_gateway(world)
        self._counts: dict[int, int] = {}
        self._problems: list[Problem] = []
        self._own: dict[ObjectName, OwnCertificate] = {}
        self._budget = Budget()
        self._shares = set[tuple[int, str]]()
        """The choices by weight that a frontend has."""
        self._leading: dict[ObjectName, set[ObjectName]] = {}
        """By Service the Gateways whose routes name it."""
        self.statuses: dict[Key, Json] = {}
        self.services: OwnServices | None = None

    def add_gateway(self, gateway: Item, given: tuple[str, ...]) -> None:
        """Add a Gateway and its listeners; `given` are its addresses of the pool."""
        sets = [(each, is_let_in(each, gateway, self._world)) for each in self._of_gateway.get(gateway.name, ())]
        judged = listeners_of(gateway, (each for each, let_in in sets if let_in), self._world)
        standing = self._standing(gateway, judged)
        assigned = standing.addresses if standing is not None else self._assigned(gateway)
        verdict, binds, reached = _addresses(gateway, self._setting, given, assigned)
        serves = verdict.holds
        if standing is not None:
            verdict, binds = _with_service(verdict, standing), (self._setting.bind,)
            serves = verdict.holds or verdict.reason == "AddressNotAssigned"  # there is more than an address
        self._sets += [(item, let_in, verdict) for item, let_in in sets]
        self._add_certificate(gateway)
        self._gateways.append((gateway, own := list[Listener](), verdict, reached))
        for listener in judged:
            port = listener.port if standing is None else standing.targets.get(listener.place, 0)
            placed = self._place(listener, port, binds) if listener.serves and serves else listener
            self._listeners.append(placed)
            own.append(placed)
            self._by_owner.setdefault((placed.owner.kind.value, placed.owner.name), []).append(placed)
            self._tell(listener.owner, "spec.listeners", placed.accepted, placed.resolved)
            names = listener.certified.named
            self._targets.named.update((IngressKind.SECRET, name) for name in names)
        if not verdict.holds:
            self._tell(gateway, "spec", verdict)

    def _standing(self, gateway: Item, judged: Iterable[Listener]) -> Standing | None:
        """Say how the Service stands that we make for a Gateway; None where we make none."""
        if self.services is None:
            return None
        self._targets.named.add((IngressKind.SERVICE, self.services.name_of(gateway)))
        return self.services.add(gateway, judged)

    def _assigned(self, gateway: Item) -> tuple[str, ...] | None:
        """Return the addresses that `vipwire up` has given to a Gateway; None where it gives none to any."""
        if self._setting.pool or not self._world.is_pooled:
            return None
        service = self._world.assigned(gateway)
        if service is None:
            return ()
        self._targets.named.add((IngressKind.SERVICE, service.name))
        return service.balanced

    def _add_certificate(self, gateway: Item) -> None:
        """Add the certificate that a Gateway shows to Pods."""
        own = own_certificate(gateway, self._world)
        if own is None:
            return
        self._own[gateway.name] = own
        self._targets.certificates[gateway.name] = own.file
        if own.named is not None:
            self._targets.named.add((IngressKind.SECRET, own.named))
        self._tell(gateway, "spec.tls.backend", own.verdict)

    def _place(self, listener: Listener, port: int, binds: Iterable[str]) -> Listener:
        if not port:
            return replace(listener, waits="the Gateway's Service does not have this port yet")
        for bind in binds:
            key = (bind, port)
            name = f"{'udp' if listener.is_udp else 'gateway'}{self._mark(*key)}"
            if name in self._refused:
                text = f"{bind}:{port} is taken by another program, or may not be taken"
                return replace(listener, accepted=no("PortUnavailable", text))
            if not listener.is_udp and self._setting.reserves(*key):
                text = f"{bind}:{port} is where Ingresses come in (--http, --https)"
                return replace(listener, accepted=no("PortUnavailable", text))
            if listener.is_udp:
                there = self._datagrams.setdefault(key, DatagramPlace(name, *key))
                self._datagram_ports.setdefault(id(listener), []).append(there)
                continue
            placed = self._places.setdefault(key, SharedPort(f"{bind}:{port}", self._mark(*key)))
            if text := placed.objection(listener):
                return replace(listener, accepted=no("PortUnavailable", text))
            placed.add(listener)
            self._ports.setdefault(id(listener), []).append(placed)
        return listener

    def attach_policies(self) -> None:
        """Attach our own policies, once all Gateways are there."""
        made = policies_of(self._world, (gateway for gateway, *_ in self._gateways))
        self._targets.policies = made
        self._targets.named |= made.named
        for each in made.all:
            self._tell(each.policy, "spec", *each.verdicts)

    def add_route(self, route: Item) -> None:
        """Attach a route to its listeners, as far as they let it."""
        parents = parents_of(route, self._by_owner, self._world)
        if not parents:
            return
        read = Read()
        try:
            self._attach(route, parents, read)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is about this route
            read.failed = dict.fromkeys(range(len(route.spec.rules)), unexpected(error))
        failed = read.failures(len(route.spec.rules))
        all_failed = bool(failed) and len(failed) == len(route.spec.rules)
        self.statuses[route.kind, route.name] = {
            "parents": parents_status(
                route, parents, self._setting.controller, read.resolved, failed, all_failed=all_failed
            )
        }
        self._tell(route, "spec.rules", read.resolved, *(no("", text) for text in failed))
        self._tell(route, "spec.parentRefs", *(each.accepted for each in parents))

    def _attach(self, route: Item, parents: Iterable[Parent], read: Read) -> None:
        seen = set[int]()
        services = tuple(services_of(route))
        found: list[Brought] = []
        for attachment in (each for parent in parents for each in parent.attachments):
            if id(attachment.listener) in seen:
                continue
            seen.add(id(attachment.listener))
            self._counts[id(attachment.listener)] = self._counts.get(id(attachment.listener), 0) + 1
            for service in services:
                self._leading.setdefault(service, set()).add(attachment.listener.gateway.name)
            if attachment.listener.is_udp:
                shares = shares_of(route, self._targets, read)
                for there in self._datagram_ports.get(id(attachment.listener), ()):
                    there.shares = there.shares or shares  # the oldest route's
                continue
            entries = tuple(entries_of(route, attachment, self._targets, read))
            ports = self._ports.get(id(attachment.listener), ())
            found += [each for placed in ports for each in placed.brought(attachment, entries)]
        self._put(route, found, read)

    def _put(self, route: Item, found: Sequence[Brought], read: Read) -> None:
        """Bring matches to their places; if that is more than a namespace may have, close those that are guarded."""
        namespace, shares = route.name.namespace, self._fresh_shares(found)
        tried = sum(each.cost() for each in found) + sum(self._targets.rules_of(name) for _, name in shares)
        steps = Counter[str]()
        for each in found:
            steps[each.site] += each.steps()
        if text := self._budget.take(namespace, tried, steps):
            read.failed = dict.fromkeys(range(len(route.spec.rules)), text)
            found, shares = [each.closed(self._targets.is_guarded) for each in found], set()
            if self._budget.take(namespace, sum(each.cost() for each in found), {}):
                found = [each.closed_whole() for each in found if each.entries]
        self._shares |= shares
        for each in found:
            each.put()

    def _fresh_shares(self, found: Iterable[Brought]) -> set[tuple[int, str]]:
        """Find the choices by weight that frontends do not have yet."""
        pairs = {(id(each.way), entry.target) for each in found for entry in each.entries}
        return {pair for pair in pairs if pair[1] in self._targets.choices} - self._shares

    def _tell(self, item: Item, where: str, *verdicts: Verdict) -> None:
        for verdict in verdicts:
            if not verdict.holds:
                text = f"{verdict.reason}: {verdict.message}" if verdict.reason else verdict.message
                self._problems.append(Problem(item.kind.value, item.name, where, text))

    def finished(self) -> GatewayPlan:
        """Build the plan."""
        self._write_statuses()
        routes: list[Route] = []
        frontends = []
        for _, placed in sorted(self._places.items()):
            for frontend, own in placed.made(self._targets.choices):
                frontends.append(frontend)
                routes += own
        sites = SitePlan(
            tuple(routes),
            tuple(self._targets.pools.values()),
            certificates=distinct(each.certified for each in self._listeners if each.serves),
            problems=tuple(self._problems),
            named=frozenset(self._targets.named),
            frontends=tuple(frontends),
            authorities=tuple(sorted(self._files())),
            datagrams=tuple(place.frontend for _, place in sorted(self._datagrams.items())),
        )
        return GatewayPlan(sites, ordered(self.statuses), services=self.services.wanted if self.services else {})

    def _files(self) -> set[tuple[str, str]]:
        """Collect the files of certificates that are neither a site's nor read anew while HAProxy runs."""
        clients = (each.clients for each in self._listeners if each.clients is not None)
        own = ((each.file, each.pem) for each in self._own.values() if each.file)
        return {
            *self._targets.tls.files.items(),
            *self._targets.bodies.items(),
            *((each.file, each.content) for each in clients),
            *own,
        }

    def _mark(self, bind: str, port: int) -> str:
        """Write what the hosts of a frontend end with."""
        return f":{port}" if bind == self._setting.bind else f":{bind.strip('[]')}:{port}"

    def _write_statuses(self) -> None:
        for gateway, own, verdict, reached in self._gateways:
            status = gateway_status(gateway, own, self._counts, verdict, reached)
            certificate = self._own.get(gateway.name)
            status["conditions"] += tls_conditions(gateway, own, certificate.verdict if certificate else None)
            self.statuses[gateway.kind, gateway.name] = status
        for item, let_in, address in self._sets:
            own = self._by_owner.get((item.kind.value, item.name), [])
            status = set_status(item, own, self._counts, address, let_in=let_in)
            self.statuses[item.kind, item.name] = status
        for checked in self._targets.tls.all:
            led = {name for target, _ in targets_of(checked.policy) for name in self._leading.get(target, ())}
            gateways = [gateway for gateway, *_ in self._gateways if gateway.name in led]
            status = policy_status(checked, gateways, self._setting.controller)
            self.statuses[checked.policy.kind, checked.policy.name] = status
        for judged in self._targets.policies.all:
            key = judged.policy.kind, judged.policy.name
            self.statuses[key] = own_policy_status(judged, self._setting.controller)


def _addresses(
    gateway: Item, setting: GatewaySetting, given: tuple[str, ...], assigned: tuple[str, ...] | None
) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """Return whether a Gateway can have its addresses, where it listens, and what its status says.

    `given` are those of our pool, `assigned` those of `vipwire up`, None if it gives none.
    """
    if gateway.spec.infrastructure.parameters_ref is not None:
        return no("InvalidParameters", "infrastructure.parametersRef: this controller has no parameters"), (), ()
    for each in gateway.spec.addresses:
        if each.type != "IPAddress":
            return no("UnsupportedAddress", f"{each.type[:80]}: only IPAddress is supported"), (), ()
    values = named(gateway)
    if not values and not setting.pool and assigned is None:
        return yes("Programmed"), (setting.bind,), setting.addresses
    if not values and not given and not assigned:
        flag = "--address-pool" if setting.pool else "vipwire up --load-balancer-range"
        return no("AddressNotAssigned", f"no address of the pool is left ({flag})"), (), ()
    pool = AddressPool(setting.pool)
    usable = setting.usable.union(assigned or ())
    if strange := [value for value in values if value not in usable and value not in pool]:
        text = f"{strange[0][:80]} is none of this controller's addresses (--address, --address-pool)"
        return no("AddressNotUsable", text), (), ()
    values = values or given or assigned or ()
    return yes("Programmed"), tuple(f"[{v}]" if ":" in v else v for v in values), values


def _with_service(verdict: Verdict, standing: Standing) -> Verdict:
    """Say what has become of a Gateway's address that its own Service is to bring."""
    if standing.lacks and verdict.reason in ("Programmed", "AddressNotAssigned", "AddressNotUsable"):
        return no("AddressNotAssigned", standing.lacks)
    return verdict
