"""The values of a plan: the verdict on packets, by Service and frontend.

    ServicePlan ▸ Frontend ▸ Forward(pool, masquerade, affinity) | Drop | Reject

A frontend is an address (or all node-port addresses) with a protocol and a port: the kernel's lookup key. It belongs
to one Service port only; see `claims`.
"""

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Prefix, Protocol, format_endpoint
from vipwire.model.problem import Problem
from vipwire.model.service import TrafficPolicy
from vipwire.model.spread import EVENLY, Spread
from vipwire.model.value import Value
from vipwire.plan.annotations import NOTHING, Wishes


class Target(NamedTuple):
    """An endpoint's address and port. `local`: it runs on this node."""

    address: Address
    port: int
    local: bool

    def __str__(self) -> str:
        return format_endpoint(self.address, self.port)


Pool: TypeAlias = tuple[Target, ...]
"""Equivalent targets: sorted, without duplicates, never empty."""


class Masquerade(enum.Enum):
    """Whether the node's address replaces the client's, so that the answer returns through the node."""

    __hash__ = object.__hash__  # enum's own hashes the name in Python at each look-up

    NEVER = "never"
    UNLESS_POD = "unless the client is a Pod"
    ALWAYS = "always"


class Reason(enum.Enum):
    """Why a frontend does not forward; the value follows the Service port's name in kube-proxy's comments."""

    NO_ENDPOINTS = "has no endpoints"
    NO_LOCAL_ENDPOINTS = "has no local endpoints"


class Forward(Value, frozen=True):
    """Each new connection goes to one target of the pool. `affinity_seconds` keeps a client at its target.

    A target that is the client itself (hairpin) is always masqueraded, otherwise it would answer itself directly.
    This ignores `nodeName`, which an EndpointSlice may omit. `policy` is the traffic policy that chose the pool:
    kube-proxy's chain names contain it. `shared_affinity`: all ports of the Service share a client's memory.
    """

    pool: Pool
    masquerade: Masquerade
    affinity_seconds: int | None = None
    policy: TrafficPolicy = TrafficPolicy.CLUSTER
    spread: Spread = EVENLY
    shared_affinity: bool = False

    @property
    def weights(self) -> tuple[int, ...]:
        """The weight of each target, in the pool's order."""
        return self.spread.weights or (1,) * len(self.pool)


class Drop(Value, frozen=True):
    """The packet is dropped without an answer: another node may be able to answer."""

    reason: Reason


class Reject(Value, frozen=True):
    """The client gets an error."""

    reason: Reason


Action: TypeAlias = Forward | Drop | Reject


class FrontendKind(enum.Enum):
    """The Service's field that asks for a frontend; the value is the word in kube-proxy's comments."""

    __hash__ = object.__hash__  # enum's own hashes the name in Python at each look-up of a key

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    LOAD_BALANCER = "loadbalancer IP"
    NODE_PORT = "node port"


class FrontendKey(NamedTuple):
    """The destination of packets. `address` None: any address that serves node ports."""

    address: Address | None
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        where = f"node port {self.port}" if self.address is None else format_endpoint(self.address, self.port)
        return f"{where}/{self.protocol.label}"


class Frontend(Value, frozen=True):
    """One way to reach one Service port, and the action for its packets.

    `short_circuit`, if present, applies to clients on this node, Pods and the node itself: they reach every endpoint
    although the external policy is Local (KEP-2086). `allowed_sources`, if present, are the only sources not dropped.
    `serving` holds every (address, port) that may still answer old UDP flows.
    """

    port_name: ServicePortName
    kind: FrontendKind
    key: FrontendKey
    action: Action
    short_circuit: Forward | None = None
    allowed_sources: tuple[Prefix, ...] | None = None
    serving: frozenset[tuple[Address, int]] = frozenset()


class RangeKey(NamedTuple):
    """The destination of packets to a range of ports, `last` included."""

    address: Address
    protocol: Protocol
    first: int
    last: int

    def __str__(self) -> str:
        return f"{format_endpoint(self.address, self.first)}-{self.last}/{self.protocol.label}"


