"""The kinds of the Gateway API: custom resources in a cluster, here they are there from the start, at v1."""

from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.gateway_types import GATEWAY_TYPES, GROUP
from vipwire_up.api.kinds.rules.gateway import check_class, check_gateway, check_grant, check_route, check_set
from vipwire_up.api.objects.cells import AGE, NAME, at, path_cell
from vipwire_up.api.objects.resource import Check, Column, Object, Resource, no_check

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
    """Fill in matches: a rule without any is for all paths."""
    spec = value.setdefault("spec", {})
    rules = spec["rules"] if spec.get("rules") else spec.setdefault("rules", [{}])
    for rule in rules:
        if not rule.get("matches"):
            rule["matches"] = [{"path": dict(_PREFIX_MATCH)}]
        for match in rule["matches"]:
            match.setdefault("path", dict(_PREFIX_MATCH))


def _default_listeners(value: Object) -> None:
    """Fill in whose routes may attach: those of the same namespace."""
    for listener in at(value, "spec", "listeners") or ():
        allowed = listener.setdefault("allowedRoutes", {})
        allowed.setdefault("namespaces", {}).setdefault("from", "Same")


def _kind(kind: str, plural: str, check: Check = no_check, **more: Any) -> Resource:
    columns = more.pop("columns", (NAME, AGE))
    return Resource(
        kind=kind,
        plural=plural,
        type=GATEWAY_TYPES[kind],
        group=GROUP,
        categories=("gateway-api",),
        has_status=kind != "ReferenceGrant",
        counts_generations=True,
        check=check,
        columns=columns,
        **more,
    )


_ROUTE_COLUMNS: Final = (NAME, Column("Hostnames", _hostnames), AGE)
GATEWAY_RESOURCES: Final = (
    _kind("HTTPRoute", "httproutes", check_route, default=_default_http_route, columns=_ROUTE_COLUMNS),
    _kind("GRPCRoute", "grpcroutes", check_route, columns=_ROUTE_COLUMNS),
    _kind("TLSRoute", "tlsroutes", check_route, columns=_ROUTE_COLUMNS),
    _kind("TCPRoute", "tcproutes", check_route),
    _kind("UDPRoute", "udproutes", check_route),
    _kind("ListenerSet", "listenersets", check_set, default=_default_listeners, short_names=("lset",)),
    _kind("BackendTLSPolicy", "backendtlspolicies", short_names=("btlspolicy",)),
    _kind("ReferenceGrant", "referencegrants", check_grant, short_names=("refgrant",)),
    _kind(
        "Gateway",
        "gateways",
        check_gateway,
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
    check_class,
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
