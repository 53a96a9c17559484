"""The tables of the Gateway API's kinds hold what their custom resource definitions say: gateway_crds.yaml.

Bounds are compared by values: the API server's decoder and the schema must accept and refuse the same ones. Patterns
count as anchored. What CEL rules say is in api_kinds_rules/gateway.txt.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.kinds.catalogue import SERVED
from vipwire_up.api.kinds.gateway_rules import check_route
from vipwire_up.api.kinds.gateway_types import GROUP
from vipwire_up.api.objects.schema import Field, Shape, Type

Schema = dict[str, Any]
DEFINED: Final[dict[str, dict[str, Schema]]] = yaml.safe_load(
    (Path(__file__).parent / "gateway_crds.yaml").read_text()
)
EXCEPTIONS: Final = {
    "HTTPRouteFilter.directResponse": "GEP-2826, younger than v1.6",
    "HTTPRouteFilter.type": "DirectResponse, GEP-2826",
    "Condition.lastTransitionTime": "a text that is no time makes the body unreadable",
    "ForwardBodyConfig.maxSize": "uint16 in Go: its clients cannot read more",
    "HTTPHeader.value": "the experimental pattern refuses spaces around a value; no line breaks here",
    "HTTPHeaderMatch.value": "the experimental pattern refuses spaces around a value; no line breaks here",
    "GRPCHeaderMatch.value": "a struct for both kinds of headers",
    "GatewayClass.status": "kubectl shows Unknown where there is no condition; the controller writes them",
    "GatewayClassStatus.conditions": "as GatewayClass.status",
    "Gateway.status": "as GatewayClass.status",
    "GatewayStatus.conditions": "as GatewayClass.status",
    "ListenerSet.status": "as GatewayClass.status",
    "ListenerSetStatus.conditions": "as GatewayClass.status",
}
"""Fields that differ, with the reason."""
SCALARS: Final = {"string": "string", "int32": "integer", "int64": "integer", "bool": "boolean", "time": "string"}
OTHER: Final = ("ObjectMeta", "LabelSelector")
TEXTS: Final = (
    *("", " ", "a", "A", "aB", "a.b", "a..b", "*.a.b", "*", "*a", "a b", "a_b", "a,b", "a:b", "-a", "a-", "a.", "1a"),
    *(
        "é",
        "a\nb",
        "a\n",
        "\r",
        "1.2.3.4",
        "::1",
        "a/b",
        "a.b/c",
        "a.b/C:d",
        "A.b/c",
        "/",
        "/a",
        "/%2f",
        "/%zz",
        "/a?b",
    ),
    *(
        "#",
        "http://a",
        "https://*.a:80",
        "ftp://a",
        "http://",
        "a://b?c#d",
        "1h",
        "1h2m3s4ms",
        "1h1h1h1h1h",
        "123456s",
    ),
    *("HTTP", "IPAddress", "NamedAddress", "System", "Exact", "GET", "Same", "None", "http", "A_-."),
    *("a" * length for length in (63, 64, 65, 128, 129, 253, 254, 255, 256, 257, 316, 317, 1024, 1025)),
    *("a" * length for length in (4096, 4097, 32768, 32769)),
)


def pairs() -> Iterator[tuple[str, Type]]:
    """Find each type of a served kind, with its name in the definitions."""
    todo = [(each.kind, each.type) for each in SERVED if each.group == GROUP]
    seen: set[tuple[str, int]] = set()
    while todo:
        name, kind = todo.pop()
        if (name, id(kind)) in seen:
            continue
        seen.add((name, id(kind)))
        yield name, kind
        for field, schema in DEFINED[name].items():
            below = kind.fields[field].type if field in kind.fields else None
            ref = schema.get("ref") or schema.get("items", {}).get("ref")
            if below is not None and ref and ref not in OTHER:
                todo.append((ref, below.element or below))


PAIRS: Final = tuple(pairs())
FIELDS: Final = tuple(
    pytest.param(kind, field, schema, id=f"{kind.name.rpartition('gateway.')[2]}: {name}.{field}")
    for name, kind in PAIRS
    for field, schema in DEFINED[name].items()
    if f"{name}.{field}" not in EXCEPTIONS
)


def test_every_type_of_the_definitions_is_met_and_every_exception_is_needed() -> None:
    assert {name for name, _ in PAIRS} == set(DEFINED)
    assert {each.version for each in SERVED if each.group == GROUP} == {"v1", "v1beta1"}
    fields = {f"{name}.{field}" for name, kind in PAIRS for field in (*DEFINED[name], *kind.fields)}
    assert set(EXCEPTIONS) <= fields


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_type_has_the_fields_of_its_definition(name: str, kind: Type) -> None:
    ours = {field for field in kind.fields if f"{name}.{field}" not in EXCEPTIONS}
    header = {"apiVersion", "kind", "metadata"} if "metadata" in kind.fields else set()
    assert ours - header == {field for field in DEFINED[name] if f"{name}.{field}" not in EXCEPTIONS}


@pytest.mark.parametrize(("kind", "field", "schema"), FIELDS)
def test_a_field_is_bounded_as_in_its_definition(kind: Type, field: str, schema: Schema) -> None:
    known = kind.fields[field]
    assert known.required == schema.get("required", False)
    assert listed(known) == (schema.get("list", "atomic") if schema.get("type") == "array" else "")
    assert known.type.shape == shape(schema)
    assert default(kind, field) == schema.get("default")
    for value in samples(schema):
        assert takes(kind, field, value) == allows(schema, value), (value, known)


def listed(known: Field) -> str:
    if known.type.shape is not Shape.LIST:
        return ""
    return f"map {' '.join(known.keys)}" if known.keys else "set" if known.is_set else "atomic"


def shape(schema: Schema) -> Shape:
    if "items" in schema:
        return Shape.LIST
    if "values" in schema:
        return Shape.MAP
    return Shape.OBJECT if "ref" in schema else Shape.SCALAR


def default(kind: Type, field: str) -> Any:
    return decode({}, kind, Findings()).get(field)


def takes(kind: Type, field: str, value: Any) -> bool:
    """Report whether the API server accepts a value of a field; what is below an element's fields does not count."""
    findings = Findings()
    try:
        decode({field: value}, kind, findings)
    except ApiError:
        return False
    inner = re.compile(re.escape(field) + r"(\[[^]]*\])?")
    return not any(inner.fullmatch(each.field) and each.reason != "FieldValueDuplicate" for each in findings.causes)