class RangeFrontend(Value, frozen=True):
    """A range of ports that reaches a Service port too; see `ranges`.

    The action is `frontend`'s, except that packets keep their port if the endpoint's port equals the Service port.
    """

    key: RangeKey
    frontend: Frontend

    def keeps_port(self, target: Target) -> bool:
        return target.port == self.frontend.key.port


class HealthCheck(NamedTuple):
    """`healthCheckNodePort` of a load balancer Service with `externalTrafficPolicy: Local` (KEP-1669)."""

    port: int
    local_endpoints: int


class ServicePlan(Value, frozen=True):
    """The plan of one Service and one family.

    `cluster_ips` are addresses that this Service alone owns: their ports without a frontend are rejected. `lost` are
    frontends that an older Service holds, with that Service's name. `node_port_addresses` are this node's addresses
    that serve its node ports, `own_addresses` those that are frontends too: filled only for modes that name each
    address (`NodePlan.addresses`). `wishes` are the annotations, `problems` their mistakes. `ranges` are frontends of
    many ports. `contested` are, again for such modes, places of its node ports that a Service claims by address: the
    endpoints of both decide the answer. With `NodePlan.direct` they include endpoints that a Service claims: a socket
    connected to one meets that Service's rules.
    """

    name: ObjectName
    frontends: tuple[Frontend, ...] = ()
    cluster_ips: tuple[Address, ...] = ()
    health_check: HealthCheck | None = None
    lost: tuple[tuple[FrontendKey | RangeKey, ObjectName], ...] = ()
    node_port_addresses: tuple[Address, ...] = ()
    own_addresses: tuple[Address, ...] = ()
    wishes: Wishes = NOTHING
    problems: tuple[Problem, ...] = ()
    ranges: tuple[RangeFrontend, ...] = ()
    contested: tuple[FrontendKey, ...] = ()


def list_endpoint_places(plan: ServicePlan) -> Iterator[FrontendKey]:
    """Yield the places of endpoints to which this node's sockets may be connected."""
    for frontend in plan.frontends:
        action = frontend.short_circuit or frontend.action
        for target in action.pool if isinstance(action, Forward) else ():
            yield FrontendKey(target.address, frontend.key.protocol, target.port)


def join_health_checks(plans: Iterable[ServicePlan | None]) -> HealthCheck | None:
    """Return a Service's health check from its plans; of two families, the one with more endpoints."""
    checks = [plan.health_check for plan in plans if plan is not None and plan.health_check is not None]
    if not checks:
        return None
    return max(checks, key=lambda check: check.local_endpoints)


class Memory(NamedTuple):
    """The scope of session affinity's memory: a Service port, or a Service, for the frontends of one policy.

    All frontends of a Service port share one memory: a client of the ClusterIP reaches the same endpoint at the node
    port, external IPs and the load balancer's IPs. With `vipwire.io/affinity-scope: service` all ports of the Service
    share one, by the Pod's address.

    A frontend whose pool lacks the remembered endpoint (a Local policy, hints) chooses one of its own. The memory of
    the other policy's frontends stays, so a client that uses both keeps both endpoints.
    """

    owner: ServicePortName | ObjectName
    policy: TrafficPolicy

    @property
    def other(self) -> "Memory":
        """The same owner's memory for the other policy."""
        local = self.policy is TrafficPolicy.LOCAL
        return Memory(self.owner, TrafficPolicy.CLUSTER if local else TrafficPolicy.LOCAL)


def list_sticky_actions(frontend: Frontend) -> Iterator[Forward]:
    for action in (frontend.action, frontend.short_circuit):
        if isinstance(action, Forward) and action.affinity_seconds is not None:
            yield action


def choose_memory(frontend: Frontend, action: Forward) -> Memory:
    name = frontend.port_name
    return Memory(name.service if action.shared_affinity else name, action.policy)
