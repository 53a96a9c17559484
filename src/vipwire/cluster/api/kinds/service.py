"""Services and Endpoints: types, columns, and what Kubernetes refuses (pkg/apis/core/validation, ValidateService).

Which addresses and ports a Service gets is not decided here: allocators are admission hooks of the registry.
"""

import ipaddress
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from vipwire.cluster.api import names
from vipwire.cluster.api.answers.cells import AGE, NAME, NONE, at, joined, labels_text, path_cell
from vipwire.cluster.api.endpoint_address import problem_of
from vipwire.cluster.api.errors import Cause, duplicate, forbidden, invalid, required, unsupported
from vipwire.cluster.api.kinds.hand_made import check_endpoints
from vipwire.cluster.api.kinds.load_balancer import check_load_balancer, settle_status
from vipwire.cluster.api.kinds.meta import META
from vipwire.cluster.api.kinds.pod_types import CORE_PREFIX
from vipwire.cluster.api.kinds.probe import check_port
from vipwire.cluster.api.openapi.schema import Type, read_types
from vipwire.cluster.api.resource import Column, Object, Resource

_TABLE: Final = """
kind Service | A name and stable addresses for a changing set of endpoints.
  spec ServiceSpec #2 default={} | What is wanted.
  status ServiceStatus #3 default={} | What is the case.
ServiceSpec | What clients reach, and how they are spread over endpoints.
  allocateLoadBalancerNodePorts bool #20 | Whether a LoadBalancer also gets node ports. True unless said otherwise.
  clusterIP string #3 | The first of clusterIPs. None for a headless Service.
  clusterIPs []string #18 atomic | Virtual addresses, at most one of each family; given, or chosen by the server.
  externalIPs []string #5 atomic | Further addresses that nodes accept connections for.
  externalName string #10 | The name that DNS answers with, for type ExternalName.
  externalTrafficPolicy string #11 one=Cluster,Local | Which endpoints connections from outside may be sent to.
  healthCheckNodePort int32 #12 range=0..65535 | Where load balancers ask a node whether it has local endpoints.
  internalTrafficPolicy string #22 one=Cluster,Local | Which endpoints connections from within may be sent to.
  ipFamilies []string #19 atomic | IPv4, IPv6 or both, in order.
  ipFamilyPolicy string #17 one=SingleStack,PreferDualStack,RequireDualStack | Whether both families are wanted.
  loadBalancerClass string #21 | Which load balancer is meant.
  loadBalancerIP string #8 | The address that a load balancer should have.
  loadBalancerSourceRanges []string #9 atomic | CIDRs that may use the load balancer's address.
  ports []ServicePort #1 key=port,protocol merge=port | The ports.
  publishNotReadyAddresses bool #13 | Whether DNS and clients are given endpoints that are not ready.
  selector {}string #2 atomic | Labels of the Pods behind the Service. Without it, endpoints are made by hand.
  sessionAffinity string #7 default=None one=ClientIP,None | Whether a client keeps its endpoint.
  sessionAffinityConfig SessionAffinityConfig #14 | For how long.
  topologyKeys []string atomic | Not used any more.
  trafficDistribution string #23 one=PreferClose,PreferSameZone,PreferSameNode | Which endpoints are preferred.
  type string #4 default=ClusterIP one=ClusterIP,ExternalName,LoadBalancer,NodePort | How the Service is reached.
ServicePort | One port of a Service.
  appProtocol string #6 | What is spoken, as a hint.
  name string #1 | Its name; needed if there are several ports.
  nodePort int32 #5 range=0..65535 | The port of every node that leads here.
  port int32 #3 required range=1..65535 | Where clients connect to.
  protocol string #2 default=TCP one=TCP,UDP,SCTP | The protocol.
  targetPort intstr #4 | Number or name of the Pods' port; the same number if not given.
SessionAffinityConfig | How long a client keeps its endpoint.
  clientIP ClientIPConfig #1 | By the client's address.
ClientIPConfig | Affinity by the client's address.
  timeoutSeconds int32 #1 | Seconds of rest after which it ends. 10800 unless said otherwise.
ServiceStatus | What is the case about a Service.
  conditions []Condition #2 key=type merge=type | Aspects of its state.
  loadBalancer LoadBalancerStatus #1 default={} | What a load balancer has given it.
LoadBalancerStatus | Addresses of a load balancer.
  ingress []LoadBalancerIngress #1 atomic | The addresses.
LoadBalancerIngress | An address of a load balancer.
  hostname string #2 | A name, where there is no address.
  ip string #1 | The address.
  ipMode string #3 one=VIP,Proxy | Whether nodes may answer the address themselves.
  ports []PortStatus #4 atomic | State of single ports.
PortStatus | State of one port.
  error string #3 | What is wrong with it.
  port int32 #1 required | The port.
  protocol string #2 required | Its protocol.
kind Endpoints | The addresses behind a Service. Superseded by EndpointSlice; made by hand ones are still mirrored.
  subsets []EndpointSubset #2 atomic | Groups of addresses with the same ports.
EndpointSubset | Addresses with the same ports.
  addresses []EndpointAddress #1 atomic | Addresses that are ready.
  notReadyAddresses []EndpointAddress #2 atomic | Addresses that are not.
  ports []EndpointPort #3 atomic | The ports.
EndpointAddress | One address.
  hostname string #3 | Its name under the Service's.
  ip string #1 required | The address.
  nodeName string #4 | The node that it is on.
  targetRef ObjectReference #2 | The Pod it belongs to.
EndpointPort | A port of endpoints.
  appProtocol string #4 | What is spoken, as a hint.
  name string #1 | Its name: that of the Service's port.
  port int32 #2 required range=1..65535 | The number.
  protocol string #3 default=TCP one=TCP,UDP,SCTP | The protocol.
ObjectReference | Names an object.
  apiVersion string #5 | Its API version.
  fieldPath string #7 | A part of it.
  kind string #1 | Its kind.
  name string #3 | Its name.
  namespace string #2 | Its namespace.
  resourceVersion string #6 | The change that is meant.
  uid string #4 | Its UID.
"""

