"""Services and Endpoints: defaults, what an update keeps, and columns. What is refused is in `rules/service.py`.

Which addresses and ports a Service gets is not decided here: allocators are admission hooks of the registry.
"""

from datetime import datetime
from typing import Final

from vipwire.model.net import bracketed
from vipwire_up.api.kinds.hand_made import check_endpoints
from vipwire_up.api.kinds.rules.load_balancer import settle_status
from vipwire_up.api.kinds.rules.service import check_service, is_reached_from_outside, wants_health_check
from vipwire_up.api.kinds.rules.service_warnings import warn_service
from vipwire_up.api.kinds.service_types import SERVICE_TYPES
from vipwire_up.api.objects import names
from vipwire_up.api.objects.cells import AGE, NAME, NONE, at, joined, labels_text, path_cell
from vipwire_up.api.objects.resource import Column, Object, Resource

_VIRTUAL: Final = ("ClusterIP", "NodePort", "LoadBalancer")
_WITH_PORTS: Final = ("NodePort", "LoadBalancer")


def _default(new: Object) -> None:
    """Fill in what Kubernetes does for whoever writes (pkg/apis/core/v1/defaults.go, SetDefaults_Service)."""
    spec = new["spec"]
    for port in spec.get("ports") or ():
        if port.get("nodePort") == 0:
            del port["nodePort"]
        if port.get("targetPort") in (None, "", 0):
            port["targetPort"] = port.get("port")
    if spec.get("healthCheckNodePort") == 0:
        del spec["healthCheckNodePort"]
    kind = spec.get("type")
    if kind in _VIRTUAL:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if is_reached_from_outside(spec) and not spec.get("externalTrafficPolicy"):
        spec["externalTrafficPolicy"] = "Cluster"
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec.get("sessionAffinity") == "ClientIP":
        affinity = spec.setdefault("sessionAffinityConfig", {})
        affinity.setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    elif spec.get("sessionAffinity") == "None":
        spec.pop("sessionAffinityConfig", None)


def _prepare(new: Object, old: Object | None) -> None:
    """Take over what the server has chosen before, as Kubernetes does (pkg/registry/core/service/storage)."""
    spec = new["spec"]
    if not spec.get("clusterIP"):
        spec.pop("clusterIP", None)
    if old is not None:
        _keep_allocated(spec, old.get("spec") or {})
    _join_addresses(spec, (old or {}).get("spec"))
    settle_status(new, old)


def _join_addresses(spec: Object, old: Object | None) -> None:
    """Copy clusterIP to clusterIPs, for clients that know only the one; nothing is copied back."""
    first, addresses = spec.get("clusterIP"), spec.get("clusterIPs")
    if old is None:
        if first and not addresses:
            spec["clusterIPs"] = [first]
        return
    before, all_before = old.get("clusterIP"), old.get("clusterIPs")
    if all_before and not addresses and before == first:
        spec["clusterIPs"] = all_before
    elif before != first and (addresses or None) == (all_before or None):
        spec["clusterIPs"] = [first] if first else []
    if not spec.get("clusterIPs"):
        spec.pop("clusterIPs", None)


def _keep_allocated(spec: Object, old: Object) -> None:
    """Keep what the server has allocated before and an update leaves out, as Kubernetes does."""
    if spec.get("type") in _VIRTUAL and old.get("type") in _VIRTUAL:
        if not spec.get("clusterIP") and old.get("clusterIP"):
            spec["clusterIP"] = old["clusterIP"]
        if not spec.get("clusterIPs") and old.get("clusterIPs") and spec.get("clusterIP") == old.get("clusterIP"):
            spec["clusterIPs"] = list(old["clusterIPs"])
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if not spec.get(name) and old.get(name):
                spec[name] = old[name]
    if spec.get("type") in _WITH_PORTS and old.get("type") in _WITH_PORTS:
        _keep_node_ports(spec.get("ports") or [], old.get("ports") or [])
    if wants_health_check(spec) and wants_health_check(old) and not spec.get("healthCheckNodePort"):
        kept = old.get("healthCheckNodePort")
        spec.update({"healthCheckNodePort": kept} if kept else {})


def _keep_node_ports(ports: list[Object], old: list[Object]) -> None:
    """Give each port the node port that the one of its name had, unless another names it now."""
    given = {port.get("nodePort") for port in ports}
    before = {port.get("name"): port.get("nodePort") for port in old}
    for port in ports:
        kept = before.get(port.get("name"))
        if kept and not port.get("nodePort") and kept not in given:
            port["nodePort"] = kept


def _external(value: Object, _now: datetime) -> str:
    spec = value.get("spec") or {}
    addresses = list(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName") or NONE)
    if spec.get("type") == "LoadBalancer":
        ingress = at(value, "status", "loadBalancer", "ingress") or ()
        given = [entry.get("ip") or entry.get("hostname") for entry in ingress]
        return ",".join([*filter(None, given), *addresses]) or "<pending>"
    return joined(addresses)


def _ports(value: Object, _now: datetime) -> str:
    def text(port: Object) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"

    return joined(text(port) for port in at(value, "spec", "ports") or ())


def _endpoints(value: Object, _now: datetime) -> str:
    found = []
    for subset in value.get("subsets") or ():
        ports = [port.get("port") for port in subset.get("ports") or ()]
        for address in subset.get("addresses") or ():
            ip = bracketed(address["ip"])
            found += [f"{ip}:{port}" for port in ports] or [address["ip"]]
    return joined(found, most=3)


SERVICES: Final = Resource(
    kind="Service",
    plural="services",
    created_by_put=True,
    type=SERVICE_TYPES["Service"],
    short_names=("svc",),
    categories=("all",),
    has_status=True,
    shown_when_deleted=True,
    name_rule=names.label,
    default=_default,
    prepare=_prepare,
    check=check_service,
    warn=warn_service,
    fields={
        "spec.clusterIP": lambda value: str(at(value, "spec", "clusterIP") or ""),
        "spec.type": lambda value: str(at(value, "spec", "type") or ""),
    },
    columns=(
        NAME,
        Column("Type", path_cell("spec", "type")),
        Column("Cluster-IP", path_cell("spec", "clusterIP")),
        Column("External-IP", _external),
        Column("Port(s)", _ports),
        AGE,
        Column("Selector", lambda value, _: labels_text(at(value, "spec", "selector")), priority=1),
    ),
)
ENDPOINTS: Final = Resource(
    kind="Endpoints",
    plural="endpoints",
    created_by_put=True,
    deprecated="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    type=SERVICE_TYPES["Endpoints"],
    short_names=("ep",),
    check=check_endpoints,
    columns=(NAME, Column("Endpoints", _endpoints), AGE),
)
