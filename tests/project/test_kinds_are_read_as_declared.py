"""Structs that read a kind agree with the API server's tables: each field exists, with its type and its default.

The tables (src/vipwire_up/api/kinds) follow Kubernetes' API: bodies, defaults and OpenAPI are driven by them. The
structs of the proxy, of layer 7, of DNS and of `vipwire up` name the few fields that each of them reads. What a
struct leaves as None its converter decides, as for null. Where it has a value for a field that is left out, the API
has the same: its default, or Go's zero value. Structs may be content without fields that the API requires, as
manifests come past the API server; none requires a field that the API does not.
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.inspect import DictType, ListType, NoneType, StructType, UnionType, VarTupleType, type_info
from msgspec.inspect import Field as Read
from tests.project.test_house_rules import SOURCES

from vipwire.kube.resource import Resource
from vipwire_l7.gateway.watch.kinds import RESOURCES as GATEWAY
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.kinds.catalogue import BY_ID
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.schema import Field, Shape, Type

SCALARS = {
    "string": "str", "time": "str", "microtime": "str", "bytes": "str", "quantity": "str", "int32": "int",
    "int64": "int", "bool": "bool",
}  # fmt: skip
ALSO = {
    "vipwire.kube.wire.WireEndpoints": BY_ID["endpoints"].type,
    "vipwire_up.dns.objects.Endpoints": BY_ID["endpoints"].type,
    "vipwire_l7.run.surroundings._Pod": BY_ID["pods"].type,
    "vipwire_up.api.writing._DeleteOptions": META["DeleteOptions"],
}
"""Structs that read a kind and that no Resource names: manifests, single objects, bodies of requests."""
NOT_SERVED = {"clustertrustbundles.certificates.k8s.io"}
"""Kinds that are read from other API servers only."""
NO_KIND = {"WireObject", "ListMeta", "Page", "Status", "WatchEvent", "TrustBundle"}
"""Structs beside those that read kinds: lists, events and answers; kinds that are not served."""
EXCEPTIONS = {
    "AllowedListeners.namespaces": "the default, an object, has defaults of its own",
    "AllowedRoutes.namespaces": "the default, an object, has defaults of its own",
    "HttpRule.matches": "the default, a list, has an element with defaults of its own",
    "HttpRouteSpec.rules": "the default, a list, has an element with defaults of its own",
    "BackendRef.filters": "one struct reads backends that have filters, and those of TCP, UDP and mirrors",
    "BackendRef.weight": "one struct reads backends that have weights, and those of mirrors and authorization",
    **dict.fromkeys(
        (
            "Filter.cors",
            "Filter.direct_response",
            "Filter.external_auth",
            "Filter.request_redirect",
            "Filter.url_rewrite",
        ),
        "one struct reads the filters of HTTPRoutes and GRPCRoutes",
    ),
    "ParentRef.port": "one struct reads the parents of routes and of ListenerSets",
    "ParentRef.section_name": "one struct reads the parents of routes and of ListenerSets",
    "ObjectRef.kind": "one struct reads references of all kinds, of which the API gives only Secrets a default",
    "ObjectRef.namespace": "one struct reads references within a namespace and beyond it",
    "ClientValidation.cluster_trust_bundle_ref": "other API servers have ClusterTrustBundles",
    "TlsValidation.cluster_trust_bundle_ref": "other API servers have ClusterTrustBundles",
    "ConfigMap.status": "one base has the status of all kinds",
    "ReferenceGrant.status": "one base has the status of all kinds",
    "Plain.spec": "one struct reads Services, Nodes, Leases and EndpointSlices",
    "Plain.status": "one struct reads Services, Nodes, Leases and EndpointSlices",
    "Plain.endpoints": "one struct reads Services, Nodes, Leases and EndpointSlices",
}
"""Fields that differ, by struct, with the reason."""


def resources(value: Any) -> Iterator[Resource[Any, Any]]:
    if isinstance(value, Resource):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from resources(each)


def roots() -> Iterator[tuple[type, Type]]:
    """Find the structs that read a kind, with the kind's type: what the houses' Resources name, and `ALSO`."""
    for path in sorted(
        path for house in ("vipwire", "vipwire_l7", "vipwire_up") for path in (SOURCES / house).rglob("*.py")
    ):
        if "from vipwire.kube.resource import" in (text := path.read_text()) and "Resource(" in text:
            module = importlib.import_module(".".join(path.relative_to(SOURCES).with_suffix("").parts))
            for each in resources(tuple(vars(module).values())):
                if each.id not in NOT_SERVED:
                    yield each.type, BY_ID[each.id].type
    for name, kind in ALSO.items():
        place, _, struct = name.rpartition(".")
        yield getattr(importlib.import_module(place), struct), kind


class Comparison:
    """Compares structs with types; notes the structs that it has met, and fields that differ with the reasons."""

    def __init__(self) -> None:
        self.met: set[type] = set()
        self.found: dict[str, str] = {}

    def compare(self, struct: type, kind: Type) -> None:
        self.met.add(struct)
        info = type_info(struct)
        assert isinstance(info, StructType)
        for read in info.fields:
            place = f"{struct.__name__}.{read.name}"
            declared = kind.fields.get(read.encode_name)
            if declared is None:
                self.found[place] = f"{kind.name} has no {read.encode_name}"
            elif why := self._wrong_type(read.type, declared.type) or wrong_default(read, declared):
                self.found[place] = f"{why} in {kind.name}"

    def _wrong_type(self, read: Any, kind: Type) -> str:
        """Tell how a type that is read differs; what is read as anything, or as a dict of anything, does not."""
        options = [each for each in (read.types if isinstance(read, UnionType) else (read,)) if each != NoneType()]
        first, element = options[0], kind.element
        names = sorted(type(each).__name__.removesuffix("Type").lower() for each in options)
        if names == ["any"] or (names == ["dict"] and kind.shape is Shape.OBJECT):
            return ""
        if isinstance(first, StructType) and kind.shape is Shape.OBJECT:
            self.compare(first.cls, kind)
            return ""
        if isinstance(first, StructType) and kind.shape is Shape.MAP and element is not None:  # some of its keys
            self.met.add(first.cls)
            return "".join(self._wrong_type(each.type, element) for each in first.fields)
        if isinstance(first, VarTupleType | ListType) and kind.shape is Shape.LIST and element is not None:
            return self._wrong_type(first.item_type, element)
        if isinstance(first, DictType) and kind.shape is Shape.MAP and element is not None:
            return self._wrong_type(first.value_type, element)
        wanted = ["int", "str"] if kind.name == "intstr" else [SCALARS.get(kind.name, kind.shape.value)]
        return "" if names == wanted else f"read as {names}, declared {wanted}"


def wrong_default(read: Read, declared: Field) -> str:
    """Tell how the value of a field that is left out differs; "" if it does not."""
    if read.required:
        return "" if declared.required else "required here, optional"
    value = read.default_factory() if read.default_factory is not msgspec.NODEFAULT else read.default
    if value is None:
        return ""
    wanted = declared.default if declared.default not in (None, {}) else type(value)()
    return "" if value == wanted else f"{value!r} by default here, {wanted!r}"


def test_structs_agree_with_the_tables_of_the_api_server() -> None:
    comparison = Comparison()
    for struct, kind in roots():
        comparison.compare(struct, kind)
    assert {name: why for name, why in comparison.found.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() - comparison.found.keys() == set()


def test_every_struct_beside_one_that_reads_a_kind_is_compared() -> None:
    comparison = Comparison()
    for struct, kind in roots():
        comparison.compare(struct, kind)
    met = {base for struct in comparison.met for base in struct.__mro__}
    modules = {
        struct.__module__ for struct in comparison.met if Path(struct.__module__.replace(".", "/")).name != "writing"
    }
    beside = {
        each.__name__
        for name in modules
        for each in vars(importlib.import_module(name)).values()
        if isinstance(each, type)
        and issubclass(each, msgspec.Struct)
        and each.__module__ in modules
        and each not in met
    }
    assert beside == NO_KIND


@pytest.mark.parametrize(
    ("plural", "spec"),
    [
        ("httproutes", {}),
        ("httproutes", {"rules": [{"backendRefs": [{"name": "web"}]}, {"matches": [{"method": "GET"}]}]}),
        ("gateways", {"gatewayClassName": "c", "allowedListeners": {}}),
        ("gateways", {"gatewayClassName": "c", "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]}),
        (
            "gateways",
            {"gatewayClassName": "c", "listeners": [{"name": "a", "port": 80, "protocol": "HTTP", "tls": {}}]},
        ),
        ("listenersets", {"parentRef": {"name": "g"}, "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]}),
    ],
)
def test_gateways_and_routes_mean_the_same_before_and_after_the_api_server(plural: str, spec: dict[str, Any]) -> None:
    sent = {"metadata": {"name": "one"}, "spec": spec}
    served = BY_ID[f"{plural}.gateway.networking.k8s.io"]
    stored = decode(sent, served.type, Findings())
    served.default(stored)
    (struct,) = (each.type for each in GATEWAY.values() if each.id == served.id)
    assert msgspec.convert(stored, struct) == msgspec.convert(sent, struct)