SERVICE_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)


def _prepare(new: Object, old: Object | None) -> None:
    spec = new["spec"]
    for port in spec.get("ports") or ():
        if port.get("nodePort") == 0:
            del port["nodePort"]
        if port.get("targetPort") in (None, "", 0):
            port["targetPort"] = port.get("port")
    if spec.get("healthCheckNodePort") == 0:
        del spec["healthCheckNodePort"]
    kind = spec.get("type")
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec.get("sessionAffinity") == "ClientIP":
        affinity = spec.setdefault("sessionAffinityConfig", {})
        affinity.setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    else:
        spec.pop("sessionAffinityConfig", None)
    _join_addresses(spec, (old or {}).get("spec") or {})
    if old is not None:
        _keep_allocated(spec, old.get("spec") or {})
    settle_status(new, old)


def _join_addresses(spec: Object, old: Object) -> None:
    """Copy clusterIP to clusterIPs or back where only one was given, or only the first was changed."""
    changed = spec.get("clusterIP") != old.get("clusterIP") and spec.get("clusterIPs") == old.get("clusterIPs")
    if spec.get("clusterIP") and (changed or not spec.get("clusterIPs")):
        spec["clusterIPs"] = [spec["clusterIP"], *(spec.get("clusterIPs") or ())[1:]]
    elif spec.get("clusterIPs") and not spec.get("clusterIP"):
        spec["clusterIP"] = spec["clusterIPs"][0]


def _keep_allocated(spec: Object, old: Object) -> None:
    """Keep what the server has allocated before and an update leaves out, as Kubernetes does."""
    kinds = ("ClusterIP", "NodePort", "LoadBalancer")
    if spec.get("type") in kinds and old.get("type") in kinds:
        for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(name) and old.get(name):
                spec[name] = old[name]
    if spec.get("type") in kinds[1:] and old.get("type") in kinds[1:]:
        given = {port.get("nodePort") for port in spec.get("ports") or ()}
        before = {(port.get("protocol"), port.get("port")): port.get("nodePort") for port in old.get("ports") or ()}
        for port in spec.get("ports") or ():
            kept = before.get((port.get("protocol"), port.get("port")))
            if kept and not port.get("nodePort") and kept not in given:
                port["nodePort"] = kept
    if _wants_health_check(spec) and _wants_health_check(old) and not spec.get("healthCheckNodePort"):
        kept = old.get("healthCheckNodePort")
        spec.update({"healthCheckNodePort": kept} if kept else {})


