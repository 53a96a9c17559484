"""EndpointSlices, as far as a service proxy reads them.

A slice holds its ports once and its endpoints once, as in the API. An endpoint is a msgspec struct because a cluster
may have 100,000: a tenth of a frozen dataclass's time to make, a third to compare, untracked by the garbage
collector.
"""

import msgspec

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.value import Value


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One endpoint of a slice: a Pod's address and conditions. The defaults are those of absent conditions.

    `zones` and `nodes` are the topology hints (`hints.forZones`, `hints.forNodes`), empty without hints.
    """

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class EndpointPort(Value, frozen=True):
    """A port that every endpoint of the slice serves; `name` matches the Service port's name."""

    name: str
    protocol: Protocol
    port: int


class EndpointSlice(Value, frozen=True):
    """A valid EndpointSlice of one Service and one family.

    `triggered` is `endpoints.kubernetes.io/last-change-trigger-time` in seconds since the epoch, None when absent.
    """

    name: ObjectName
    service: ObjectName
    family: Family
    ports: tuple[EndpointPort, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    triggered: float | None = None
