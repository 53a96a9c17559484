"""Validates Ingresses and their classes (pkg/apis/networking/validation). Pure."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Any, Final

from vipwire.cluster.api import names
from vipwire.cluster.api.answers.cells import at
from vipwire.cluster.api.errors import Cause, invalid, required
from vipwire.cluster.api.kinds.load_balancer import check_addresses
from vipwire.cluster.api.kinds.probe import check_port
from vipwire.cluster.api.resource import Object

CLASS: Final = "kubernetes.io/ingress.class"
_SEQUENCES: Final = ("//", "/./", "/../", "%2f", "%2F")
_ENDINGS: Final = ("/..", "/.")
_CONTROLLER: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
)


def check_ingress(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in an Ingress."""
    spec, before = new.get("spec") or {}, at(old, "status", "loadBalancer", "ingress") or []
    if not spec.get("rules") and not spec.get("defaultBackend"):
        yield invalid("spec", None, "either `defaultBackend` or `rules` must be specified")
    if spec.get("defaultBackend"):
        yield from _check_backend(spec["defaultBackend"], "spec.defaultBackend")
    for index, rule in enumerate(spec.get("rules") or ()):
        yield from _check_rule(rule, f"spec.rules[{index}]")
    for index, tls in enumerate(spec.get("tls") or ()):
        for number, host in enumerate(tls.get("hosts") or ()):
            yield from _check_host(host, f"spec.tls[{index}].hosts[{number}]")
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
    if name and annotation and old is None:
        yield invalid(f"annotations.{CLASS}", annotation, "can not be set when the class field is also set")


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
    try:
        ipaddress.ip_address(host)
        yield invalid(path, host, "must be a DNS name, not an IP address")
    except ValueError:
        if problem := names.subdomain(host.removeprefix("*.")):
            yield invalid(path, host, problem)


def _check_path(path: str, kind: Any, where: str) -> Iterator[Cause]:
    if kind == "ImplementationSpecific":
        if path and not path.startswith("/"):
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
        yield required(path, "resource or service backend is required")
    if not service:
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


def check_class(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a class: its controller is a path with a domain before it, and stays."""
    controller = at(new, "spec", "controller") or ""
    if old is not None and controller != (at(old, "spec", "controller") or ""):
        yield invalid("spec.controller", controller, "field is immutable")
    elif old is None and not controller:
        yield required("spec.controller")
    elif controller and not _CONTROLLER.fullmatch(controller):
        yield invalid("spec.controller", controller, 'must be a domain-prefixed path (such as "acme.io/foo")')


def warn_ingress(new: Object) -> Iterator[str]:
    """Warn about a class that is named by annotation."""
    if at(new, "metadata", "annotations", CLASS):
        yield f"annotation \"{CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"