def _wants_health_check(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _check(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new["spec"]
    yield from _check_type(spec)
    yield from _check_ports(spec)
    yield from _check_addresses(spec)
    yield from names.check_labels(spec.get("selector") or {}, "spec.selector")
    yield from check_load_balancer(new, old)
    if old is not None:
        yield from _check_unchanged(spec, old.get("spec") or {})


def _check_type(spec: Object) -> Iterator[Cause]:
    kind, outside = spec.get("type"), spec.get("type") in ("NodePort", "LoadBalancer") or spec.get("externalIPs")
    if kind == "ExternalName":
        if not spec.get("externalName"):
            yield required("spec.externalName")
        elif problem := names.subdomain(spec["externalName"].removesuffix(".").lower()):
            yield invalid("spec.externalName", spec["externalName"], problem)
        if spec.get("clusterIPs") and spec["clusterIPs"] != [""]:
            yield forbidden("spec.clusterIPs", "may not be set for ExternalName services")
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if spec.get(name):
                yield forbidden(f"spec.{name}", "may not be set for ExternalName services")
    if kind == "LoadBalancer" and spec.get("clusterIP") == "None":
        yield invalid("spec.clusterIPs[0]", "None", "may not be set to 'None' for LoadBalancer services")
    if kind == "NodePort" and spec.get("clusterIP") == "None":
        yield invalid("spec.clusterIPs[0]", "None", "may not be set to 'None' for NodePort services")
    yield from _check_outside(spec, kind, outside=bool(outside))


def _check_outside(spec: Object, kind: Any, *, outside: bool) -> Iterator[Cause]:
    if spec.get("externalTrafficPolicy") and not outside:
        policy, why = spec["externalTrafficPolicy"], "may only be set for externally-accessible services"
        yield invalid("spec.externalTrafficPolicy", policy, why)
    if spec.get("healthCheckNodePort") and not _wants_health_check(spec):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield invalid("spec.healthCheckNodePort", spec["healthCheckNodePort"], why)
    for name in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
        if spec.get(name) is not None and kind != "LoadBalancer":
            yield forbidden(f"spec.{name}", "may only be used when `type` is 'LoadBalancer'")
    timeout = at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds")
    if timeout is not None and not 0 < timeout <= 86400:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield invalid(path, timeout, "must be greater than 0 and less than 86400")


def _check_ports(spec: Object) -> Iterator[Cause]:
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield required("spec.ports")
    seen: dict[str, set[Any]] = {"name": set(), "port": set(), "nodePort": set()}
    for index, port in enumerate(ports):
        path, name = f"spec.ports[{index}]", port.get("name")
        if not name and len(ports) > 1:
            yield required(f"{path}.name")
        elif name and (problem := names.label(name)):
            yield invalid(f"{path}.name", name, problem)
        elif name in seen["name"]:
            yield duplicate(f"{path}.name", name)
        yield from check_port(port.get("targetPort"), f"{path}.targetPort")
        if port.get("appProtocol") and (problem := names.qualified(port["appProtocol"])):
            yield invalid(f"{path}.appProtocol", port["appProtocol"], problem)
        key = (port.get("protocol"), port.get("port"))
        if key in seen["port"]:
            yield duplicate(path, {"port": key[1], "protocol": key[0]})
        node_port = port.get("nodePort")
        if node_port and spec.get("type") not in ("NodePort", "LoadBalancer"):
            yield forbidden(f"{path}.nodePort", "may not be used when `type` is 'ClusterIP'")
        elif node_port and (key[0], node_port) in seen["nodePort"]:
            yield duplicate(f"{path}.nodePort", node_port)
        seen["name"].add(name)
        seen["port"].add(key)
        seen["nodePort"].add((key[0], node_port))


def _check_addresses(spec: Object) -> Iterator[Cause]:
    addresses, families = spec.get("clusterIPs") or [], []
    if addresses and spec.get("clusterIP") != addresses[0]:
        yield invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")
    for index, address in enumerate(addresses):
        if address == "None" and len(addresses) == 1:
            continue
        if version := _version(address):
            families.append(version)
        else:
            yield invalid(f"spec.clusterIPs[{index}]", address, "must be a valid IP address")
    if len(families) > 2 or len(set(families)) < len(families):
        yield invalid("spec.clusterIPs", addresses, "may only hold up to 2 values, one of each family")
    yield from _check_ranges(spec)


def _check_ranges(spec: Object) -> Iterator[Cause]:
    for index, address in enumerate(spec.get("externalIPs") or ()):
        if problem := problem_of(address):
            yield invalid(f"spec.externalIPs[{index}]", address, problem)
    for index, cidr in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        if not _is_network(cidr):
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            yield invalid(f"spec.loadBalancerSourceRanges[{index}]", cidr, why)
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        if family not in ("IPv4", "IPv6"):
            yield unsupported(f"spec.ipFamilies[{index}]", family, ("IPv4", "IPv6"))


def moves(spec: Object, old: Object) -> bool:
    """Report whether a Service's first address would become another one, which is refused."""
    before, now = old.get("clusterIPs") or [], spec.get("clusterIPs") or []
    differs = bool(before and now) and before[0] != now[0]
    return differs and "ExternalName" not in (spec.get("type"), old.get("type"))


def _check_unchanged(spec: Object, old: Object) -> Iterator[Cause]:
    before, now = old.get("clusterIPs") or [], spec.get("clusterIPs") or []
    if moves(spec, old):
        yield invalid("spec.clusterIPs[0]", now, "may not change once set")
    if before == ["None"] != now and now == [] and spec.get("type") == "ClusterIP":
        yield invalid("spec.clusterIPs[0]", now, "primary clusterIP can not be unset")


def _version(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return False
    return "/" in text


def _warn(new: Object) -> Iterator[str]:
    if at(new, "spec", "clusterIP") == "None" and at(new, "spec", "sessionAffinity") == "ClientIP":
        yield "spec.SessionAffinity is ignored for headless services"


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
            ip = f"[{address['ip']}]" if ":" in address["ip"] else address["ip"]
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
    prepare=_prepare,
    check=_check,
    warn=_warn,
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
