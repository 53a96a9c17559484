"""How `vipwire up` and `vipwire gateway` speak of Gateways' addresses: by a Service for each, and a ConfigMap.

The Service's status, which only controllers write, has the addresses; the ConfigMap says that there is such a pool.
Elsewhere `vipwire gateway --services` makes the Services itself, and they are marked with its controller.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from vipwire.model.names import ObjectName

CONTROLLER: Final = "vipwire.io/gateway"
"""The controller of GatewayClasses that is ours unless the operator says otherwise."""
GATEWAY: Final = "vipwire.io/gateway"
"""Annotation of a Service of type LoadBalancer: the Gateway of its namespace whose addresses it has."""
OF_CONTROLLER: Final = "vipwire.io/gateway-controller"
"""Annotation of a Service that `vipwire gateway --services` has made: its controller."""
GATEWAY_NAME: Final = "gateway.networking.k8s.io/gateway-name"
"""Label of what is made for a Gateway (GEP-1762)."""
POOL: Final = ObjectName("kube-system", "vipwire-load-balancer-ranges")
"""The ConfigMap that is there if Gateways have their addresses so."""
_LABEL: Final = re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def made_by_deployment(annotations: Mapping[str, str]) -> bool:
    """Report whether `vipwire gateway --services` made a Service: it leads to that program's Pods."""
    return OF_CONTROLLER in annotations


def is_listened_at(annotations: Mapping[str, str]) -> bool:
    """Report whether HAProxy itself listens at a Service's addresses: a Gateway has them, and no proxy takes them."""
    return GATEWAY in annotations and not made_by_deployment(annotations)


def service_name(gateway: str, of_class: str) -> str:
    """Return the name of a Gateway's Service; a Gateway's own name may be longer than a Service's, and have dots."""
    plain = f"{gateway}-{of_class}"
    return plain if _LABEL.fullmatch(plain) else f"gateway-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def name_label(gateway: str) -> dict[str, str]:
    """Return the label with a Gateway's name, unless that is too long for one."""
    return {GATEWAY_NAME: gateway} if len(gateway) < 64 else {}
