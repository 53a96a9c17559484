"""Converts wire structs to `watch.objects`. An invalid part becomes a Problem; nothing raises.

An Ingress is read rule by rule: an invalid host or path costs that rule. Paths may have only the characters of RFC
3986, so none can end a word of a map or of a command.
"""

import base64
import binascii
import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from vipwire.kube.finding import Findings, is_label
from vipwire.kube.wire import Conditions
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, family_of, parse_address
from vipwire.model.problem import Problem
from vipwire_l7.watch import wire
from vipwire_l7.watch.compact import share_equal
from vipwire_l7.watch.objects import (
    NOTHING,
    BackendEndpoint,
    BackendPort,
    BackendService,
    BackendSlice,
    Ingress,
    IngressClass,
    PathRule,
    PathType,
    Secret,
    ServiceRef,
    Tls,
    Usability,
)

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
DEFAULT_CLASS = "ingressclass.kubernetes.io/is-default-class"
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)*")
PATH = re.compile(r"/(?:[A-Za-z0-9/._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_EXPRESSION = re.compile(r"[A-Za-z0-9/._~!$&()*+,;=:@%^?\[\]{}|\\-]+")
_PORT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
LONGEST_PATH = 1024
_TCP = (None, "", "TCP")
_PROTOCOLS = (*_TCP, "UDP")


def is_host(text: str) -> bool:
    """Report whether a text is a host of an Ingress: a lower-case DNS name, or one after a wildcard label."""
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def convert_ingress(source: wire.Ingress) -> tuple[Ingress | None, tuple[Problem, ...]]:
    """Convert an Ingress; None only if its name is invalid."""
    meta, spec = source.metadata or wire.NO_META, source.spec or wire.IngressSpec()
    found = _start_findings("Ingress", meta)
    if not found.named(namespaced=True):
        return None, found.problems()
    namespace = found.name.namespace
    default = (
        _convert_backend(spec.default_backend, namespace, "spec.defaultBackend", found)
        if spec.default_backend
        else None
    )
    annotations = meta.annotations or {}
    made = Ingress(
        found.name,
        spec.ingress_class_name or annotations.get(CLASS_ANNOTATION, ""),
        tuple(_convert_rules(spec.rules or (), namespace, found)),
        default or None,
        tuple(_convert_tls(spec.tls or (), namespace, found)),
        MappingProxyType(annotations) if annotations else NOTHING,
        share_equal(meta.creation_timestamp or ""),
        meta.uid or "",
        _read_published_addresses(source.status),
        meta.resource_version or "",
    )
    return made, found.problems()


def _read_published_addresses(status: wire.IngressStatus | None) -> tuple[str, ...]:
    balancer = status and status.load_balancer
    return tuple(each.ip or each.hostname or "" for each in (balancer and balancer.ingress) or ())


def _convert_rules(rules: Iterable[wire.Rule], namespace: str, found: Findings) -> Iterator[PathRule]:
    for index, rule in enumerate(rules):
        where = f"spec.rules[{index}]"
        host = rule.host or ""
        if host and not is_host(host):
            found.add_problem(f"{where}.host", f"{host[:80]!r} is no host (allowed: a.example.com, *.example.com)")
            continue
        for number, path in enumerate((rule.http and rule.http.paths) or ()):
            yield from _convert_path(host, path, namespace, f"{where}.http.paths[{number}]", found)


def _convert_path(host: str, path: wire.Path, namespace: str, where: str, found: Findings) -> Iterator[PathRule]:
    kind = found.choice(f"{where}.pathType", path.path_type, PathType.IMPLEMENTATION_SPECIFIC)
    text = path.path or "/"
    allowed = PATH if kind is not PathType.IMPLEMENTATION_SPECIFIC else _EXPRESSION
    if len(text) > LONGEST_PATH or not allowed.fullmatch(text):
        message = f"{text[:80]!r} is no path (allowed: / and the characters of RFC 3986, at most {LONGEST_PATH})"
        if text.startswith("/") and allowed is PATH and _EXPRESSION.fullmatch(text):
            message += f"; a regular expression needs pathType {PathType.IMPLEMENTATION_SPECIFIC.value}"
        found.add_problem(f"{where}.path", message)
        return
    backend = _convert_backend(path.backend, namespace, f"{where}.backend", found)
    if backend is not None:
        yield PathRule(host, text, kind, backend, f"{where}.backend")


def _convert_backend(source: wire.Backend | None, namespace: str, where: str, found: Findings) -> ServiceRef | None:
    if source is not None and source.resource is not None:
        found.add_problem(f"{where}.resource", f"a backend of kind {source.resource.kind!r} is not supported")
        return None
    service = source and source.service
    if not service or not service.name or not is_label(service.name):
        found.add_problem(f"{where}.service.name", "is missing or not the name of a Service")
        return None
    port = service.port or wire.PortRef()
    if port.name and _PORT_NAME.fullmatch(port.name):
        return ServiceRef(ObjectName(namespace, service.name), port.name)
    number = found.port(f"{where}.service.port.number", port.number)
    return None if number is None else ServiceRef(ObjectName(namespace, service.name), number)


def _convert_tls(sources: Iterable[wire.IngressTls], namespace: str, found: Findings) -> Iterator[Tls]:
    for index, source in enumerate(sources):
        where = f"spec.tls[{index}]"
        hosts = tuple(host for host in source.hosts or () if is_host(host))
        for host in source.hosts or ():
            if host not in hosts:
                found.add_problem(
                    f"{where}.hosts", f"{host[:80]!r} is no host (allowed: a.example.com, *.example.com)"
                )
        if source.hosts and not hosts:
            continue
        name = source.secret_name or ""
        yield Tls(hosts, ObjectName(namespace, name) if name else None, f"{where}.secretName")


def convert_class(source: wire.IngressClass) -> tuple[IngressClass | None, tuple[Problem, ...]]:
    meta = source.metadata or wire.NO_META
    found = Findings("IngressClass", ObjectName("", meta.name or ""))
    if not found.named(namespaced=False):
        return None, found.problems()
    default = (meta.annotations or {}).get(DEFAULT_CLASS) == "true"
    return IngressClass(found.name, (source.spec and source.spec.controller) or "", default), found.problems()


def convert_service(source: wire.WireService) -> tuple[BackendService | None, tuple[Problem, ...]]:
    """Convert a Service of any type, also a headless one: vipwire uses its endpoints."""
    meta, spec = source.metadata or wire.NO_META, source.spec or wire.ServiceSpec()
    found = _start_findings("Service", meta)
    if not found.named(namespaced=True):
        return None, found.problems()
    external = ""
    if spec.type == "ExternalName":
        external = (spec.external_name or "").rstrip(".").lower()
        if not is_host(external) or external.startswith("*"):
            found.add_problem("spec.externalName", f"{external[:80]!r} is no DNS name")
            return None, found.problems()
    families = [family for family in Family if family.value in (spec.ip_families or ())[:1]]
    annotations = MappingProxyType(meta.annotations) if meta.annotations else NOTHING
    ports = tuple(_convert_service_ports(spec.ports or (), found))
    plain = tuple(each for each in ports if not each.udp)
    udp = tuple(each for each in ports if each.udp)
    balanced = _read_published_addresses(source.status)
    published = tuple(dict.fromkeys((*balanced, *(spec.external_ips or ()))))
    family = families[0] if families else None
    own = tuple(_read_cluster_ips(spec))
    made = BackendService(found.name, plain, external, family, annotations, published, udp, balanced, own)
    return made, found.problems()


def _read_cluster_ips(spec: wire.ServiceSpec) -> Iterator[Address]:
    for text in spec.cluster_ips or (spec.cluster_ip or "",):
        with contextlib.suppress(ValueError):  # "None", or not allocated yet
            yield parse_address(text)


def _convert_service_ports(ports: Iterable[wire.ServicePort], found: Findings) -> Iterator[BackendPort]:
    for index, port in enumerate(ports):
        number = found.port(f"spec.ports[{index}].port", port.port)
        if number is not None and port.protocol in _PROTOCOLS:
            target = port.target_port if isinstance(port.target_port, int) else None
            made = BackendPort(port.name or "", number, port.app_protocol or "", target, port.protocol == "UDP")
            yield share_equal(made)


def convert_slice(source: wire.Slice) -> tuple[BackendSlice | None, tuple[Problem, ...]]:
    """Convert an EndpointSlice; None if it belongs to no Service or has no IP family."""
    meta = source.metadata or wire.NO_META
    service = (meta.labels or {}).get("kubernetes.io/service-name", "")
    family = next((family for family in Family if family.value == source.address_type), None)
    found = _start_findings("EndpointSlice", meta)
    if not service or family is None or not found.named(namespaced=True):
        return None, found.problems()
    plain, udp = _convert_slice_ports(source, _TCP), _convert_slice_ports(source, ("UDP",))
    name = ObjectName(found.name.namespace, service)
    endpoints = tuple(_convert_endpoints(source.endpoints or (), family, found))
    return BackendSlice(found.name, name, family, plain, endpoints, udp), found.problems()


def _convert_slice_ports(source: wire.Slice, protocols: Collection[str | None]) -> Mapping[str, int]:
    return _share_ports(
        tuple(
            (port.name or "", port.port)
            for port in source.ports or ()
            if port.port and 0 < port.port < 65536 and port.protocol in protocols
        )
    )


@lru_cache(maxsize=1024)
def _share_ports(ports: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Return the one mapping of all slices with equal ports."""
    return MappingProxyType(dict(ports))


def _convert_endpoints(
    sources: Iterable[wire.WireEndpoint], family: Family, found: Findings
) -> Iterator[BackendEndpoint]:
    for index, source in enumerate(sources):
        text = source.addresses[0] if source.addresses else ""
        address = _read_address(text, f"endpoints[{index}].addresses[0]", found)
        if address is not None and family_of(address) is family:
            pod = (source.target_ref and source.target_ref.name) or ""
            hints = (source.hints and source.hints.for_zones) or ()
            zones = tuple(each.name for each in hints if each.name)
            use = _read_usability(source.conditions or Conditions())
            yield BackendEndpoint(address, use, pod, zones, source.node_name or "")


def _read_address(text: str, field: str, found: Findings) -> Address | None:
    """Read an endpoint's address; `plan.destinations` decides whether HAProxy may connect to it."""
    try:
        return parse_address(text)
    except ValueError as error:
        found.add_problem(field, str(error))
        return None


def _read_usability(conditions: Conditions) -> Usability:
    """Read the conditions; an unknown one does not count as false (discovery.k8s.io/v1)."""
    if conditions.ready is not False and not conditions.terminating:
        return Usability.READY
    if conditions.serving is not False and conditions.terminating:
        return Usability.DRAINING
    return Usability.NOT_READY


def convert_secret(source: wire.Secret) -> tuple[Secret | None, tuple[Problem, ...]]:
    meta = source.metadata or wire.NO_META
    found = _start_findings("Secret", meta)
    if not found.named(namespaced=True):
        return None, found.problems()
    data = {key: text.encode() for key, text in (source.string_data or {}).items()}
    for key, text in (source.data or {}).items():
        try:
            data.setdefault(key, base64.b64decode("".join((text or "").split()), validate=True))
        except (binascii.Error, ValueError):
            found.add_problem(f"data[{key[:60]}]", "is not base64")
    return Secret(found.name, source.type or "", MappingProxyType(data)), found.problems()


def _start_findings(kind: str, meta: wire.Meta) -> Findings:
    return Findings(kind, ObjectName(meta.namespace or "", meta.name or ""))
