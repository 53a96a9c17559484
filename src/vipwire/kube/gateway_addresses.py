"""Names by which `vipwire up` and `vipwire gateway` exchange Gateways' addresses: Services and a ConfigMap.

A Gateway's Service has the addresses in its status, which only controllers write; the ConfigMap says that `vipwire
up` has an address pool. In other clusters `vipwire gateway --services` makes the Services, marked with its
controller.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from vipwire.model.names import ObjectName

CONTROLLER: Final = "vipwire.io/gateway"
"""The default controller name of vipwire's GatewayClasses."""
GATEWAY: Final = "vipwire.io/gateway"
"""Annotation of a LoadBalancer Service: the Gateway of its namespace that has its addresses."""
OF_CONTROLLER: Final = "vipwire.io/gateway-controller"
"""Annotation of a Service made by `vipwire gateway --services`: its controller."""
GATEWAY_NAME: Final = "gateway.networking.k8s.io/gateway-name"
"""Label of objects made for a Gateway (GEP-1762)."""
POOL: Final = ObjectName("kube-system", "vipwire-load-balancer-ranges")
"""The ConfigMap that exists if Gateways get their addresses from `vipwire up`."""
_LABEL: Final = re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def is_created_by_deployment(annotations: Mapping[str, str]) -> bool:
    """Report whether `vipwire gateway --services` made a Service; its endpoints are that program's Pods."""
    return OF_CONTROLLER in annotations


def is_haproxy_service(annotations: Mapping[str, str]) -> bool:
    """Report whether HAProxy itself listens at a Service's addresses, so that no proxy serves them."""
    return GATEWAY in annotations and not is_created_by_deployment(annotations)


def service_name(gateway: str, of_class: str) -> str:
    """Return the name of a Gateway's Service; a Gateway's name may be longer than a Service's, and contain dots."""
    plain = f"{gateway}-{of_class}"
    return plain if _LABEL.fullmatch(plain) else f"gateway-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def name_label(gateway: str) -> dict[str, str]:
    """Return the label with a Gateway's name; {} if the name is too long for a label."""
    return {GATEWAY_NAME: gateway} if len(gateway) < 64 else {}
