"""EndpointSlices and Endpoints: types, columns and validation (pkg/apis/*/validation)."""

import ipaddress
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from vipwire.model.net import add_brackets
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.service import SERVICE_TYPES
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of, find_endpoint_problem
from vipwire_up.api.objects.columns import AGE, NAME, column_of_path, join_values
from vipwire_up.api.objects.errors import Cause, duplicate, invalid, required, too_many
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind EndpointSlice | A subset of the endpoints of a Service.
  addressType string #4 required one=FQDN,IPv4,IPv6 | Type of all addresses in the slice. Immutable.
  endpoints []Endpoint #2 atomic | Endpoints in this slice; at most 1000.
  ports []EndpointPort #3 atomic | Ports of every endpoint in this slice.
Endpoint | One endpoint.
  addresses []string #1 required set | Addresses of the endpoint; clients use the first.
  conditions EndpointConditions #2 | Conditions of the endpoint.
  deprecatedTopology {}string #5 | Deprecated and unused.
  hints EndpointHints #8 | Hints about the clients for which the endpoint is meant.
  hostname string #3 max=63 | Hostname of the endpoint, a DNS label below the Service's name.
  nodeName string #6 | Name of the Node with the endpoint.
  targetRef ObjectReference #4 | Object that the endpoint represents, usually a Pod.
  zone string #7 | Zone of the endpoint.
EndpointConditions | Conditions of an endpoint.
  ready bool #1 | True if the endpoint accepts new connections. Clients treat an absent value as true.
  serving bool #2 | Same as ready, but also for an endpoint that terminates.
  terminating bool #3 | True if the endpoint terminates.
EndpointHints | Hints about the clients for which an endpoint is meant.
  forNodes []ForNode #2 atomic | Nodes whose clients should use the endpoint.
  forZones []ForZone #1 atomic | Zones whose clients should use the endpoint.
ForNode | A Node whose clients should use the endpoint.
  name string #1 required | Name of the Node.
ForZone | A zone whose clients should use the endpoint.
  name string #1 required | Name of the zone.
EndpointPort | A port of endpoints.
  appProtocol string #4 | Application protocol of the port, as a hint.
  name string #1 default= | Name of the port, equal to the name of the Service's port.
  port int32 #3 range=1..65535 | Number of the port.
  protocol string #2 default=TCP pointer one=SCTP,TCP,UDP | Transport protocol: TCP, UDP or SCTP.
