"""The traffic that a mode's kernel objects have counted.

`vipwire status`, `vipwire top` and /metrics show what `Mode.read_counts` returns. A mode adds each number under its
measure and owner; sums by Service port, by endpoint and over both families are made here. A measure that a mode does
not know is absent, which is not 0.

Counts only grow while the kernel object that counts exists. They may start again from 0 (a new table, a replaced
element, a reboot), as any counter that rates are computed from.
"""

import enum
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address


class Measure(enum.StrEnum):
    """The traffic of a Service port or an endpoint; the value is the key in documents.

    A connection counts once it has an endpoint; in UDP that is a flow of connection tracking. Bytes are of IP.
    ACTIVE and INACTIVE are gauges of modes whose kernel objects know the connections that exist (IPVS).
    """

    CONNECTIONS = "connections"
    PACKETS = "packets"
    BYTES = "bytes"
    REPLY_PACKETS = "replyPackets"
    REPLY_BYTES = "replyBytes"
    ACTIVE = "active"
    INACTIVE = "inactive"


class Refusal(enum.Enum):
    """The reason why packets are refused; the value is the label `reason` of the metrics."""

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


Owner: TypeAlias = ServicePortName | EndpointName | None
"""A Service port, one of its endpoints, or neither: packets refused for no Service, or for all Services in one."""


class Counts(dict[Measure | Refusal, dict[Owner, int]]):
    """Numbers by what was counted and by owner; numbers of one owner add up. Refusals are packets.

    Without `endpoints` what is counted for an endpoint counts for its Service port only.
    """

    def __init__(self, *, endpoints: bool = True) -> None:
        super().__init__()
        self._endpoints = endpoints

    def add(self, what: Measure | Refusal, owner: Owner, number: int) -> None:
        """Add a number for one owner."""
        numbers = self.setdefault(what, {})
        numbers[owner] = numbers.get(owner, 0) + number

    def add_endpoint(self, what: Measure, endpoint: EndpointName, number: int) -> None:
        """Add a number for an endpoint and for its Service port."""
        numbers = self.setdefault(what, {})
        numbers[endpoint.port_name] = numbers.get(endpoint.port_name, 0) + number
        if self._endpoints:
            numbers[endpoint] = numbers.get(endpoint, 0) + number

    def add_all(self, other: "Counts") -> None:
        """Add the numbers of another reading: the other family, or another part of a mode."""
        for what, numbers in other.items():
            for owner, number in numbers.items():
                self.add(what, owner, number)

    def refusals(self) -> dict[tuple[Refusal, Owner], int]:
        """Return the refused packets by reason and Service port."""
        return {(reason, owner): number for reason in Refusal for owner, number in self.get(reason, {}).items()}


@runtime_checkable
class AdoptsSettings(Protocol):
    """A mode whose objects differ by settings that a command which only looks may not have been told."""

    def adopt_settings(self, explicit: frozenset[str]) -> None:
        """Take from the kernel's objects each such setting whose field is not in `explicit`.

        Where no object of this mode exists, settings stay. Raise OSError if the kernel cannot be read.
        """
        ...
