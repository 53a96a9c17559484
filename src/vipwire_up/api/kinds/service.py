"""Services: types, defaults, columns and warnings. `service_rules.py` has the validation.

Allocators of addresses and ports are admission hooks of the registry.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.plan.annotations.wishes import annotation_problems
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.kinds.service_rules import (
    TOPOLOGY_HINTS,
    TOPOLOGY_MODE,
    changes_addresses,
    check_service,
    fill_status,
    is_reached_from_outside,
    wants_health_check,
    wants_ports,
)
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import warn_of_address, warn_of_network
from vipwire_up.api.objects.columns import AGE, NAME, NONE, column_of_path, field_readers, format_labels, join_values
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind Service | A name and stable addresses for a set of endpoints.
  spec ServiceSpec #2 default={} | Desired state of the Service.
  status ServiceStatus #3 default={} | Observed state of the Service.
ServiceSpec | Desired state of a Service.
  allocateLoadBalancerNodePorts bool #20 | True if a LoadBalancer Service also gets node ports. Defaults to true.
  clusterIP string #3 | First entry of clusterIPs. None for a headless Service.
  clusterIPs []string #18 atomic | Virtual addresses, at most one of each family; the server chooses absent ones.
  externalIPs []string #5 atomic | Further addresses at which Nodes accept connections for the Service.
  externalName string #10 | DNS name of a Service of type ExternalName.
  externalTrafficPolicy string #11 one=Cluster,Local | Endpoints for connections from outside.
  healthCheckNodePort int32 #12 | Node port at which load balancers check for endpoints on the Node.
  internalTrafficPolicy string #22 pointer one=Cluster,Local | Endpoints for connections from inside.
  ipFamilies []string #19 atomic | Families of the addresses, in order: IPv4, IPv6 or both.
  ipFamilyPolicy string #17 pointer one=PreferDualStack,RequireDualStack,SingleStack | Number of families.
  loadBalancerClass string #21 | Class of the load balancer that serves the Service.
  loadBalancerIP string #8 | Address that the load balancer should assign.
  loadBalancerSourceRanges []string #9 atomic | CIDRs of clients that may use the load balancer's address.
  ports []ServicePort #1 key=port,protocol merge=port | Ports of the Service.
  publishNotReadyAddresses bool #13 | True if clients and DNS also use endpoints that are not ready.
  selector {}string #2 atomic | Labels of the Pods. Without a selector, users create EndpointSlices.
  sessionAffinity string #7 default=None one=ClientIP,None | ClientIP: a client keeps its endpoint.
  sessionAffinityConfig SessionAffinityConfig #14 | Settings of the session affinity.
  topologyKeys []string atomic | Deprecated and unused.
  trafficDistribution string #23 pointer one=PreferClose,PreferSameZone,PreferSameNode | Preferred endpoints.
  type string #4 default=ClusterIP one=ClusterIP,ExternalName,LoadBalancer,NodePort | Type of the Service.
ServicePort | One port of a Service.
  appProtocol string #6 | Application protocol of the port, as a hint.
  name string #1 | Name of the port; required if the Service has several ports.
  nodePort int32 #5 | Port of every Node that leads to the Service.
  port int32 #3 required range=1..65535 | Port to which clients connect.
  protocol string #2 default=TCP one=SCTP,TCP,UDP | Transport protocol: TCP, UDP or SCTP.
  targetPort intstr #4 | Number or name of the Pods' port; defaults to port.
SessionAffinityConfig | Settings of the session affinity.
  clientIP ClientIPConfig #1 | Settings of the affinity by client address.
ClientIPConfig | Settings of the affinity by client address.
  timeoutSeconds int32 #1 | Seconds without connections after which the affinity ends. Defaults to 10800.
ServiceStatus | Observed state of a Service.
  conditions []Condition #2 key=type merge=type | Conditions of the Service.
  loadBalancer LoadBalancerStatus #1 default={} | Addresses that the load balancer assigned.
LoadBalancerStatus | Addresses of a load balancer.
  ingress []LoadBalancerIngress #1 atomic | Addresses at which clients reach the Service.
LoadBalancerIngress | An address of a load balancer.
  hostname string #2 | DNS name, for load balancers without an IP address.
  ip string #1 | IP address.
  ipMode string #3 one=VIP,Proxy | VIP: Nodes may serve the address themselves. Proxy: they must not.
  ports []PortStatus #4 atomic | State of single ports.
PortStatus | State of one port.
  error string #3 | Error of the port, if there is one.
  port int32 #1 required | Number of the port.
  protocol string #2 required | Transport protocol of the port.
kind Endpoints | Addresses behind a Service. Deprecated: use EndpointSlice, to which vipwire mirrors these objects.
  subsets []EndpointSubset #2 atomic | Groups of addresses with the same ports.
EndpointSubset | Addresses with the same ports.
  addresses []EndpointAddress #1 atomic | Addresses that are ready.
  notReadyAddresses []EndpointAddress #2 atomic | Addresses that are not ready.
  ports []EndpointPort #3 atomic | Ports of the addresses.
EndpointAddress | One address.
  hostname string #3 | Hostname of the endpoint, a DNS label below the Service's name.
  ip string #1 required | IP address.
  nodeName string #4 | Name of the Node with the endpoint.
  targetRef ObjectReference #2 | Object that the endpoint represents, usually a Pod.
EndpointPort | A port of endpoints.
  appProtocol string #4 | Application protocol of the port, as a hint.
  name string #1 | Name of the port, equal to the name of the Service's port.
  port int32 #2 required range=1..65535 | Number of the port.
  protocol string #3 default=TCP one=SCTP,TCP,UDP | Transport protocol: TCP, UDP or SCTP.
ObjectReference | Reference to an object.
  apiVersion string #5 | API version of the object.
  fieldPath string #7 | Path of a field in the object.
  kind string #1 | Kind of the object.
  name string #3 | Name of the object.
  namespace string #2 | Namespace of the object.
  resourceVersion string #6 | Resource version of the object.
  uid string #4 | UID of the object.
"""

