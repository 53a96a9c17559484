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
from vipwire_up.api.objects.columns import AGE, NAME, column_of_path
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource


def _condition_column(kind: str) -> Any:
    def cell(value: Object, _now: datetime) -> str:
        found = value_at(value, "status", "conditions") or ()
        return next((str(each.get("status")) for each in found if each.get("type") == kind), "Unknown")

    return cell


def _format_addresses(value: Object, _now: datetime) -> str:
    return ",".join(str(each.get("value")) for each in value_at(value, "status", "addresses") or ())


def _format_hostnames(value: Object, _now: datetime) -> str:
    found = value_at(value, "spec", "hostnames") or ()
    return "[" + ",".join(f'"{each}"' for each in found) + "]" if found else ""


def _gateway_resource(kind: str, plural: str, **more: Any) -> Resource:
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


_ROUTE_COLUMNS: Final = (NAME, Column("Hostnames", _format_hostnames), AGE)

GATEWAY_RESOURCES: Final = (
    _gateway_resource("HTTPRoute", "httproutes", check=check_route, columns=_ROUTE_COLUMNS),
    _gateway_resource("GRPCRoute", "grpcroutes", check=check_route, columns=_ROUTE_COLUMNS),
    _gateway_resource("TLSRoute", "tlsroutes", check=check_route, columns=_ROUTE_COLUMNS),
    _gateway_resource("TCPRoute", "tcproutes", check=check_route),
    _gateway_resource("UDPRoute", "udproutes", check=check_route),
    _gateway_resource("ListenerSet", "listenersets", check=check_listener_set, short_names=("lset",)),
    _gateway_resource("BackendTLSPolicy", "backendtlspolicies", check=check_tls_policy, short_names=("btlspolicy",)),
    _gateway_resource("ReferenceGrant", "referencegrants", short_names=("refgrant",)),
    _gateway_resource(
        "Gateway",
        "gateways",
        check=check_gateway,
        short_names=("gtw",),
        columns=(
            NAME,
            Column("Class", column_of_path("spec", "gatewayClassName")),
            Column("Address", _format_addresses),
            Column("Programmed", _condition_column("Programmed")),
            AGE,
        ),
    ),
)

GATEWAY_CLASSES: Final = _gateway_resource(
    "GatewayClass",
    "gatewayclasses",
    check=check_class,
    namespaced=False,
    short_names=("gc",),
    columns=(
        NAME,
        Column("Controller", column_of_path("spec", "controllerName")),
        Column("Accepted", _condition_column("Accepted")),
        AGE,
        Column("Description", column_of_path("spec", "description"), priority=1),
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
