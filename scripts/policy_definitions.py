"""Prints the custom resource definitions of vipwire's policies: `python -m scripts.policy_definitions`.

deploy/gateway/policies.yaml is the output; a test compares them. The schemas contain the checks of `vipwire up`, as
far as a schema can.
"""

import sys
from collections.abc import Iterator
from typing import Any

import yaml

from vipwire_up.api.kinds.policies import MOST_SOURCES, MOST_TARGETS, PATTERNS, POLICY_RESOURCES, ROUTES, SERVICES
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Field, Shape, Type

Json = dict[str, Any]
HEAD = "# TrafficPolicy and BackendPolicy (docs/gateway.md). Made by `python -m scripts.policy_definitions`.\n"
_LABEL = "gateway.networking.k8s.io/policy"
_MANNERS = {"TrafficPolicy": "Inherited", "BackendPolicy": "Direct"}
_SCALARS = {
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "time": {"type": "string", "format": "date-time"},
}


def definitions() -> str:
    return HEAD + "".join(f"---\n{yaml.safe_dump(_definition(each), sort_keys=False)}" for each in POLICY_RESOURCES)


def _definition(resource: Resource) -> Json:
    names: Json = {"kind": resource.kind, "listKind": f"{resource.kind}List", "plural": resource.plural}
    names |= {"singular": resource.singular, "shortNames": [*resource.short_names]}
    spec = resource.type.fields["spec"].type
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": _object(spec, (), resource),
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.id, "labels": {_LABEL: _MANNERS[resource.kind]}},
        "spec": {
            "group": resource.group,
            "names": {**names, "categories": [*resource.categories]},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _object(of: Type, path: tuple[str, ...], resource: Resource) -> Json:
    fields = {name: _field(each, (*path, name), resource) for name, each in of.fields.items()}
    needed = [name for name, each in of.fields.items() if each.required]
    return {"type": "object", "properties": fields} | ({"required": needed} if needed else {})


def _field(of: Field, path: tuple[str, ...], resource: Resource) -> Json:
    if of.type.shape is Shape.OBJECT:
        found = _object(of.type, path, resource)
    elif of.type.shape is Shape.LIST and of.type.element is not None:
        element = of.type.element
        items = _object(element, (*path, ""), resource) if element.shape is Shape.OBJECT else {"type": "string"}
        least = {"minItems": 1, "maxItems": MOST_TARGETS if path == ("targetRefs",) else MOST_SOURCES}
        found = {"type": "array", "items": items, **least}
    else:
        found = dict(_SCALARS.get(of.type.name, {"type": "string"}))
    return {**found, **dict(_bounds(of, path, resource)), "description": of.description}


def _bounds(of: Field, path: tuple[str, ...], resource: Resource) -> Iterator[tuple[str, Any]]:
    if path[0] == "targetRefs" and of.name in ("group", "kind"):
        pairs = SERVICES if resource.kind == "BackendPolicy" else ROUTES
        yield "enum", sorted({pair[of.name == "kind"] for pair in pairs})
    if of.one_of:
        yield "enum", [*of.one_of]
    if of.range:
        yield from zip(("minimum", "maximum"), of.range, strict=True)
    if of.longest:
        yield "maxLength", of.longest
    if path in PATTERNS:
        yield "pattern", f"^({PATTERNS[path][0].pattern})$"


if __name__ == "__main__":
    sys.stdout.write(definitions())