SERVICE_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)


_OLD_WORDS: Final = {"PreferClose": "PreferSameZone"}


def _warn_service(new: Object, old: Object | None) -> Iterator[str]:
    spec = new["spec"]
    kind, headless = spec.get("type"), spec.get("type") == "ClusterIP" and spec.get("clusterIP") == "None"
    external = spec.get("externalIPs") or []
    annotations = value_at(new, "metadata", "annotations") or {}
    if annotations != (value_at(old or {}, "metadata", "annotations") or {}):
        for problem in annotation_problems(ObjectName("", ""), annotations):
            yield f"{problem.field}: {problem.message}"
    if TOPOLOGY_HINTS in annotations:
        yield f"annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
    if not headless:
        yield from warn_of_address("spec.clusterIPs", spec.get("clusterIPs") or ())
    else:
        yield from _warn_ignored_by_headless(spec)
    yield from warn_of_address("spec.externalIPs", external)
    if external and not headless and kind != "ExternalName":
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    yield from warn_of_network("spec.loadBalancerSourceRanges", spec.get("loadBalancerSourceRanges") or ())
    if kind == "ExternalName" and external:
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if kind != "ExternalName" and spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    wanted = spec.get("trafficDistribution")
    if wanted in _OLD_WORDS:
        yield f'spec.trafficDistribution: "{wanted}" is deprecated; use "{_OLD_WORDS[wanted]}"'


def _warn_ignored_by_headless(spec: Object) -> Iterator[str]:
    for name in ("loadBalancerIP", "externalIPs"):
        if spec.get(name):
            yield f"spec.{name} is ignored for headless services"
    if spec.get("sessionAffinity") != "None":
        yield "spec.SessionAffinity is ignored for headless services"


_VIRTUAL: Final = ("ClusterIP", "NodePort", "LoadBalancer")
_ADDRESS_FIELDS: Final = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def _default_service(new: Object) -> None:
    """Fill in defaults (pkg/apis/core/v1/defaults.go, SetDefaults_Service)."""
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


def _prepare_service(new: Object, old: Object | None) -> None:
    """Keep the addresses and ports that the server allocated (pkg/registry/core/service/storage)."""
    spec = new["spec"]
    if not spec.get("clusterIP"):
        spec.pop("clusterIP", None)
    if old is not None:
        before = old.get("spec") or {}
        _keep_allocated(spec, before)
        if not changes_addresses(spec, before):  # else the validation refuses it
            _drop_unused_fields(spec, before)
    _join_addresses(spec, (old or {}).get("spec"))
    fill_status(new, old)


