"""The Gateway API, v1, and v1beta1 with the same fields: built in here, custom resources in a cluster."""

import dataclasses
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.gateway_rules import (
    check_class,
    check_gateway,
    check_listener_set,
    check_route,
    check_tls_policy,
)
from vipwire_up.api.kinds.gateway_types import GATEWAY_TYPES, GROUP
from vipwire_up.api.objects.columns import AGE, NAME, path_cell
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Column, Object, Resource


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


_ROUTE_COLUMNS: Final = (NAME, Column("Hostnames", _hostnames), AGE)

GATEWAY_RESOURCES: Final = (
    _kind("HTTPRoute", "httproutes", check=check_route, columns=_ROUTE_COLUMNS),
    _kind("GRPCRoute", "grpcroutes", check=check_route, columns=_ROUTE_COLUMNS),
    _kind("TLSRoute", "tlsroutes", check=check_route, columns=_ROUTE_COLUMNS),
    _kind("TCPRoute", "tcproutes", check=check_route),
    _kind("UDPRoute", "udproutes", check=check_route),
    _kind("ListenerSet", "listenersets", check=check_listener_set, short_names=("lset",)),
    _kind("BackendTLSPolicy", "backendtlspolicies", check=check_tls_policy, short_names=("btlspolicy",)),
    _kind("ReferenceGrant", "referencegrants", short_names=("refgrant",)),
    _kind(
        "Gateway",
        "gateways",
        check=check_gateway,
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
    check=check_class,
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
