"""How `vipwire up` and `vipwire gateway` speak of Gateways' addresses: by a Service for each, and a ConfigMap.

The Service's status, which only controllers write, has the addresses; the ConfigMap says that there is such a pool.
"""

from typing import Final

from vipwire.model.names import ObjectName

CONTROLLER: Final = "vipwire.io/gateway"
"""The controller of GatewayClasses that is ours unless the operator says otherwise."""
GATEWAY: Final = "vipwire.io/gateway"
"""Annotation of a Service of type LoadBalancer: the Gateway of its namespace whose addresses it has."""
POOL: Final = ObjectName("kube-system", "vipwire-load-balancer-ranges")
"""The ConfigMap that is there if Gateways have their addresses so."""
