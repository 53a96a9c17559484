"""The traffic counted by a mode's kernel objects, for `vipwire status`, `vipwire top` and /metrics.

`Mode.read_counts` adds each number under its measure and owner; this module sums by Service port, by endpoint and
over both families. A measure that a mode does not know is absent, which is not 0. Counts grow while the kernel's
counter exists, and may restart from 0 (new table, replaced element, reboot).
"""

import enum
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address


class Measure(enum.StrEnum):
    """A kind of traffic of a Service port or an endpoint; the value is the key in documents.

    A connection counts once it has an endpoint; a UDP connection is a conntrack flow. Bytes are of IP packets. ACTIVE
    and INACTIVE are gauges of modes whose kernel objects know the existing connections (IPVS).
    """

    CONNECTIONS = "connections"
    PACKETS = "packets"
    BYTES = "bytes"
    REPLY_PACKETS = "replyPackets"
    REPLY_BYTES = "replyBytes"
    ACTIVE = "active"
    INACTIVE = "inactive"


class Refusal(enum.Enum):
    """Why packets are refused; the value is the label `reason` of the metrics."""

    NO_ENDPOINTS = "no-endpoints"
    NO_LOCAL_ENDPOINTS = "no-local-endpoints"
    SOURCE_RANGE = "source-range"
    NODE_PORT_SOURCE_RANGE = "node-port-source-range"
    UNDEFINED_PORT = "undefined-port"
    UNALLOCATED_CLUSTER_IP = "unallocated-cluster-ip"

    @property
    def is_drop(self) -> bool:
        """Whether packets are dropped; otherwise the client gets an error."""
        return self not in (Refusal.NO_ENDPOINTS, Refusal.UNDEFINED_PORT)


class EndpointName(NamedTuple):
    """One endpoint of one Service port."""

    port_name: ServicePortName
    address: Address
    port: int


Owner: TypeAlias = ServicePortName | EndpointName | None
"""A Service port, an endpoint of it, or None for refused packets of no Service or of all Services together."""


class Counts(dict[Measure | Refusal, dict[Owner, int]]):
    """Numbers by measure and owner; additions for one owner add up. Refusals are packets.

    Without `endpoints`, an endpoint's numbers count for its Service port only.
    """

    def __init__(self, *, endpoints: bool = True) -> None:
        super().__init__()
        self._endpoints = endpoints

    def add(self, what: Measure | Refusal, owner: Owner, number: int) -> None:
        numbers = self.setdefault(what, {})
        numbers[owner] = numbers.get(owner, 0) + number

    def add_endpoint(self, what: Measure, endpoint: EndpointName, number: int) -> None:
        numbers = self.setdefault(what, {})
        numbers[endpoint.port_name] = numbers.get(endpoint.port_name, 0) + number
        if self._endpoints:
            numbers[endpoint] = numbers.get(endpoint, 0) + number

    def add_all(self, other: "Counts") -> None:
        """Add the numbers of another family, or of another part of a mode."""
        for what, numbers in other.items():
            for owner, number in numbers.items():
                self.add(what, owner, number)

    def refusals(self) -> dict[tuple[Refusal, Owner], int]:
        return {(reason, owner): number for reason in Refusal for owner, number in self.get(reason, {}).items()}


@runtime_checkable
class AdoptsSettings(Protocol):
    """A mode whose objects depend on settings that a read-only command may lack."""

    def adopt_settings(self, explicit: frozenset[str]) -> None:
        """Read settings from the kernel's objects, except settings whose field is in `explicit`.

        Without objects of this mode, settings stay. Raise OSError if the kernel cannot be read.
        """
        ...
