"""Validates Ingresses and their classes (pkg/apis/networking/validation). Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from vipwire_up.api.kinds.rules.load_balancer import check_addresses
from vipwire_up.api.kinds.rules.probe import check_port
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, forbidden, invalid, required
from vipwire_up.api.objects.resource import Object

CLASS: Final = "kubernetes.io/ingress.class"
_SEQUENCES: Final = ("//", "/./", "/../", "%2f", "%2F")
_ENDINGS: Final = ("/..", "/.")
_CONTROLLER: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
)


def check_ingress(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in an Ingress."""
    spec, before = new.get("spec") or {}, at(old, "status", "loadBalancer", "ingress") or []
    if not spec.get("rules") and spec.get("defaultBackend") is None:
        yield invalid("spec", None, "either `defaultBackend` or `rules` must be specified")
    if spec.get("defaultBackend") is not None:
        yield from _check_backend(spec["defaultBackend"], "spec.defaultBackend")
    for index, rule in enumerate(spec.get("rules") or ()):
        yield from _check_rule(rule, f"spec.rules[{index}]")
    for index, tls in enumerate(spec.get("tls") or ()):
        for number, host in enumerate(tls.get("hosts") or ()):
            yield from _check_name(host, f"spec.tls[{index}].hosts[{number}]")
        if tls.get("secretName") and (problem := names.subdomain(tls["secretName"])):
            yield invalid(f"spec.tls[{index}].secretName", tls["secretName"], problem)
    yield from _check_class(new, spec, old)
    entries = at(new, "status", "loadBalancer", "ingress") or []
    if entries != before:
        yield from check_addresses(entries, "status.loadBalancer.ingress")


def _check_class(new: Object, spec: Object, old: Object | None) -> Iterator[Cause]:
    name, annotation = spec.get("ingressClassName"), at(new, "metadata", "annotations", CLASS)
    if name is not None and (problem := names.subdomain(name)):
        yield invalid("spec.ingressClassName", name, problem)
    if name is not None and annotation is not None and annotation != name and old is None:
        why = "must match `ingressClassName` when both are specified"
        yield invalid(f"annotations.{CLASS}", annotation, why)


def _check_rule(rule: Object, base: str) -> Iterator[Cause]:
    if rule.get("host"):
        yield from _check_host(rule["host"], f"{base}.host")
    if rule.get("http") is not None and not rule["http"].get("paths"):
        yield required(f"{base}.http.paths")
    for number, path in enumerate(at(rule, "http", "paths") or ()):
        where = f"{base}.http.paths[{number}]"
        yield from _check_path(path.get("path") or "", path.get("pathType"), f"{where}.path")
        yield from _check_backend(path.get("backend") or {}, f"{where}.backend")


def _check_host(host: str, path: str) -> Iterator[Cause]:
    if family_of(host):
        yield invalid(path, host, "must be a DNS name, not an IP address")
    yield from _check_name(host, path)


def _check_name(host: str, path: str) -> Iterator[Cause]:
    if problem := names.wildcard(host) if "*" in host else names.subdomain(host):
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
        yield from _check_reference(backend["resource"], f"{path}.resource")
    if not service or backend.get("resource"):
        return
    name, port = service.get("name") or "", service.get("port") or {}
    if not name:
        yield required(f"{path}.service.name")
    elif problem := names.label(name):
        yield invalid(f"{path}.service.name", name, problem)
    if port.get("name") and port.get("number"):
        yield invalid(path, "", "cannot set both port name & port number")
    elif port.get("name"):
        yield from check_port(port["name"], f"{path}.service.port.name")
    elif port.get("number"):
        yield from check_port(port["number"], f"{path}.service.port.number")
    else:
        yield required(path, "port name or number is required")


def _check_reference(reference: Object, path: str) -> Iterator[Cause]:
    if reference.get("apiGroup") is not None and (problem := names.subdomain(reference["apiGroup"])):
        yield invalid(f"{path}.apiGroup", reference["apiGroup"], problem)
    for name in ("kind", "name"):
        if not reference.get(name):
            yield required(f"{path}.{name}")
        elif problem := names.anything(reference[name]):
            yield invalid(f"{path}.{name}", reference[name], problem)


def _check_parameters(parameters: Object, path: str) -> Iterator[Cause]:
    yield from _check_reference(parameters, path)
    scope, namespace = parameters.get("scope"), parameters.get("namespace")
    if scope == "Namespace" and namespace is None:
        yield required(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'")
    elif scope == "Namespace" and (problem := names.label(str(namespace))):
        yield invalid(f"{path}.namespace", namespace, problem)
    elif scope == "Cluster" and namespace is not None:
        yield forbidden(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'")


def check_class(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a class: its controller is a path with a domain before it, and stays."""
    controller = at(new, "spec", "controller") or ""
    if old is not None and controller != (at(old, "spec", "controller") or ""):
        yield invalid("spec.controller", controller, "field is immutable")
    if not controller:
        yield required("spec.controller")
    elif not _CONTROLLER.fullmatch(controller):
        yield invalid("spec.controller", controller, 'must be a domain-prefixed path (such as "acme.io/foo")')
    if at(new, "spec", "parameters"):
        yield from _check_parameters(new["spec"]["parameters"], "spec.parameters")


def warn_ingress(new: Object, old: Object | None) -> Iterator[str]:
    """Warn about a class that is named by annotation."""
    if old is None and at(new, "metadata", "annotations", CLASS):
        yield f"annotation \"{CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"
