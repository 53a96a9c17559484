"""Services and EndpointSlices on the wire, only the fields that DNS reads; `kube.wire`'s habits hold here."""

from msgspec import Struct, field

from vipwire.kube.wire import Meta, WireEndpointPort, WireServicePort


class ServiceSpec(Struct, gc=False, rename="camel"):
    """A Service's `spec`."""

    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] | None = field(default=None, name="clusterIPs")
    ports: tuple[WireServicePort, ...] | None = None
    external_name: str | None = None
    publish_not_ready_addresses: bool | None = None


class WireService(Struct, gc=False):
    """core/v1 Service."""

    metadata: Meta | None = None
    spec: ServiceSpec | None = None


class SliceLabels(Struct, gc=False):
    """The label of an EndpointSlice that says whose it is."""

    service: str | None = field(default=None, name="kubernetes.io/service-name")


class SliceMeta(Meta, gc=False, rename="camel"):
    """An EndpointSlice's `metadata`."""

    labels: SliceLabels | None = None


class Conditions(Struct, gc=False):
    """`endpoints[].conditions`: DNS goes by `ready` alone, which the controllers make of the others."""

    ready: bool | None = None


class WireEndpoint(Struct, gc=False):
    """One of an EndpointSlice's `endpoints`."""

    addresses: tuple[str, ...] | None = None
    hostname: str | None = None
    conditions: Conditions | None = None


class EndpointSlice(Struct, gc=False, rename="camel"):
    """discovery.k8s.io/v1 EndpointSlice."""

    metadata: SliceMeta | None = None
    address_type: str | None = None
    endpoints: tuple[WireEndpoint, ...] | None = None
    ports: tuple[WireEndpointPort, ...] | None = None


class EndpointAddress(Struct, gc=False):
    """One of a subset's `addresses` or `notReadyAddresses`."""

    ip: str | None = None
    hostname: str | None = None


class Subset(Struct, gc=False, rename="camel"):
    """One of the `subsets` of v1 Endpoints."""

    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[WireEndpointPort, ...] | None = None


class Endpoints(Struct, gc=False):
    """core/v1 Endpoints, read from manifests only: an API server mirrors them into EndpointSlices itself."""

    metadata: Meta | None = None
    subsets: tuple[Subset, ...] | None = None
