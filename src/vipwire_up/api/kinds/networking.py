"""Ingresses, their classes, and where Services' addresses come from: ServiceCIDRs and IPAddresses."""

from datetime import datetime
from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.kinds.rules.addresses import address_name, check_address, check_cidrs
from vipwire_up.api.kinds.rules.ingress import check_class, check_ingress, warn_ingress
from vipwire_up.api.objects.cells import AGE, NAME, at, joined, path_cell
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_LOCAL: Final = """
TypedLocalObjectReference | Names an object of the same namespace.
  apiGroup string #1 | The group of its kind.
  kind string #2 required | Its kind.
  name string #3 required | Its name.
"""
_TABLE: Final = """
kind Ingress | How requests from outside reach Services, by host and path.
  spec IngressSpec #2 | What is wanted.
  status IngressStatus #3 default={} | What is the case.
IngressSpec | Which requests go where.
  defaultBackend IngressBackend #1 | Where requests go that no rule matches.
  ingressClassName string #4 | Which controller does it.
  rules []IngressRule #3 atomic | Which requests go where, by host.
  tls []IngressTLS #2 atomic | Certificates.
IngressRule | Requests for one host.
  host string #1 | The host; all if not given.
  http HTTPIngressRuleValue #2.1 | Where they go, by path.
HTTPIngressRuleValue | Where requests go, by path.
  paths []HTTPIngressPath #1 required atomic | The paths.
HTTPIngressPath | Where requests for a path go.
  backend IngressBackend #2 required | Where they go.
  path string #1 | The path.
  pathType string #3 required named pointer one=Exact,ImplementationSpecific,Prefix | How paths are compared.
IngressBackend | Where requests go.
  resource TypedLocalObjectReference #3 atomic | An object that is no Service.
  service IngressServiceBackend #4 | A Service.
IngressServiceBackend | A Service as a backend.
  name string #1 required | Its name.
  port ServiceBackendPort #2 | Its port.
ServiceBackendPort | A port of a Service, by name or number.
  name string #1 | Its name.
  number int32 #2 range=0..65535 | Its number.
IngressTLS | A certificate for hosts.
  hosts []string #1 atomic | The hosts.
  secretName string #2 | The Secret with certificate and key.
IngressStatus | What is the case about an Ingress.
  loadBalancer IngressLoadBalancerStatus #1 default={} | Where it can be reached.
IngressLoadBalancerStatus | Where an Ingress can be reached.
  ingress []IngressLoadBalancerIngress #1 atomic | The addresses.
IngressLoadBalancerIngress | An address of an Ingress.
  hostname string #2 | A name.
  ip string #1 | An address.
  ports []IngressPortStatus #4 atomic | State of single ports.
IngressPortStatus | State of one port.
  error string #3 | What is wrong with it.
  port int32 #1 required | The port.
  protocol string #2 required | Its protocol.
kind IngressClass | Who serves Ingresses of this class.
  spec IngressClassSpec #2 | What is wanted.
IngressClassSpec | Who serves a class.
  controller string #1 max=250 | The controller.
  parameters IngressClassParametersReference #2 | An object with its parameters.
IngressClassParametersReference | Names an object with parameters.
  apiGroup string #1 | The group of its kind.
  kind string #2 required | Its kind.
  name string #3 required | Its name.
  namespace string #5 | Its namespace.
  scope string #4 pointer default=Cluster one=Cluster,Namespace | Whether it has one.
kind ServiceCIDR | Ranges that ClusterIPs are taken from.
  spec ServiceCIDRSpec #2 | What is wanted.
  status ServiceCIDRStatus #3 default={} | What is the case.
ServiceCIDRSpec | Ranges of addresses.
  cidrs []string #1 atomic | One range, or one of each family. Cannot be changed.
ServiceCIDRStatus | What is the case about ranges.
  conditions []Condition #1 key=type merge=type | Ready: whether addresses are taken from it.
kind IPAddress | An address that is taken.
  spec IPAddressSpec #2 | By whom.
IPAddressSpec | Whose address it is.
  parentRef ParentReference #1 required | The object.
ParentReference | Names the owner of an address.
  group string #1 | Its group.
  name string #4 required | Its name.
  namespace string #3 | Its namespace.
  resource string #2 required | Its plural.
"""
_REFERENCES: Final = read_types(_LOCAL, CORE_PREFIX, META)
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, "io.k8s.api.networking.v1", META | _REFERENCES)


def _hosts(value: Object, _now: datetime) -> str:
    hosts = [rule.get("host") or "*" for rule in at(value, "spec", "rules") or ()]
    return joined(hosts or ["*"], most=3)


def _ingress_address(value: Object, _now: datetime) -> str:
    entries = at(value, "status", "loadBalancer", "ingress") or ()
    return ",".join(entry.get("ip") or entry.get("hostname") or "" for entry in entries)


def _parent(value: Object, _now: datetime) -> str:
    parent = at(value, "spec", "parentRef") or {}
    resource = f"{parent.get('resource')}.{parent['group']}" if parent.get("group") else parent.get("resource")
    return "/".join(filter(None, (resource, parent.get("namespace"), parent.get("name"))))


def _parameters(value: Object, _now: datetime) -> str:
    found = at(value, "spec", "parameters")
    if not found:
        return "<none>"
    group = f".{found['apiGroup']}" if found.get("apiGroup") else ""
    return f"{found.get('kind')}{group}/{found.get('name')}"


_GROUP: Final = "networking.k8s.io"

INGRESSES: Final = Resource(
    kind="Ingress",
    plural="ingresses",
    group=_GROUP,
    type=_TYPES["Ingress"],
    short_names=("ing",),
    has_status=True,
    counts_generations=True,
    check=check_ingress,
    warn=warn_ingress,
    columns=(
        NAME,
        Column("Class", path_cell("spec", "ingressClassName")),
        Column("Hosts", _hosts),
        Column("Address", _ingress_address),
        Column("Ports", lambda value, _: "80, 443" if at(value, "spec", "tls") else "80"),
        AGE,
    ),
)
INGRESS_CLASSES: Final = Resource(
    kind="IngressClass",
    plural="ingressclasses",
    group=_GROUP,
    type=_TYPES["IngressClass"],
    namespaced=False,
    counts_generations=True,
    check=check_class,
    columns=(NAME, Column("Controller", path_cell("spec", "controller")), Column("Parameters", _parameters), AGE),
)
SERVICE_CIDRS: Final = Resource(
    kind="ServiceCIDR",
    plural="servicecidrs",
    group=_GROUP,
    type=_TYPES["ServiceCIDR"],
    namespaced=False,
    has_status=True,
    check=check_cidrs,
    columns=(NAME, Column("CIDRs", lambda value, _: joined(at(value, "spec", "cidrs") or ())), AGE),
)
IP_ADDRESSES: Final = Resource(
    kind="IPAddress",
    plural="ipaddresses",
    group=_GROUP,
    type=_TYPES["IPAddress"],
    namespaced=False,
    short_names=("ip",),
    name_rule=address_name,
    check=check_address,
    fields={
        "spec.parentRef.group": lambda value: str(at(value, "spec", "parentRef", "group") or ""),
        "spec.parentRef.resource": lambda value: str(at(value, "spec", "parentRef", "resource") or ""),
        "spec.parentRef.namespace": lambda value: str(at(value, "spec", "parentRef", "namespace") or ""),
        "spec.parentRef.name": lambda value: str(at(value, "spec", "parentRef", "name") or ""),
    },
    columns=(NAME, Column("ParentRef", _parent), AGE),
)