def allows(schema: Schema, value: Any) -> bool:
    if isinstance(value, list | dict):
        low = schema.get("minItems", 0)
        high = schema.get("maxItems") or schema.get("maxProperties") or 1 << 30
        element = schema.get("items") or schema.get("values") or {}
        parts = value.values() if isinstance(value, dict) else value
        return low <= len(value) <= high and all(allows(element, part) for part in parts)
    if "ref" in schema:
        return True
    if value not in schema.get("enum", (value,)):
        return False
    if isinstance(value, str):
        pattern = schema.get("pattern", ".*")
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30)
        return fits and re.fullmatch(pattern, value, re.DOTALL) is not None and not ends_early(pattern, value)
    return bool(schema.get("minimum", -(1 << 31)) <= value <= schema.get("maximum", (1 << 31) - 1))


def ends_early(pattern: str, value: str) -> bool:
    """Report a line break that only Python's `$` takes for an end."""
    return "$" in pattern and value.endswith("\n")


def samples(schema: Schema) -> Iterator[Any]:
    if "items" in schema or "values" in schema:
        element = schema.get("items") or schema["values"]
        single = [part for part in samples(element) if allows(element, part)] or [{}]
        counts = {0, 1, schema.get("minItems", 1) - 1, schema.get("maxItems", schema.get("maxProperties", 1))}
        for count in sorted({*counts, *(count + 1 for count in counts)} - {-1}):
            few = [single[n % len(single)] for n in range(count)]
            yield few if "items" in schema else {f"k{n}": part for n, part in enumerate(few)}
        if "ref" not in element and schema.get("minItems", 1) <= 1:
            yield from ([part] if "items" in schema else {"k": part} for part in samples(element))
    elif schema.get("type") == "string":
        yield from (*TEXTS, *schema.get("enum", ()))
    elif schema.get("type") == "integer":
        ends = {schema.get("minimum", 0), schema.get("maximum", 0), *schema.get("enum", ())}
        yield from sorted({each + step for each in ends for step in (-1, 0, 1)})


def test_a_route_has_at_most_128_matches() -> None:
    matches = [{"path": {"type": "Exact", "value": f"/{n}"}} for n in range(43)]
    for extra, wanted in (([], 0), (matches[:1], 1)):
        rules = [{"matches": matches}, {"matches": matches}, {"matches": matches[:42] + extra}]
        causes = list(check_route({"kind": "HTTPRoute", "spec": {"rules": rules}}, None))
        assert len(causes) == wanted, json.dumps([each.text for each in causes])
