"""An optional interface of a backend: how much traffic its objects have seen.

Optional, as a method of the backend: a backend that has `counts` is a `CountingBackend` (`isinstance` says so), and a
mode needs nothing else to appear in `vipwire status`, `vipwire top` and /metrics. What a mode cannot know is None,
which is not 0: it is left out where it would be shown.

Counts only grow, as long as what counts stands in the kernel; they may start again from 0 (a table made anew, an
element replaced, a reboot), which whoever computes rates from counters must expect anyway.
"""

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import field

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address
from vipwire.model.value import Value
from vipwire.plan.plan import ServicePlan


class Count(NamedTuple):
    """The traffic of one Service port, or of one endpoint of it; None where the mode cannot tell.

    `connections` are those that were given an endpoint (UDP: flows as connection tracking sees them). `packets` and
    `bytes` (of IP) went from clients to endpoints, `reply_packets` and `reply_bytes` from endpoints to clients.
    """

    connections: int | None = None
    packets: int | None = None
    bytes: int | None = None
    reply_packets: int | None = None
    reply_bytes: int | None = None

    def plus(self, other: "Count") -> "Count":
        """Add field by field; what one of them does not know, the other's is taken for all."""
        return Count(*map(_sum, self, other))


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


class Refusal(enum.Enum):
    """Why packets were not let through; the value is the label `reason` of the metrics. See `is_drop`."""

    NO_ENDPOINTS = "no-endpoints"
    NO_LOCAL_ENDPOINTS = "no-local-endpoints"
    SOURCE_RANGE = "source-range"
    NODE_PORT_SOURCE_RANGE = "node-port-source-range"
    UNDEFINED_PORT = "undefined-port"
    UNALLOCATED_CLUSTER_IP = "unallocated-cluster-ip"

    @property
    def is_drop(self) -> bool:
        """Whether packets are dropped; otherwise the client is told that it was refused."""
        return self not in (Refusal.NO_ENDPOINTS, Refusal.UNDEFINED_PORT)


class EndpointName(NamedTuple):
    """One endpoint of one Service port."""

    port_name: ServicePortName
    address: Address
    port: int


class OpenConnections(NamedTuple):
    """The connections to an endpoint now: established ones, and others that are not forgotten yet."""

    active: int
    inactive: int


class Counts(Value, frozen=True):
    """The counts of one family's objects, of all Services or those that were asked for.

    Only what was seen need be in it: a Service port without traffic may be absent, or 0. `refusals` are packets by
    reason and Service port, the port None for what belongs to no port or where the mode counts all Services in one.
    `open` are gauges, of modes whose kernel objects keep count of them (IPVS).
    """

    ports: Mapping[ServicePortName, Count] = field(default_factory=lambda: MappingProxyType({}))
    endpoints: Mapping[EndpointName, Count] = field(default_factory=lambda: MappingProxyType({}))
    refusals: Mapping[tuple[Refusal, ServicePortName | None], int] = field(
        default_factory=lambda: MappingProxyType({})
    )
    open: Mapping[EndpointName, OpenConnections] = field(default_factory=lambda: MappingProxyType({}))


@runtime_checkable
class CountingBackend(Protocol):
    """A backend that can say how much its objects have seen."""

    def counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        """Read the counters of these plans' Services now; without `endpoints`, leave `Counts.endpoints` empty.

        `plans` are what the objects in the kernel were rendered from; `vipwire status` may ask for one Service only.
        Called in a thread of its own, also while the mode observes or commits, so that a scrape delays no sync: it
        takes its own socket (or process) and touches nothing of the backend that changes. It writes nothing to the
        kernel, and works without rights to write where the kernel lets it read. Raises OSError or CommitError where
        the kernel cannot be read; counts nothing (empty mappings) where nothing of ours is there.
        """
        ...


@runtime_checkable
class AdoptsCounters(Protocol):
    """A backend whose objects differ by what is counted, so that who only looks has to know what the proxy counts."""

    def adopt_counters(self) -> None:
        """Count what the kernel's objects count; where nothing of ours is there, as before.

        Raises OSError where the kernel cannot be read.
        """
        ...
