"""The values of a plan: Service by Service, frontend by frontend, what is to happen to a packet.

    ServicePlan ▸ Frontend ▸ Forward(pool, masquerade, affinity) | Drop | Reject

A frontend is an address (or every node-port address) with a protocol and a port: the key by which the kernel will
recognise a packet. It belongs to one Service port only; see `claims`.
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
    """An endpoint's address and port. `local` when it runs on this node."""

    address: Address
    port: int
    local: bool

    def __str__(self) -> str:
        return format_endpoint(self.address, self.port)


Pool: TypeAlias = tuple[Target, ...]
"""Equally good targets, sorted, without duplicates, never empty."""


class Masquerade(enum.Enum):
    """Whether the client's address is replaced by the node's, so that the answer comes back this way."""

    __hash__ = object.__hash__  # enum's own hashes the name, in Python, at each look-up

    NEVER = "never"
    UNLESS_POD = "unless the client is a Pod"
    ALWAYS = "always"


class Reason(enum.Enum):
    """Why a frontend answers nobody; the value continues the Service port's name as kube-proxy's comments do."""

    NO_ENDPOINTS = "has no endpoints"
    NO_LOCAL_ENDPOINTS = "has no local endpoints"


class Forward(Value, frozen=True):
    """Each new connection goes to one target of the pool. `affinity_seconds` keeps a client where it went before.

    A target that is the client itself (hairpin) is masqueraded in any case, or it would answer itself directly. Its
    `nodeName` does not matter: the EndpointSlice API lets a slice leave it out. `policy` is the traffic policy that
    chose the pool: kube-proxy names its chains by it. `shared_affinity`: a client's memory serves all ports of the
    Service.
    """

    pool: Pool
    masquerade: Masquerade
    affinity_seconds: int | None = None
    policy: TrafficPolicy = TrafficPolicy.CLUSTER
    spread: Spread = EVENLY
    shared_affinity: bool = False

    @property
    def weights(self) -> tuple[int, ...]:
        """The weight of each target of the pool, in its order."""
        return self.spread.weights or (1,) * len(self.pool)


class Drop(Value, frozen=True):
    """The packet vanishes: another node may be able to answer."""

    reason: Reason


class Reject(Value, frozen=True):
    """The client is told that nobody answers here."""

    reason: Reason


Action: TypeAlias = Forward | Drop | Reject


class FrontendKind(enum.Enum):
    """The field of the Service that asks for a frontend; the value is the word of kube-proxy's comments."""

    __hash__ = object.__hash__  # enum's own hashes the name, in Python, at each look-up of a key

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    LOAD_BALANCER = "loadbalancer IP"
    NODE_PORT = "node port"


class FrontendKey(NamedTuple):
    """The destination of packets. `address` is None for node ports: any address that serves them."""

    address: Address | None
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        where = f"node port {self.port}" if self.address is None else format_endpoint(self.address, self.port)
        return f"{where}/{self.protocol.label}"


class Frontend(Value, frozen=True):
    """One way to reach one Service port, and what happens to packets that take it.

    `short_circuit`, where present, is what happens instead to clients on this node, Pods and the node itself: they
    reach every endpoint although the external policy is Local (KEP-2086). `allowed_sources`, where present, are the
    only sources that are not dropped. `serving` holds every (address, port) that may still answer old UDP flows.
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
    """A range of ports at which a Service port is reached as well; see `ranges`.

    What happens is what happens at the port itself, as `frontend` says, but for the port of an endpoint that is the
    Service port's own: there the packet's port is kept.
    """

    key: RangeKey
    frontend: Frontend

    def keeps_port(self, target: Target) -> bool:
        """Report whether packets arrive at this target with the port that they were sent to."""
        return target.port == self.frontend.key.port


class HealthCheck(NamedTuple):
    """`healthCheckNodePort` of a load balancer Service with `externalTrafficPolicy: Local` (KEP-1669)."""

    port: int
    local_endpoints: int


class ServicePlan(Value, frozen=True):
    """Everything about one Service and one family.

    `cluster_ips` are addresses that this Service owns wholly: a port of theirs that no frontend names is rejected.
    `lost` are frontends that an older Service holds, with that Service's name. `node_port_addresses` are those of
    this node's addresses that serve its node ports, and `own_addresses` those that a frontend has as well: filled
    only for modes that need each address named (`NodePlan.addresses`). `wishes` is what annotations ask for, and
    `problems` what is wrong with them. `ranges` are frontends of many ports. `contested` are the places of its node
    ports, again for such modes, that some Service claims by the address: who answers there is decided by the
    endpoints of both. With `NodePlan.direct` they are endpoints that some Service claims as well: a socket that is
    connected to one meets the rules of that Service.
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


def endpoint_places(plan: ServicePlan) -> Iterator[FrontendKey]:
    """Yield where endpoints are that sockets of this node may be connected to."""
    for frontend in plan.frontends:
        action = frontend.short_circuit or frontend.action
        for target in action.pool if isinstance(action, Forward) else ():
            yield FrontendKey(target.address, frontend.key.protocol, target.port)


def joint_health_check(plans: Iterable[ServicePlan | None]) -> HealthCheck | None:
    """Find what one Service asks for, given its plans; a dual-stack one counts the family with more endpoints."""
    checks = [plan.health_check for plan in plans if plan is not None and plan.health_check is not None]
    if not checks:
        return None
    return max(checks, key=lambda check: check.local_endpoints)
