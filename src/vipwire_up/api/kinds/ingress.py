"""Ingresses and IngressClasses: types, columns and validation (pkg/apis/networking/validation)."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.kinds.service_rules import check_ingress_addresses
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.columns import AGE, NAME, column_of_path, join_values
from vipwire_up.api.objects.errors import Cause, forbidden, invalid, required
from vipwire_up.api.objects.names import check_port
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_LOCAL: Final = """
TypedLocalObjectReference | Reference to an object in the same namespace.
  apiGroup string #1 | API group of the object.
  kind string #2 required | Kind of the object.
  name string #3 required | Name of the object.
"""
_TABLE: Final = """
kind Ingress | Rules that route HTTP requests to Services by host and path.
  spec IngressSpec #2 | Desired state of the Ingress.
  status IngressStatus #3 default={} | Observed state of the Ingress.
IngressSpec | Desired state of an Ingress.
  defaultBackend IngressBackend #1 | Backend of requests that match no rule.
  ingressClassName string #4 | Name of the IngressClass.
  rules []IngressRule #3 atomic | Rules, by host.
  tls []IngressTLS #2 atomic | Certificates for hosts.
IngressRule | Rules for one host.
  host string #1 | Host of requests; empty means all.
  http HTTPIngressRuleValue #2.1 | Backends of the host, by path.
HTTPIngressRuleValue | Backends, by path.
  paths []HTTPIngressPath #1 required atomic | Paths and their backends.
HTTPIngressPath | A path and its backend.
  backend IngressBackend #2 required | Backend of requests that match.
  path string #1 | Path to compare with.
  pathType string #3 required named pointer one=Exact,ImplementationSpecific,Prefix | Comparison of the path.
IngressBackend | A destination of requests.
  resource TypedLocalObjectReference #3 atomic | Object in the same namespace, in place of a Service.
  service IngressServiceBackend #4 | Service in the same namespace.
IngressServiceBackend | A Service as a backend.
  name string #1 required | Name of the Service.
  port ServiceBackendPort #2 | Port of the Service.
ServiceBackendPort | A port of a Service, by name or number.
  name string #1 | Name of the port.
  number int32 #2 range=0..65535 | Number of the port.
IngressTLS | A certificate for hosts.
  hosts []string #1 atomic | Hosts in the certificate.
  secretName string #2 | Name of the Secret with the certificate and key.
IngressStatus | Observed state of an Ingress.
  loadBalancer IngressLoadBalancerStatus #1 default={} | Addresses of the Ingress.
IngressLoadBalancerStatus | Addresses of an Ingress.
  ingress []IngressLoadBalancerIngress #1 atomic | Addresses at which clients reach the Ingress.
IngressLoadBalancerIngress | An address of an Ingress.
  hostname string #2 | DNS name.
  ip string #1 | IP address.
  ports []IngressPortStatus #4 atomic | State of single ports.
IngressPortStatus | State of one port.
  error string #3 | Error of the port, if there is one.
  port int32 #1 required | Number of the port.
  protocol string #2 required | Transport protocol of the port.
kind IngressClass | A class of Ingresses that one controller serves.
  spec IngressClassSpec #2 | Desired state of the IngressClass.
IngressClassSpec | Desired state of an IngressClass.
  controller string #1 max=250 | Name of the controller that serves Ingresses of this class.
  parameters IngressClassParametersReference #2 | Object with parameters for the controller.
IngressClassParametersReference | Reference to an object with parameters.
  apiGroup string #1 | API group of the object.
  kind string #2 required | Kind of the object.
  name string #3 required | Name of the object.
  namespace string #5 | Namespace of the object, if scope is Namespace.
  scope string #4 pointer default=Cluster one=Cluster,Namespace | Scope of the object: Cluster or Namespace.
