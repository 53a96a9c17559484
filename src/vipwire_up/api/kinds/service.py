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
    check_service,
    is_reached_from_outside,
    moves,
    settle_status,
    wants_health_check,
    wants_ports,
)
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import warn_of_address, warn_of_network
from vipwire_up.api.objects.columns import AGE, NAME, NONE, joined, labels_text, path_cell, text_fields
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

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
  healthCheckNodePort int32 #12 | Where load balancers ask a node whether it has local endpoints.
  internalTrafficPolicy string #22 pointer one=Cluster,Local | Which endpoints connections from within may be sent to.
  ipFamilies []string #19 atomic | IPv4, IPv6 or both, in order.
  ipFamilyPolicy string #17 pointer one=PreferDualStack,RequireDualStack,SingleStack | Whether both are wanted.
  loadBalancerClass string #21 | Which load balancer is meant.
  loadBalancerIP string #8 | The address that a load balancer should have.
  loadBalancerSourceRanges []string #9 atomic | CIDRs that may use the load balancer's address.
  ports []ServicePort #1 key=port,protocol merge=port | The ports.
  publishNotReadyAddresses bool #13 | Whether DNS and clients are given endpoints that are not ready.
  selector {}string #2 atomic | Labels of the Pods behind the Service. Without it, endpoints are made by hand.
  sessionAffinity string #7 default=None one=ClientIP,None | Whether a client keeps its endpoint.
  sessionAffinityConfig SessionAffinityConfig #14 | For how long.
  topologyKeys []string atomic | Not used any more.
  trafficDistribution string #23 pointer one=PreferClose,PreferSameZone,PreferSameNode | Which ones are preferred.
  type string #4 default=ClusterIP one=ClusterIP,ExternalName,LoadBalancer,NodePort | How the Service is reached.
ServicePort | One port of a Service.
  appProtocol string #6 | What is spoken, as a hint.
  name string #1 | Its name; needed if there are several ports.
  nodePort int32 #5 | The port of every node that leads here.
  port int32 #3 required range=1..65535 | Where clients connect to.
  protocol string #2 default=TCP one=SCTP,TCP,UDP | The protocol.
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
  protocol string #3 default=TCP one=SCTP,TCP,UDP | The protocol.
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


_OLD_WORDS: Final = {"PreferClose": "PreferSameZone"}


def _warn(new: Object, old: Object | None) -> Iterator[str]:
    spec = new["spec"]
    kind, headless = spec.get("type"), spec.get("type") == "ClusterIP" and spec.get("clusterIP") == "None"
    external = spec.get("externalIPs") or []
    annotations = at(new, "metadata", "annotations") or {}
    if annotations != (at(old or {}, "metadata", "annotations") or {}):
        for problem in annotation_problems(ObjectName("", ""), annotations):
            yield f"{problem.field}: {problem.message}"
    if TOPOLOGY_HINTS in annotations:
        yield f"annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
    if not headless:
        yield from warn_of_address("spec.clusterIPs", spec.get("clusterIPs") or ())
    else:
        yield from _ignored_by_headless(spec)
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


def _ignored_by_headless(spec: Object) -> Iterator[str]:
    for name in ("loadBalancerIP", "externalIPs"):
        if spec.get(name):
            yield f"spec.{name} is ignored for headless services"
    if spec.get("sessionAffinity") != "None":
        yield "spec.SessionAffinity is ignored for headless services"


_VIRTUAL: Final = ("ClusterIP", "NodePort", "LoadBalancer")
_ADDRESS_FIELDS: Final = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def _default(new: Object) -> None:
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


def _prepare(new: Object, old: Object | None) -> None:
    """Keep the addresses and ports that the server allocated (pkg/registry/core/service/storage)."""
    spec = new["spec"]
    if not spec.get("clusterIP"):
        spec.pop("clusterIP", None)
    if old is not None:
        before = old.get("spec") or {}
        _keep_allocated(spec, before)
        if not moves(spec, before):  # else the validation refuses it
            _drop_unused(spec, before)
    _join_addresses(spec, (old or {}).get("spec"))
    settle_status(new, old)


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


def _drop_unused(spec: Object, old: Object) -> None:
    """Drop fields of the old type that the new type does not have, unless the update changed them.

    See dropTypeDependentFields (pkg/registry/core/service/strategy.go).
    """
    if old.get("type") in _VIRTUAL and spec.get("type") == "ExternalName":
        _drop_same(spec, old, _ADDRESS_FIELDS)
    if is_reached_from_outside(old) and not is_reached_from_outside(spec):
        _drop_same(spec, old, ("externalTrafficPolicy",))
    if wants_ports(old) and not wants_ports(spec) and _node_ports(spec) == _node_ports(old):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)
    if old.get("type") == "LoadBalancer" and spec.get("type") != "LoadBalancer":
        _drop_same(spec, old, ("allocateLoadBalancerNodePorts", "loadBalancerClass"))
    if wants_health_check(old) and not wants_health_check(spec):
        _drop_same(spec, old, ("healthCheckNodePort",))


def _node_ports(spec: Object) -> set[int]:
    return {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}


def _drop_same(spec: Object, old: Object, names: tuple[str, ...]) -> None:
    for name in names:
        if spec.get(name) == old.get(name):
            spec.pop(name, None)


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
    warn=_warn,
    fields=text_fields("spec.clusterIP", "spec.type"),
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
