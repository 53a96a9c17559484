"""The API server refuses what the rules between fields of the Gateway API's definitions refuse, in their words.

gateway_rules.yaml lists the messages. Each has an object here that breaks this rule alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from scripts.gateway_rules import rules

from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.patches.json_patch import apply_merge_patch

Case = tuple[str, str, Any]
DEFINED: Final[dict[str, list[str]]] = yaml.safe_load((Path(__file__).parent / "gateway_rules.yaml").read_text())
KINDS: Final = {each.kind: each for each in RESOURCES if each.kind in DEFINED}
SAID_OTHERWISE: Final = {
    "type must be one of ['Exact', 'PathPrefix', 'RegularExpression']": "an enum refuses other types",
    "Listener name must be unique within the Gateway": "a duplicate key of a list: Duplicate value",
    "Port for TLS configuration must be unique within the Gateway": "a duplicate key of a list: Duplicate value",
    "Hostnames must be valid based on RFC-1123": "a pattern of each host refuses others",
    "Wildcards on hostnames must be the first label, and the rest of hostname must be valid based on RFC-1123": (
        "a pattern of each host refuses others"
    ),
}
"""Rules that a bound of the same field contains; test_gateway_crds.py compares bounds."""
BACKEND: Final = {"name": "a", "port": 80}
ROUTE: Final = {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [BACKEND]}]}
LISTENER: Final = {"name": "a", "port": 80, "protocol": "HTTP"}
BASES: Final[dict[str, Any]] = {
    "HTTPRoute": ROUTE,
    "GRPCRoute": ROUTE,
    "TLSRoute": ROUTE | {"hostnames": ["a.org"]},
    "TCPRoute": ROUTE,
    "UDPRoute": ROUTE,
    "Gateway": {"gatewayClassName": "edge", "listeners": [LISTENER]},
    "ListenerSet": {"parentRef": {"name": "edge"}, "listeners": [LISTENER]},
    "GatewayClass": {"controllerName": "a.org/b"},
    "BackendTLSPolicy": {
        "targetRefs": [{"group": "", "kind": "Service", "name": "a"}],
        "validation": {"hostname": "a.org", "wellKnownCACertificates": "System"},
    },
}
CONTENTS: Final[dict[str, Any]] = {
    "RequestHeaderModifier": {},
    "ResponseHeaderModifier": {},
    "RequestMirror": {"backendRef": BACKEND},
    "RequestRedirect": {},
    "URLRewrite": {},
    "CORS": {},
    "ExternalAuth": {"protocol": "HTTP", "http": {}, "backendRef": BACKEND},
    "ExtensionRef": {"group": "a.org", "kind": "A", "name": "a"},
}
LONG: Final = ".".join(["a" * 63] * 3 + ["a" * 61])
"""The longest DNS subdomain, of 253 characters."""
LONG_PREFIX: Final = (
    "If specified, the {} key's prefix must be a DNS subdomain not longer than 253 characters in total."
)


def field_of(kind: str) -> str:
    return {"CORS": "cors", "URLRewrite": "urlRewrite"}.get(kind, kind[0].lower() + kind[1:])


def filtered(kind: str, content: Any = None) -> dict[str, Any]:
    return {"type": kind, field_of(kind): CONTENTS[kind] if content is None else content}


def with_filters(*filters: Any, **more: Any) -> Any:
    return {"rules": [{"filters": list(filters)} | more]}


def within(*filters: Any) -> Any:
    return {"rules": [{"backendRefs": [BACKEND | {"filters": list(filters)}]}]}


def matching(path: Any) -> Any:
    return {"rules": [{"matches": [{"path": path}]}]}


def of_all_routes() -> Iterator[Case]:
    end = "when parentRefs includes 2 or more references to the same parent"
    for kind in ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"):
        for first, second, word in (
            ({}, {}, "unique"),
            ({"port": 1}, {"port": 1}, "unique"),
            ({}, {"sectionName": "a"}, "specified"),
            ({"sectionName": "b"}, {"sectionName": "a", "port": 1}, "specified"),
        ):
            refs = [{"name": "edge"} | first, {"name": "edge"} | second]
            yield kind, f"sectionName or port must be {word} {end}", {"parentRefs": refs}
        yield kind, "Must have port for Service reference", {"rules": [{"backendRefs": [{"name": "a"}]}]}


def of_routes_with_matches() -> Iterator[Case]:
    for kind, matches in (("HTTPRoute", 64), ("GRPCRoute", 64)):
        yield kind, "Rule name must be unique within the route", {"rules": [{"name": "a"}, {"name": "a"}]}
        session = {"cookieConfig": {"lifetimeType": "Permanent"}}
        said = "AbsoluteTimeout must be specified when cookie lifetimeType is Permanent"
        yield kind, said, {"rules": [{"sessionPersistence": session}]}
        many = [{"headers": [{"name": f"h{number}", "value": "a"}]} for number in range(matches)]
        said = (
            "While 16 rules and 64 matches per rule are allowed, the total number of matches across all rules in a "
            "route must be less than 128"
        )
        yield kind, said, {"rules": [{"matches": many}, {"matches": many}, {"matches": many[:1]}]}
        share = {"backendRef": BACKEND, "fraction": {"numerator": 3, "denominator": 2}}
        said = "numerator must be less than or equal to denominator"
        yield kind, said, with_filters(filtered("RequestMirror", share))
        headers = ("RequestHeaderModifier", "ResponseHeaderModifier")
        once = headers if kind == "GRPCRoute" else (*headers, "CORS", "RequestRedirect", "URLRewrite")
        for each in once:
            for place in (with_filters, within):
                yield kind, f"{each} filter cannot be repeated", place(filtered(each), filtered(each))
        kinds = (*headers, "RequestMirror", "ExtensionRef") if kind == "GRPCRoute" else tuple(CONTENTS)
        for each in kinds:
            field, other = field_of(each), next(one for one in kinds if one != each)
            for place in (with_filters, within):
                said = f"filter.{field} must be specified for {each} filter.type"
                yield kind, said, place({"type": each})
                said = f"filter.{field} must be nil if the filter.type is not {each}"
                yield kind, said, place(filtered(other) | {field: CONTENTS[each]})


def of_http_routes() -> Iterator[tuple[str, Any]]:
    redirect, rewrite = filtered("RequestRedirect"), filtered("URLRewrite")
    said = "RequestRedirect filter must not be used together with backendRefs"
    yield said, with_filters(redirect, backendRefs=[BACKEND])
    said = "May specify either httpRouteFilterRequestRedirect or httpRouteFilterRequestRewrite, but not both"
    yield from ((said, place(redirect, rewrite)) for place in (with_filters, within))
    prefix = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}}
    for matches in ([{"path": {"type": "Exact"}}], [{}, {"path": {"value": "/b"}}], []):
        for kind, capital in (("RequestRedirect", "w"), ("URLRewrite", "W")):
            one = filtered(kind, prefix)
            said = f"using {kind} filter with path.replacePrefixMatch, exactly one PathPrefix match must be specified"
            yield f"When {said}", with_filters(one, matches=matches)
            refs = [BACKEND | {"filters": [one]}, BACKEND]
            yield f"Within backendRefs, {capital}hen {said}", {"rules": [{"matches": matches, "backendRefs": refs}]}
    timeouts = {"request": "1s", "backendRequest": "1s1ms"}
    yield "backendRequest timeout cannot be longer than request timeout", {"rules": [{"timeouts": timeouts}]}
    said = "Only one of percent or fraction may be specified in HTTPRequestMirrorFilter"
    share = {"backendRef": BACKEND, "percent": 1, "fraction": {"numerator": 1}}
    yield said, with_filters(filtered("RequestMirror", share))
    for field, others in (("Origins", "origins"), ("Methods", "methods"), ("Headers", "methods")):
        value = {"Origins": "http://a.org", "Methods": "GET", "Headers": "a"}[field]
        said = f"Allow{field} cannot contain '*' alongside other {others}"
        yield said, with_filters(filtered("CORS", {f"allow{field}": ["*", value]}))
    for type_, field, other in (("GRPC", "grpc", "http"), ("HTTP", "http", "grpc")):
        auth = {"protocol": type_, "backendRef": BACKEND}
        said = f"{field} must be specified when protocol is set to '{type_}'"
        yield said, with_filters(filtered("ExternalAuth", auth))
        said = f"protocol must be '{other.upper()}' when {other} is set"
        yield said, with_filters(filtered("ExternalAuth", auth | {field: {}, other: {}}))
    replacements = ("ReplaceFullPath", "ReplacePrefixMatch")
    for type_, other in (replacements, replacements[::-1]):
        field, beside = field_of(type_), field_of(other)
        for kind in ("RequestRedirect", "URLRewrite"):
            said = f"{field} must be specified when type is set to '{type_}'"
            yield said, with_filters(filtered(kind, {"path": {"type": type_}}))
            both = {"type": type_, field: "/b", beside: "/c"}
            yield f"type must be '{other}' when {beside} is set", with_filters(filtered(kind, {"path": both}))


def of_paths() -> Iterator[tuple[str, Any]]:
    end = "when type one of ['Exact', 'PathPrefix']"
    for type_ in ("Exact", "PathPrefix"):
        yield f"value must be an absolute path and start with '/' {end}", matching({"type": type_, "value": "a"})
        for part, text in (("//", "/a//b"), ("/./", "/a/./b"), ("/../", "/a/../b"), ("%2f", "/%2f"), ("%2F", "/%2F")):
            yield f"must not contain '{part}' {end}", matching({"type": type_, "value": text})
        for part in ("/..", "/."):
            yield f"must not end with '{part}' {end}", matching({"type": type_, "value": f"/a{part}"})
        said = (
            "must only contain valid characters (matching ^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$) "
            "for types ['Exact', 'PathPrefix']"
        )
        yield said, matching({"type": type_, "value": "/a b"})
        yield f"must not contain '#' {end}\n{said}", matching({"type": type_, "value": "/a#b"})


def of_grpc_routes() -> Iterator[tuple[str, Any]]:
    service = r"^(?i)\.?[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*$"
    for method, said in (
        ({}, "One or both of 'service' or 'method' must be specified"),
        ({"service": "a b"}, f"service must only contain valid characters (matching {service})"),
        ({"service": ""}, f"service must only contain valid characters (matching {service})"),
        ({"method": "1"}, "method must only contain valid characters (matching ^[A-Za-z_][A-Za-z_0-9]*$)"),
    ):
        yield said, {"rules": [{"matches": [{"method": method}]}]}


def of_listeners() -> Iterator[tuple[str, Any]]:
    tls = {"certificateRefs": [{"name": "a"}]}
    for each, said in (
        ({"tls": tls}, "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']"),
        ({"protocol": "udp", "tls": tls}, "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']"),
        ({"protocol": "HTTPS", "tls": {"mode": "Passthrough"}}, "tls mode must be Terminate for protocol HTTPS"),
        ({"protocol": "TLS"}, "tls mode must be set for protocol TLS"),
        ({"protocol": "tcp", "hostname": "a.org"}, "hostname must not be specified for protocols ['TCP', 'UDP']"),
        ({"protocol": "TLS", "tls": {}}, "certificateRefs or options must be specified when mode is Terminate"),
    ):
        yield said, {"listeners": [LISTENER | each]}
    said = "Combination of port, protocol and hostname must be unique for each listener"
    yield said, {"listeners": [LISTENER, LISTENER | {"name": "b"}]}


def of_gateways() -> Iterator[tuple[str, Any]]:
    host = r"(matching ^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$)"
    for kind, value in (("IPAddress", "192.0.2.1"), ("Hostname", "a.org")):
        yield f"{kind} values must be unique", {"addresses": [{"type": kind, "value": value}] * 2}
    said = f"Hostname value must be empty or contain only valid characters {host}"
    yield from ((said, {"addresses": [{"type": "Hostname", "value": value}]}) for value in ("a b", ""))
    for word in ("Label", "Annotation"):
        said = (
            f"{word} keys must be in the form of an optional DNS subdomain prefix followed by a required name "
            "segment of up to 63 characters."
        )
        for key in ("a b", "A.b/c", f"a/{'b' * 64}"):
            yield said, {"infrastructure": {f"{word.lower()}s": {key: "a"}}}


def cases() -> Iterator[Case]:
    yield from (*of_all_routes(), *of_routes_with_matches())
    yield from (("HTTPRoute", said, spec) for said, spec in (*of_http_routes(), *of_paths()))
    yield from (("GRPCRoute", said, spec) for said, spec in of_grpc_routes())
    yield from (
        (kind, said, spec)
        for kind in ("Gateway", "ListenerSet")
        for said, spec in (*of_listeners(), *(of_gateways() if kind == "Gateway" else ()))
    )
    yield "TLSRoute", "Hostnames cannot contain an IP", {"hostnames": ["192.0.2.1"]}
    end = "when targetRefs includes 2 or more references to the same target"
    for more, word in (({}, "unique"), ({"sectionName": "b"}, "specified")):
        target = {"group": "", "kind": "Service", "name": "a"}
        yield "BackendTLSPolicy", f"sectionName must be {word} {end}", {"targetRefs": [target, target | more]}
    refs = [{"group": "", "kind": "ConfigMap", "name": "a"}]
    for checked, verb in (
        ({"caCertificateRefs": refs}, "must not contain both CACertificateRefs and"),
        ({"wellKnownCACertificates": None}, "must specify either CACertificateRefs or"),
    ):
        yield "BackendTLSPolicy", f"{verb} WellKnownCACertificates", {"validation": checked}
    values = {"Hostname": {"hostname": "a.org"}, "URI": {"uri": "spiffe://a/b"}}
    for kind, other in (("Hostname", "URI"), ("URI", "Hostname")):
        said = f"SubjectAltName element must contain {kind}, if Type is set to {kind}"
        yield "BackendTLSPolicy", said, {"validation": {"subjectAltNames": [{"type": kind}]}}
        said = f"SubjectAltName element must not contain {other}, if Type is not set to {other}"
        both = {"type": kind} | values[kind] | values[other]
        yield "BackendTLSPolicy", said, {"validation": {"subjectAltNames": [both]}}


CASES: Final = tuple(cases())


def messages(kind: str, spec: Any, old: Any = None, **more: Any) -> list[str]:
    findings = Findings()
    body = {"metadata": {"name": "a"}, "spec": apply_merge_patch(BASES[kind], spec)} | more
    new = decode(body, KINDS[kind].type, findings) | {"kind": kind}
    return sorted(each.text for each in (*findings.causes, *KINDS[kind].check(new, old)))


@pytest.mark.parametrize(("kind", "said", "spec"), CASES)
def test_an_object_breaks_one_rule(kind: str, said: str, spec: Any) -> None:
    found = messages(kind, spec)
    assert len(found) == len(said.split("\n")), found
    for message in said.split("\n"):
        assert any(text.endswith(f": {message}") for text in found), found


def test_each_rule_of_the_definitions_has_an_object_that_breaks_it() -> None:
    elsewhere = {
        "Gateway": {
            *map(LONG_PREFIX.format, ("label", "annotation")),
            next(each for each in DEFINED["Gateway"] if each.startswith("Hostname value must only contain")),
        },
        "GatewayClass": {"Value is immutable"},
    }
    for kind, defined in DEFINED.items():
        found = {each for of, said, _ in CASES if of == kind for each in said.split("\n")}
        assert found | elsewhere.get(kind, set()) | (SAID_OTHERWISE.keys() & set(defined)) == set(defined), kind


def test_rules_of_a_status_of_an_update_and_of_long_keys() -> None:
    status = {"addresses": [{"type": "Hostname", "value": "a b"}]}
    (said,) = messages("Gateway", {}, status=status)
    assert "Hostname value must only contain valid characters (matching" in said
    old = {"spec": {"controllerName": "a.org/c"}}
    assert [each.rpartition(": ")[2] for each in messages("GatewayClass", {}, old)] == ["Value is immutable"]
    for word in ("label", "annotation"):
        (said,) = messages("Gateway", {"infrastructure": {f"{word}s": {f"{LONG}/a": "a"}}})
        assert said.endswith(LONG_PREFIX.format(word))
        assert messages("Gateway", {"infrastructure": {f"{word}s": {f"{LONG[:-1]}/a": "a"}}}) == []


@pytest.mark.parametrize("kind", list(BASES))
def test_an_object_that_breaks_none_is_accepted(kind: str) -> None:
    assert messages(kind, {}) == []


def test_the_messages_of_a_definition_are_listed() -> None:
    rule = {"x-kubernetes-validations": [{"rule": "self == ''", "message": "b"}, {"rule": "true", "message": "a"}]}
    schema = {"properties": {"spec": {"items": rule, "properties": {"message": {"type": "string"}}} | rule}}
    versions = [{"served": True, "schema": {"openAPIV3Schema": each}} for each in (schema, {})]
    definition = {"kind": "CustomResourceDefinition", "spec": {"names": {"kind": "A"}, "versions": versions}}
    assert rules([yaml.safe_dump_all([definition, {"kind": "Namespace"}])]) == {"A": ["a", "b"]}