"""
_REFERENCES: Final = read_types(_LOCAL, CORE_PREFIX, META)
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, "io.k8s.api.networking.v1", META | _REFERENCES)


def _format_hosts(value: Object, _now: datetime) -> str:
    hosts = [rule.get("host") or "*" for rule in value_at(value, "spec", "rules") or ()]
    return join_values(hosts or ["*"], most=3)


def _format_addresses(value: Object, _now: datetime) -> str:
    entries = value_at(value, "status", "loadBalancer", "ingress") or ()
    return ",".join(entry.get("ip") or entry.get("hostname") or "" for entry in entries)


def _format_parameters(value: Object, _now: datetime) -> str:
    found = value_at(value, "spec", "parameters")
    if not found:
        return "<none>"
    group = f".{found['apiGroup']}" if found.get("apiGroup") else ""
    return f"{found.get('kind')}{group}/{found.get('name')}"


_GROUP: Final = "networking.k8s.io"


CLASS: Final = "kubernetes.io/ingress.class"
_SEQUENCES: Final = ("//", "/./", "/../", "%2f", "%2F")
_ENDINGS: Final = ("/..", "/.")


def check_ingress(new: Object, old: Object | None) -> Iterator[Cause]:
    spec, before = new.get("spec") or {}, value_at(old, "status", "loadBalancer", "ingress") or []
    if not spec.get("rules") and spec.get("defaultBackend") is None:
        yield invalid("spec", None, "either `defaultBackend` or `rules` must be specified")
    if spec.get("defaultBackend") is not None:
        yield from _check_backend(spec["defaultBackend"], "spec.defaultBackend")
    for index, rule in enumerate(spec.get("rules") or ()):
        yield from _check_rule(rule, f"spec.rules[{index}]")
    for index, tls in enumerate(spec.get("tls") or ()):
        for number, host in enumerate(tls.get("hosts") or ()):
            yield from _check_host_name(host, f"spec.tls[{index}].hosts[{number}]")
        yield from names.apply_name_rule(
            tls.get("secretName"), names.check_subdomain, f"spec.tls[{index}].secretName"
        )
    yield from _check_class(new, spec, old)
    entries = value_at(new, "status", "loadBalancer", "ingress") or []
    if entries != before:
        yield from check_ingress_addresses(entries, "status.loadBalancer.ingress")


def _check_class(new: Object, spec: Object, old: Object | None) -> Iterator[Cause]:
    name, annotation = spec.get("ingressClassName"), value_at(new, "metadata", "annotations", CLASS)
    if name is not None and (problem := names.check_subdomain(name)):
        yield invalid("spec.ingressClassName", name, problem)
    if name is not None and annotation is not None and annotation != name and old is None:
        why = "must match `ingressClassName` when both are specified"
        yield invalid(f"annotations.{CLASS}", annotation, why)


def _check_rule(rule: Object, base: str) -> Iterator[Cause]:
    if rule.get("host"):
        yield from _check_host(rule["host"], f"{base}.host")
    if rule.get("http") is not None and not rule["http"].get("paths"):
        yield required(f"{base}.http.paths")
    for number, path in enumerate(value_at(rule, "http", "paths") or ()):
        where = f"{base}.http.paths[{number}]"
        yield from _check_path(path.get("path") or "", path.get("pathType"), f"{where}.path")
        yield from _check_backend(path.get("backend") or {}, f"{where}.backend")


def _check_host(host: str, path: str) -> Iterator[Cause]:
    if family_of(host):
        yield invalid(path, host, "must be a DNS name, not an IP address")
    yield from _check_host_name(host, path)


def _check_host_name(host: str, path: str) -> Iterator[Cause]:
    if problem := names.check_host(host):
        yield invalid(path, host, problem)


def _check_path(path: str, kind: Any, where: str) -> Iterator[Cause]:
    if kind not in ("Exact", "Prefix"):
        if kind is not None and path and not path.startswith("/"):
            yield invalid(where, path, "must be an absolute path")
        return
    if not path.startswith("/"):
        yield invalid(where, path, "must be an absolute path")
        return
    for part in _SEQUENCES:
        if part in path:
            yield invalid(where, path, f"must not contain '{part}'")
    for part in _ENDINGS:
        if path.endswith(part):
            yield invalid(where, path, f"cannot end with '{part}'")


def _check_backend(backend: Object, path: str) -> Iterator[Cause]:
    service = backend.get("service")
    if service and backend.get("resource"):
        yield invalid(path, "", "cannot set both resource and service backends")
    elif not service and not backend.get("resource"):
        yield invalid(path, "", "resource or service backend is required")
    elif not service:
        yield from _check_resource_reference(backend["resource"], f"{path}.resource")
    if not service or backend.get("resource"):
        return
    name, port = service.get("name") or "", service.get("port") or {}
    if not name:
        yield required(f"{path}.service.name")
    elif problem := names.check_label(name):
        yield invalid(f"{path}.service.name", name, problem)
    if port.get("name") and port.get("number"):
        yield invalid(path, "", "cannot set both port name & port number")
    elif port.get("name"):
        yield from check_port(port["name"], f"{path}.service.port.name")
    elif port.get("number"):
        yield from check_port(port["number"], f"{path}.service.port.number")
    else:
        yield required(path, "port name or number is required")


def _check_resource_reference(reference: Object, path: str) -> Iterator[Cause]:
    if reference.get("apiGroup") is not None and (problem := names.check_subdomain(reference["apiGroup"])):
        yield invalid(f"{path}.apiGroup", reference["apiGroup"], problem)
    for name in ("kind", "name"):
        if not reference.get(name):
            yield required(f"{path}.{name}")
        elif problem := names.check_path_segment(reference[name]):
            yield invalid(f"{path}.{name}", reference[name], problem)


def _check_parameters(parameters: Object, path: str) -> Iterator[Cause]:
    yield from _check_resource_reference(parameters, path)
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    if scope == "Namespace" and namespace is None:
        yield required(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'")
    elif scope == "Namespace" and (problem := names.check_label(str(namespace))):
        yield invalid(f"{path}.namespace", namespace, problem)
    elif scope == "Cluster" and namespace is not None:
        yield forbidden(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'")


def check_class(new: Object, old: Object | None) -> Iterator[Cause]:
    """Validate an IngressClass: its controller is a domain with a path, and immutable."""
    controller = value_at(new, "spec", "controller") or ""
    if old is not None and controller != (value_at(old, "spec", "controller") or ""):
        yield invalid("spec.controller", controller, "field is immutable")
    if not controller:
        yield required("spec.controller")
    elif not names.CONTROLLER.fullmatch(controller):
        yield invalid("spec.controller", controller, 'must be a domain-prefixed path (such as "acme.io/foo")')
    if value_at(new, "spec", "parameters"):
        yield from _check_parameters(new["spec"]["parameters"], "spec.parameters")


def warn_ingress(new: Object, old: Object | None) -> Iterator[str]:
    if old is None and value_at(new, "metadata", "annotations", CLASS):
        yield f"annotation \"{CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"


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
        Column("Class", column_of_path("spec", "ingressClassName")),
        Column("Hosts", _format_hosts),
        Column("Address", _format_addresses),
        Column("Ports", lambda value, _: "80, 443" if value_at(value, "spec", "tls") else "80"),
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
    columns=(
        NAME,
        Column("Controller", column_of_path("spec", "controller")),
        Column("Parameters", _format_parameters),
        AGE,
    ),
)