"""
_KNOWN: Final = META | {"ObjectReference": SERVICE_TYPES["ObjectReference"]}
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, "io.k8s.api.discovery.v1", _KNOWN)
_MOST_HINTS: Final = 8
_MOST_ENDPOINTS, _MOST_PORTS, _MOST_ADDRESSES = 1000, 100, 100


def _check_slice(new: Object, old: Object | None) -> Iterator[Cause]:
    kind, endpoints, ports = new.get("addressType"), new.get("endpoints") or [], new.get("ports") or []
    if old is not None and old.get("addressType") != kind:
        yield invalid("addressType", kind, "field is immutable")
    if len(endpoints) > _MOST_ENDPOINTS:
        yield too_many("endpoints", len(endpoints), _MOST_ENDPOINTS)
    if len(ports) > _MOST_PORTS:
        yield too_many("ports", len(ports), _MOST_PORTS)
    for index, endpoint in enumerate(endpoints):
        yield from _check_endpoint(endpoint, kind, f"endpoints[{index}]")
    seen = set[str]()
    for index, port in enumerate(ports):
        name = port.get("name") or ""
        if name in seen:
            yield duplicate(f"ports[{index}].name", name)
        elif name and (problem := names.check_label(name)):
            yield invalid(f"ports[{index}].name", name, problem)
        yield from names.apply_name_rule(
            port.get("appProtocol"), names.check_qualified_name, f"ports[{index}].appProtocol"
        )
        seen.add(name)


def _check_endpoint(endpoint: Object, kind: str | None, path: str) -> Iterator[Cause]:
    addresses = endpoint.get("addresses") or []
    if not addresses:
        yield required(f"{path}.addresses", "must contain at least 1 address")
    if len(addresses) > _MOST_ADDRESSES:
        yield too_many(f"{path}.addresses", len(addresses), _MOST_ADDRESSES)
    for index, address in enumerate(addresses):
        if problem := _find_address_problem(address, kind):
            yield invalid(f"{path}.addresses[{index}]", address, problem)
    yield from names.apply_name_rule(endpoint.get("hostname"), names.check_label, f"{path}.hostname")
    yield from names.apply_name_rule(endpoint.get("nodeName"), names.check_subdomain, f"{path}.nodeName")
    for part, rule in (("forZones", names.check_label_value), ("forNodes", names.check_subdomain)):
        yield from _check_hints(value_at(endpoint, "hints", part) or [], rule, f"{path}.hints.{part}")


def _check_hints(hints: list[Object], rule: names.NameRule, path: str) -> Iterator[Cause]:
    if len(hints) > _MOST_HINTS:
        yield too_many(path, len(hints), _MOST_HINTS)
        return
    seen = set[str]()
    for index, hint in enumerate(hints):
        name = hint.get("name") or ""
        if name in seen:
            yield duplicate(f"{path}[{index}].name", name)
        elif problem := rule(name):
            yield invalid(f"{path}[{index}].name", name, problem)
        seen.add(name)


def _find_address_problem(address: str, kind: str | None) -> str:
    if kind not in ("IPv4", "IPv6"):
        return names.check_subdomain(address) if kind == "FQDN" else ""
    if family_of(address) != kind:
        return f"must be a valid {kind} address"
    usual = str(ipaddress.ip_address(address))
    return f'must be in canonical form ("{usual}")' if usual != address else find_endpoint_problem(address)


def _warn_endpoint_slice(new: Object, _old: Object | None) -> Iterator[str]:
    if new.get("addressType") == "FQDN":
        yield "addressType: FQDN endpoints are deprecated"


def _format_ports(value: Object, _now: datetime) -> str:
    return join_values((port.get("port") or "*" for port in value.get("ports") or ()), most=3).replace(
        "<none>", "<unset>"
    )


def _format_endpoints(value: Object, _now: datetime) -> str:
    addresses = [value_at(endpoint, "addresses", 0) for endpoint in value.get("endpoints") or ()]
    return join_values(filter(None, addresses), most=3).replace("<none>", "<unset>")


def _check_endpoints(new: Object, old: Object | None) -> Iterator[Cause]:
    """Validate the subsets; subsets that were there before may stay."""
    subsets = new.get("subsets") or []
    if old is not None and subsets == (old.get("subsets") or []):
        return
    for index, subset in enumerate(subsets):
        path = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            yield required(path, "must specify `addresses` or `notReadyAddresses`")
        for part in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(part) or ()):
                yield from _check_endpoint_address(address, f"{path}.{part}[{number}]")
        yield from _check_subset_ports(subset.get("ports") or [], path)


def _check_endpoint_address(address: Object, path: str) -> Iterator[Cause]:
    if problem := find_endpoint_problem(address.get("ip") or ""):
        yield invalid(f"{path}.ip", address.get("ip"), problem)
    yield from names.apply_name_rule(address.get("hostname"), names.check_label, f"{path}.hostname")
    yield from names.apply_name_rule(address.get("nodeName"), names.check_subdomain, f"{path}.nodeName")


def _check_subset_ports(ports: list[Object], path: str) -> Iterator[Cause]:
    for number, port in enumerate(ports):
        name = port.get("name") or ""
        if not name and len(ports) > 1:
            yield required(f"{path}.ports[{number}].name")
        elif name and (problem := names.check_label(name)):
            yield invalid(f"{path}.ports[{number}].name", name, problem)


def _format_subsets(value: Object, _now: datetime) -> str:
    found = []
    for subset in value.get("subsets") or ():
        ports = [port.get("port") for port in subset.get("ports") or ()]
        for address in subset.get("addresses") or ():
            ip = add_brackets(address["ip"])
            found += [f"{ip}:{port}" for port in ports] or [address["ip"]]
    return join_values(found, most=3)


ENDPOINT_SLICES: Final = Resource(
    kind="EndpointSlice",
    plural="endpointslices",
    group="discovery.k8s.io",
    type=_TYPES["EndpointSlice"],
    counts_generations=True,
    check=_check_slice,
    warn=_warn_endpoint_slice,
    columns=(
        NAME,
        Column("AddressType", column_of_path("addressType")),
        Column("Ports", _format_ports),
        Column("Endpoints", _format_endpoints),
        AGE,
    ),
)

ENDPOINTS: Final = Resource(
    kind="Endpoints",
    plural="endpoints",
    created_by_put=True,
    deprecated="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    type=SERVICE_TYPES["Endpoints"],
    short_names=("ep",),
    check=_check_endpoints,
    columns=(NAME, Column("Endpoints", _format_subsets), AGE),
)
