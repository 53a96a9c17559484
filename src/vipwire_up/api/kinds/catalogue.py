"""All kinds that the API server stores, in the order in which a namespace is emptied, and those that it serves."""

from typing import Final

from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES, ENDPOINTS
from vipwire_up.api.kinds.event import EVENTS, NEW_EVENTS
from vipwire_up.api.kinds.gateway import GATEWAY_BETA, GATEWAY_CLASSES, GATEWAY_RESOURCES
from vipwire_up.api.kinds.ingress import INGRESS_CLASSES, INGRESSES
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.policies import POLICY_RESOURCES
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.service_cidr import IP_ADDRESSES, SERVICE_CIDRS
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS, LEASES, NAMESPACES, SECRETS
from vipwire_up.api.objects.resource import Resource

RESOURCES: Final[tuple[Resource, ...]] = (
    *POLICY_RESOURCES,
    *GATEWAY_RESOURCES,
    INGRESSES,
    SERVICES,
    PODS,
    ENDPOINTS,
    ENDPOINT_SLICES,
    CONFIG_MAPS,
    SECRETS,
    LEASES,
    EVENTS,
    NAMESPACES,
    NODES,
    INGRESS_CLASSES,
    GATEWAY_CLASSES,
    SERVICE_CIDRS,
    IP_ADDRESSES,
)

SERVED: Final = (*RESOURCES, NEW_EVENTS, *GATEWAY_BETA)
"""All kinds in every group and version."""

BY_ID: Final[dict[str, Resource]] = {resource.id: resource for resource in RESOURCES}
