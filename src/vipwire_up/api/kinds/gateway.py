"""The Gateway API, v1, and v1beta1 with the same fields: built in here, custom resources in a cluster.

Validation follows their custom resource definitions (bounds, CEL rules).
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.gateway_types import GATEWAY_TYPES, GROUP
from vipwire_up.api.objects import names
from vipwire_up.api.objects.columns import AGE, NAME, path_cell
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Column, Object, Resource

_PREFIX_MATCH: Final = {"type": "PathPrefix", "value": "/"}


def _condition(kind: str) -> Any:
    def cell(value: Object, _now: datetime) -> str:
        found = at(value, "status", "conditions") or ()
        return next((str(each.get("status")) for each in found if each.get("type") == kind), "Unknown")

    return cell


def _addresses(value: Object, _now: datetime) -> str:
    return ",".join(str(each.get("value")) for each in at(value, "status", "addresses") or ())


def _hostnames(value: Object, _now: datetime) -> str:
    found = at(value, "spec", "hostnames") or ()
    return "[" + ",".join(f'"{each}"' for each in found) + "]" if found else ""


def _default_http_route(value: Object) -> None:
    """Fill in the default of `matches`: all paths."""
    spec = value.setdefault("spec", {})
    rules = spec["rules"] if spec.get("rules") else spec.setdefault("rules", [{}])
    for rule in rules:
        if not rule.get("matches"):
            rule["matches"] = [{"path": dict(_PREFIX_MATCH)}]
        for match in rule["matches"]:
            match.setdefault("path", dict(_PREFIX_MATCH))


def _default_listeners(value: Object) -> None:
    """Fill in the default of allowedRoutes (same namespace) and of allowed ListenerSets (none)."""
    if (sets := at(value, "spec", "allowedListeners")) is not None:
        sets.setdefault("namespaces", {}).setdefault("from", "None")
    for listener in at(value, "spec", "listeners") or ():
        allowed = listener.setdefault("allowedRoutes", {})
        allowed.setdefault("namespaces", {}).setdefault("from", "Same")


def _kind(kind: str, plural: str, **more: Any) -> Resource:
    return Resource(
        kind=kind,
        plural=plural,
        type=GATEWAY_TYPES[kind],
        group=GROUP,
        categories=("gateway-api",),
        has_status=kind != "ReferenceGrant",
        counts_generations=True,
        **{"columns": (NAME, AGE)} | more,
    )


_PROTOCOL: Final = re.compile(
    r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]+"
)
_DURATION: Final = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")
_UNITS: Final = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PLAIN: Final = ("HTTP", "TCP", "UDP")
_FIELDS: Final = {
    "RequestHeaderModifier": "requestHeaderModifier",
    "ResponseHeaderModifier": "responseHeaderModifier",
    "RequestMirror": "requestMirror",
    "RequestRedirect": "requestRedirect",
    "URLRewrite": "urlRewrite",
    "CORS": "cors",
    "ExternalAuth": "externalAuth",
    "DirectResponse": "directResponse",
    "ExtensionRef": "extensionRef",
}
_ANSWERING: Final = ("RequestRedirect", "DirectResponse")
_MANY: Final = ("RequestMirror", "ExtensionRef")
_UNIQUE_PLACE: Final = "Combination of port, protocol and hostname must be unique for each listener"
_UNIQUE_PARENT: Final = "sectionName or port must be unique when parentRefs refer to the same parent"
_CODES: Final = "supported values: 301, 302, 303, 307, 308"
_ABSOLUTE: Final = "value must be an absolute path and start with '/' when type one of ['Exact', 'PathPrefix']"
_SEQUENCES: Final = ("//", "/./", "/../", "%2f", "%2F", "#")
_ENDINGS: Final = ("/..", "/.")
_MOST_LABELS: Final = 8
_MOST_RULES, _MOST_REFS, _MOST_LISTENERS, _MOST_PARENTS = 16, 16, 64, 32


def _check_class(new: Object, old: Object | None) -> Iterator[Cause]:
    name = at(new, "spec", "controllerName") or ""
    if not names.CONTROLLER.fullmatch(name):
        yield invalid("spec.controllerName", name, "must be a domain and a path, such as example.com/gateway")
    if old is not None and name != at(old, "spec", "controllerName"):
        yield invalid("spec.controllerName", name, "Value is immutable")


def _check_gateway(new: Object, _old: Object | None) -> Iterator[Cause]:
    listeners = at(new, "spec", "listeners") or ()
    if not listeners:
        yield required("spec.listeners")
    if not at(new, "spec", "gatewayClassName"):
        yield required("spec.gatewayClassName")
    yield from _check_listeners(listeners)
    made = at(new, "spec", "infrastructure") or {}
    for field, check in (("labels", names.check_labels), ("annotations", names.check_annotations)):
        path, found = f"spec.infrastructure.{field}", made.get(field) or {}
        if len(found) > _MOST_LABELS:
            yield invalid(path, len(found), f"must have at most {_MOST_LABELS} items")
        yield from check(found, path)


def _check_listener_set(new: Object, _old: Object | None) -> Iterator[Cause]:
    listeners = at(new, "spec", "listeners") or ()
    if not listeners:
        yield required("spec.listeners")
    yield from _check_listeners(listeners)


def _check_listeners(listeners: Any) -> Iterator[Cause]:
    if len(listeners) > _MOST_LISTENERS:
        yield invalid("spec.listeners", len(listeners), f"must have at most {_MOST_LISTENERS} items")
    if len({each.get("name") for each in listeners}) < len(listeners):
        yield invalid("spec.listeners", None, "Listener name must be unique within the Gateway")
    places = Counter((each.get("port"), each.get("protocol"), each.get("hostname")) for each in listeners)
    if any(count > 1 for count in places.values()):
        yield invalid("spec.listeners", None, _UNIQUE_PLACE)
    for index, each in enumerate(listeners):
        yield from _check_listener(each, f"spec.listeners[{index}]")


def _check_listener(listener: Object, path: str) -> Iterator[Cause]:
    protocol, tls, host = listener.get("protocol") or "", listener.get("tls"), listener.get("hostname")
    if problem := names.subdomain(listener.get("name") or ""):
        yield invalid(f"{path}.name", listener.get("name"), problem)
    if not _PROTOCOL.fullmatch(protocol):
        yield invalid(f"{path}.protocol", protocol, "must be a word, or a domain and a word")
    yield from names.check(host, names.host, f"{path}.hostname")
    if host and protocol in ("TCP", "UDP"):
        yield invalid(f"{path}.hostname", host, "hostname must not be specified for protocols ['TCP', 'UDP']")
    if tls is not None and protocol in _PLAIN:
        yield invalid(f"{path}.tls", None, "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']")
    if tls is not None and protocol == "HTTPS" and tls.get("mode") == "Passthrough":
        yield invalid(f"{path}.tls.mode", "Passthrough", "tls mode must be Terminate for protocol HTTPS")
    if protocol == "TLS" and tls is None:
        yield required(f"{path}.tls")
    ends_here = tls is not None and tls.get("mode", "Terminate") == "Terminate"
    if tls is not None and ends_here and not tls.get("certificateRefs") and not tls.get("options"):
        yield invalid(f"{path}.tls", None, "certificateRefs or options must be specified when mode is Terminate")


def _check_grant(new: Object, _old: Object | None) -> Iterator[Cause]:
    for field in ("from", "to"):
        if not at(new, "spec", field):
            yield required(f"spec.{field}")


def _check_route(new: Object, _old: Object | None) -> Iterator[Cause]:
    spec = new.get("spec") or {}
    yield from _check_parents(spec.get("parentRefs") or ())
    for index, host in enumerate(spec.get("hostnames") or ()):
        if problem := names.host(host):
            yield invalid(f"spec.hostnames[{index}]", host, problem)
    rules = spec.get("rules") or ()
    if len(rules) > _MOST_RULES:
        yield invalid("spec.rules", len(rules), f"must have at most {_MOST_RULES} items")
    named = Counter(rule["name"] for rule in rules if rule.get("name"))
    if any(count > 1 for count in named.values()):
        yield invalid("spec.rules", None, "Rule name must be unique within the route")
    for index, rule in enumerate(rules):
        yield from _check_rule(rule, f"spec.rules[{index}]")


def _check_parents(parents: Any) -> Iterator[Cause]:
    if len(parents) > _MOST_PARENTS:
        yield invalid("spec.parentRefs", len(parents), f"must have at most {_MOST_PARENTS} items")
    keys = Counter(
        tuple(str(each.get(key) or "") for key in ("group", "kind", "namespace", "name", "sectionName", "port"))
        for each in parents
    )
    if any(count > 1 for count in keys.values()):
        yield invalid("spec.parentRefs", None, _UNIQUE_PARENT)


def _check_rule(rule: Object, path: str) -> Iterator[Cause]:
    refs, filters = rule.get("backendRefs") or (), rule.get("filters") or ()
    if len(refs) > _MOST_REFS:
        yield invalid(f"{path}.backendRefs", len(refs), f"must have at most {_MOST_REFS} items")
    yield from _check_filters(filters, f"{path}.filters")
    for kind in _ANSWERING:
        if refs and any(each.get("type") == kind for each in filters):
            yield invalid(path, None, f"{kind} filter must not be used together with backendRefs")
    for index, match in enumerate(rule.get("matches") or ()):
        if "path" in match:
            yield from _check_path(match["path"], f"{path}.matches[{index}].path")
    yield from _check_prefixes(rule, filters, path)
    for index, ref in enumerate(refs):
        if not ref.get("group") and ref.get("kind", "Service") == "Service" and ref.get("port") is None:
            yield invalid(f"{path}.backendRefs[{index}]", None, "Must have port for Service reference")
        yield from _check_filters(ref.get("filters") or (), f"{path}.backendRefs[{index}].filters")
    yield from _check_timeouts(rule.get("timeouts") or {}, f"{path}.timeouts")


def _check_filters(filters: Any, path: str) -> Iterator[Cause]:
    kinds = Counter(each.get("type") for each in filters)
    for kind, count in kinds.items():
        if count > 1 and kind not in _MANY:
            yield invalid(path, None, f"{kind} filter cannot be repeated")
    if kinds["RequestRedirect"] and kinds["URLRewrite"]:
        yield invalid(path, None, "May specify either requestRedirect or urlRewrite, but not both")
    for index, each in enumerate(filters):
        kind = each.get("type")
        for name, field in _FIELDS.items():
            if (kind == name) != (each.get(field) is not None):
                said = "must be specified for" if kind == name else "must be nil if the type is not"
                yield invalid(f"{path}[{index}]", None, f"filter.{field} {said} {name} filter.type")
        code = at(each, "requestRedirect", "statusCode")
        if code not in (None, 301, 302, 303, 307, 308):
            yield invalid(f"{path}[{index}].requestRedirect.statusCode", code, _CODES)


def _check_path(path: Object, where: str) -> Iterator[Cause]:
    value = path.get("value") or "/"
    if path.get("type", "PathPrefix") == "RegularExpression":
        return
    if not value.startswith("/"):
        yield invalid(where, value, _ABSOLUTE)
    for part in _SEQUENCES:
        if part in value:
            yield invalid(where, value, f"must not contain '{part}' when type one of ['Exact', 'PathPrefix']")
    for part in _ENDINGS:
        if value.endswith(part):
            yield invalid(where, value, f"cannot end with '{part}' when type one of ['Exact', 'PathPrefix']")


def _check_prefixes(rule: Object, filters: Any, path: str) -> Iterator[Cause]:
    """Refuse ReplacePrefixMatch unless the rule has exactly one match, of type PathPrefix."""
    matches: list[Object] = rule.get("matches") or []
    is_prefix = len(matches) == 1 and at(matches[0], "path", "type") in (None, "PathPrefix")
    for index, each in enumerate(filters):
        for field in ("requestRedirect", "urlRewrite"):
            kind = at(each, field, "path", "type")
            replaced = at(each, field, "path", "replacePrefixMatch")
            if kind == "ReplacePrefixMatch" and matches and not is_prefix:
                yield invalid(
                    f"{path}.filters[{index}].{field}.path",
                    None,
                    "When using replacePrefixMatch, exactly one path match with type PathPrefix must be specified",
                )
            if (kind == "ReplacePrefixMatch") != (replaced is not None) and kind is not None:
                yield invalid(f"{path}.filters[{index}].{field}.path", None, "type and replacePrefixMatch must agree")


def _check_timeouts(timeouts: Object, path: str) -> Iterator[Cause]:
    found = {}
    for field in ("request", "backendRequest"):
        text = timeouts.get(field)
        if text is not None and not _DURATION.fullmatch(text):
            yield invalid(f"{path}.{field}", text, "must be a duration such as 1m30s or 500ms")
        elif text is not None:
            parts = re.findall(r"(\d+)(ms|h|m|s)", text)
            found[field] = sum(int(number) * _UNITS[unit] for number, unit in parts)
    if found.get("request") and found.get("backendRequest", 0) > found["request"]:
        yield invalid(path, None, "backendRequest timeout cannot be longer than request timeout")


_ROUTE_COLUMNS: Final = (NAME, Column("Hostnames", _hostnames), AGE)

GATEWAY_RESOURCES: Final = (
    _kind("HTTPRoute", "httproutes", check=_check_route, default=_default_http_route, columns=_ROUTE_COLUMNS),
    _kind("GRPCRoute", "grpcroutes", check=_check_route, columns=_ROUTE_COLUMNS),
    _kind("TLSRoute", "tlsroutes", check=_check_route, columns=_ROUTE_COLUMNS),
    _kind("TCPRoute", "tcproutes", check=_check_route),
    _kind("UDPRoute", "udproutes", check=_check_route),
    _kind(
        "ListenerSet", "listenersets", check=_check_listener_set, default=_default_listeners, short_names=("lset",)
    ),
    _kind("BackendTLSPolicy", "backendtlspolicies", short_names=("btlspolicy",)),
    _kind("ReferenceGrant", "referencegrants", check=_check_grant, short_names=("refgrant",)),
    _kind(
        "Gateway",
        "gateways",
        check=_check_gateway,
        default=_default_listeners,
        short_names=("gtw",),
        columns=(
            NAME,
            Column("Class", path_cell("spec", "gatewayClassName")),
            Column("Address", _addresses),
            Column("Programmed", _condition("Programmed")),
            AGE,
        ),
    ),
)

GATEWAY_CLASSES: Final = _kind(
    "GatewayClass",
    "gatewayclasses",
    check=_check_class,
    namespaced=False,
    short_names=("gc",),
    columns=(
        NAME,
        Column("Controller", path_cell("spec", "controllerName")),
        Column("Accepted", _condition("Accepted")),
        AGE,
        Column("Description", path_cell("spec", "description"), priority=1),
    ),
)

_BETA: Final = ("GatewayClass", "Gateway", "HTTPRoute", "ReferenceGrant")
GATEWAY_BETA: Final = tuple(
    dataclasses.replace(
        each,
        version="v1beta1",
        type=dataclasses.replace(each.type, name=each.type.name.replace(".v1.", ".v1beta1.")),
        stored_as=each,
    )
    for each in (*GATEWAY_RESOURCES, GATEWAY_CLASSES)
    if each.kind in _BETA
)
"""The kinds that the standard channel also serves as v1beta1, with the same fields."""