def _join_addresses(spec: Object, old: Object | None) -> None:
    """Copy clusterIP to clusterIPs for clients that know only clusterIP; never the other way."""
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
    """Keep allocated values that an update leaves out, as Kubernetes does."""
    if spec.get("type") in _VIRTUAL and old.get("type") in _VIRTUAL:
        if not spec.get("clusterIP") and old.get("clusterIP"):
            spec["clusterIP"] = old["clusterIP"]
        if not spec.get("clusterIPs") and old.get("clusterIPs") and spec.get("clusterIP") == old.get("clusterIP"):
            spec["clusterIPs"] = list(old["clusterIPs"])
        for name in ("ipFamilies", "ipFamilyPolicy"):
            if not spec.get(name) and old.get(name):
                spec[name] = old[name]
    if wants_ports(spec) and wants_ports(old):
        _keep_node_ports(spec.get("ports") or [], old.get("ports") or [])
    if wants_health_check(spec) and wants_health_check(old) and not spec.get("healthCheckNodePort"):
        kept = old.get("healthCheckNodePort")
        spec.update({"healthCheckNodePort": kept} if kept else {})


def _keep_node_ports(ports: list[Object], old: list[Object]) -> None:
    """Give each port the node port of the old port of its name, unless another port now has that node port."""
    given = {port.get("nodePort") for port in ports}
    before = {port.get("name"): port.get("nodePort") for port in old}
    for port in ports:
        kept = before.get(port.get("name"))
        if kept and not port.get("nodePort") and kept not in given:
            port["nodePort"] = kept


def _drop_unused_fields(spec: Object, old: Object) -> None:
    """Drop fields of the old type that the new type does not have, unless the update changed them.

    See dropTypeDependentFields (pkg/registry/core/service/strategy.go).
    """
    if old.get("type") in _VIRTUAL and spec.get("type") == "ExternalName":
        _drop_unchanged_fields(spec, old, _ADDRESS_FIELDS)
    if is_reached_from_outside(old) and not is_reached_from_outside(spec):
        _drop_unchanged_fields(spec, old, ("externalTrafficPolicy",))
    if wants_ports(old) and not wants_ports(spec) and _collect_node_ports(spec) == _collect_node_ports(old):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
    if old.get("type") == "LoadBalancer" and spec.get("type") != "LoadBalancer":
        _drop_unchanged_fields(spec, old, ("allocateLoadBalancerNodePorts", "loadBalancerClass"))
    if wants_health_check(old) and not wants_health_check(spec):
        _drop_unchanged_fields(spec, old, ("healthCheckNodePort",))


def _collect_node_ports(spec: Object) -> set[int]:
    return {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}


def _drop_unchanged_fields(spec: Object, old: Object, names: tuple[str, ...]) -> None:
    for name in names:
        if spec.get(name) == old.get(name):
            spec.pop(name, None)


def _format_external_addresses(value: Object, _now: datetime) -> str:
    spec = value.get("spec") or {}
    addresses = list(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName") or NONE)
    if spec.get("type") == "LoadBalancer":
        ingress = value_at(value, "status", "loadBalancer", "ingress") or ()
        given = [entry.get("ip") or entry.get("hostname") for entry in ingress]
        return ",".join([*filter(None, given), *addresses]) or "<pending>"
    return join_values(addresses)


def _format_ports(value: Object, _now: datetime) -> str:
    def text(port: Object) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"

    return join_values(text(port) for port in value_at(value, "spec", "ports") or ())


SERVICES: Final = Resource(
    kind="Service",
    plural="services",
    created_by_put=True,
    type=SERVICE_TYPES["Service"],
    short_names=("svc",),
    categories=("all",),
    has_status=True,
    shown_when_deleted=True,
    name_rule=names.check_label,
    default=_default_service,
    prepare=_prepare_service,
    check=check_service,
    warn=_warn_service,
    fields=field_readers("spec.clusterIP", "spec.type"),
    columns=(
        NAME,
        Column("Type", column_of_path("spec", "type")),
        Column("Cluster-IP", column_of_path("spec", "clusterIP")),
        Column("External-IP", _format_external_addresses),
        Column("Port(s)", _format_ports),
        AGE,
        Column("Selector", lambda value, _: format_labels(value_at(value, "spec", "selector")), priority=1),
    ),
)
