"""Endpoints objects, the older form, made of a Service's endpoints for clients that do not read slices. Pure.

They have one family, the Service's first, and at most 1,000 addresses; an annotation tells if there are more.
"""

from typing import Final

from vipwire_up.api.kinds.endpoints import ENDPOINTS
from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.endpoints.endpoints import Grouped

MOST: Final = 1000
MANAGED_BY: Final = "endpoints.kubernetes.io/managed-by"
CONTROLLER: Final = "endpoint-controller"
OVER_CAPACITY: Final = "endpoints.kubernetes.io/over-capacity"
HEADLESS: Final = "service.kubernetes.io/headless"


def build_endpoints_object(service: Object, grouped: Grouped) -> Object:
    spec, meta = service["spec"], service["metadata"]
    family = (spec.get("ipFamilies") or ["IPv4"])[0]
    left, subsets = MOST, []
    for group, endpoints in grouped.items():
        if group.family != family or not endpoints:
            continue
        taken = sorted(endpoints[:left], key=lambda endpoint: str(endpoint["addresses"][0]))
        left -= len(taken)
        ready = [_build_address(endpoint) for endpoint in taken if endpoint["conditions"]["ready"]]
        others = [_build_address(endpoint) for endpoint in taken if not endpoint["conditions"]["ready"]]
        parts = {"addresses": ready, "notReadyAddresses": others, "ports": group.port_list}
        if ready or others:
            subsets.append({name: part for name, part in parts.items() if part})
    total = sum(len(listed) for group, listed in grouped.items() if group.family == family)
    labels = (meta.get("labels") or {}) | {MANAGED_BY: CONTROLLER}
    labels |= {HEADLESS: ""} if spec.get("clusterIP") == "None" else {}
    return {
        "apiVersion": ENDPOINTS.api_version,
        "kind": ENDPOINTS.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": labels,
            **({"annotations": {OVER_CAPACITY: "truncated"}} if total > MOST else {}),
        },
        "subsets": sorted(subsets, key=lambda subset: str(subset.get("ports"))),
    }


def _build_address(endpoint: Object) -> Object:
    kept = {name: endpoint[name] for name in ("hostname", "nodeName", "targetRef") if endpoint.get(name)}
    return {"ip": endpoint["addresses"][0]} | kept
