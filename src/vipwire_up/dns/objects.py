"""A Service and its endpoints as far as DNS reads them.

The service proxy's own values leave out exactly what DNS needs most (headless Services, ExternalName, hostnames), and
keep much that it does not; so these are separate, and the proxy pays nothing for DNS.
"""

import enum
from dataclasses import dataclass
from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Protocol
from vipwire.state.event import EventOf


class DnsKind(enum.Enum):
    """The kinds that DNS reads; the value is the kind in a manifest."""

    SERVICE = "Service"
    SLICE = "EndpointSlice"


class Form(enum.Enum):
    """What the names of a Service resolve to."""

    CLUSTER_IP = "its own addresses"
    HEADLESS = "its endpoints' addresses"
    EXTERNAL = "another name"


@dataclass(frozen=True, slots=True)
class DnsPort:
    """A port of a Service or of its endpoints; one without a name has no SRV record."""

    name: str
    protocol: Protocol
    number: int


@dataclass(frozen=True, slots=True)
class DnsService:
    """A Service. `addresses` only for ClusterIP, `target` (a wire name) only for ExternalName."""

    name: ObjectName
    form: Form
    addresses: tuple[Address, ...] = ()
    ports: tuple[DnsPort, ...] = ()
    target: bytes = b""
    publish_not_ready: bool = False


@dataclass(frozen=True, slots=True)
class DnsEndpoint:
    """One address of a Service; `hostname` is the Pod's, or empty."""

    address: Address
    hostname: str = ""
    ready: bool = True


@dataclass(frozen=True, slots=True)
class DnsSlice:
    """Some of a Service's endpoints, with the ports that all of them have."""

    name: ObjectName
    service: ObjectName
    ports: tuple[DnsPort, ...] = ()
    endpoints: tuple[DnsEndpoint, ...] = ()


DnsObject: TypeAlias = DnsService | DnsSlice
DnsEvent: TypeAlias = EventOf[DnsKind, DnsObject]
