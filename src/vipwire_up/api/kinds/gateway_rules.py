"""The Gateway API's rules between fields: the CEL rules of its custom resource definitions, with their messages.

The definitions are those of v1.6 with the experimental channel. DirectResponse is younger (GEP-2826).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.errors import Cause, invalid
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.objects.schema import PATTERNS

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
_PATH_FIELDS: Final = {"ReplaceFullPath": "replaceFullPath", "ReplacePrefixMatch": "replacePrefixMatch"}
_AUTH_FIELDS: Final = {"GRPC": "grpc", "HTTP": "http"}
_NAME_FIELDS: Final = {"Hostname": "hostname", "URI": "uri"}
_FILTER: Final = (
    "filter.{field} must be specified for {kind} filter.type",
    "filter.{field} must be nil if the filter.type is not {kind}",
)
_MEMBER: Final = (
    "{field} must be specified when {key} is set to '{kind}'",
    "{key} must be '{kind}' when {field} is set",
)
_ALTERNATIVE: Final = (
    "SubjectAltName element must contain {kind}, if Type is set to {kind}",
    "SubjectAltName element must not contain {kind}, if Type is not set to {kind}",
)
"""Messages of a union: of a missing field, and of one that belongs to another type."""
_ANSWERING: Final = ("RequestRedirect", "DirectResponse")
_ONCE: Final = (
    "CORS",
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestRedirect",
    "URLRewrite",
    "DirectResponse",
)
_ALONE: Final = {"allowOrigins": "origins", "allowMethods": "methods", "allowHeaders": "methods"}
_UNIQUE_PLACE: Final = "Combination of port, protocol and hostname must be unique for each listener"
_ABSOLUTE: Final = "value must be an absolute path and start with '/' when type one of ['Exact', 'PathPrefix']"
_ONE_PREFIX: Final = "using {} filter with path.replacePrefixMatch, exactly one PathPrefix match must be specified"
_CHARACTERS: Final = (
    "must only contain valid characters (matching ^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$) "
    "for types ['Exact', 'PathPrefix']"
)
_HOST: Final = r"(matching ^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$)"
_KEY: Final = (
    "{} keys must be in the form of an optional DNS subdomain prefix followed by a required name segment of up to 63 "
    "characters."
)
_LONG_PREFIX: Final = (
    "If specified, the {} key's prefix must be a DNS subdomain not longer than 253 characters in total."
)
_TOO_MANY_MATCHES: Final = (
    "While 16 rules and 64 matches per rule are allowed, the total number of matches across all rules in a route "
    "must be less than 128"
)
_SEQUENCES: Final = ("//", "/./", "/../", "%2f", "%2F", "#")
_ENDINGS: Final = ("/..", "/.")
_GRPC: Final = {
    "service": r"^(?i)\.?[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*$",
    "method": "^[A-Za-z_][A-Za-z_0-9]*$",
}
_GRPC_PATTERNS: Final = {
    field: re.compile(text.removeprefix("^(?i)").strip("^$"), re.IGNORECASE if "(?i)" in text else 0)
    for field, text in _GRPC.items()
}
_MOST_MATCHES: Final = 128
_LONGEST_NAME, _LONGEST_PREFIX = 63, 253


def check_class(new: Object, old: Object | None) -> Iterator[Cause]:
    name = value_at(new, "spec", "controllerName")
    if old is not None and name != value_at(old, "spec", "controllerName"):
        yield invalid("spec.controllerName", name, "Value is immutable")


def check_gateway(new: Object, _old: Object | None) -> Iterator[Cause]:
    yield from _check_listeners(value_at(new, "spec", "listeners") or ())
    for field, word in (("labels", "label"), ("annotations", "annotation")):
        for key in value_at(new, "spec", "infrastructure", field) or ():
            yield from _check_map_key(key, word, f"spec.infrastructure.{field}")
    asked = value_at(new, "spec", "addresses") or ()
    for kind, values in _group_by_fields(asked, ("type",), lambda each: each.get("value")).items():
        if len(found := [each for each in values if each is not None]) > len(set(found)):
            yield invalid("spec.addresses", None, f"{kind[0]} values must be unique")
    yield from _check_addresses(asked, "spec.addresses", "be empty or contain only")
    yield from _check_addresses(value_at(new, "status", "addresses") or (), "status.addresses", "only contain")


def _check_map_key(key: str, word: str, path: str) -> Iterator[Cause]:
    if not PATTERNS["qualified"].fullmatch(key) or len(key.rpartition("/")[2]) > _LONGEST_NAME:
        yield invalid(path, key, _KEY.format(word.capitalize()))
    if len(key.partition("/")[0]) >= _LONGEST_PREFIX:
        yield invalid(path, key, _LONG_PREFIX.format(word))


def _group_by_fields(
    values: Iterable[Object], keys: tuple[str, ...], part: Any
) -> Mapping[tuple[Any, ...], list[Any]]:
    """Return a part of each value, by the value's fields; an empty field counts as a missing one."""
    groups = defaultdict(list)
    for each in values:
        groups[tuple(each.get(key) or "" for key in keys)].append(part(each))
    return groups


def _check_addresses(addresses: Iterable[Object], path: str, may: str) -> Iterator[Cause]:
    for index, each in enumerate(addresses):
        kind, value = each.get("type"), each.get("value")
        if value and kind == "IPAddress" and not family_of(value):
            yield invalid(f"{path}[{index}].value", value, "must be an IPv4 or IPv6 address")
        if value is not None and kind == "Hostname" and not PATTERNS["host"].fullmatch(value):
            yield invalid(f"{path}[{index}].value", value, f"Hostname value must {may} valid characters {_HOST}")


def check_listener_set(new: Object, _old: Object | None) -> Iterator[Cause]:
    yield from _check_listeners(value_at(new, "spec", "listeners") or ())


def _check_listeners(listeners: Any) -> Iterator[Cause]:
    places = Counter(
        (each.get("port"), str(each.get("protocol")).upper(), each.get("hostname")) for each in listeners
    )
    if any(count > 1 for count in places.values()):
        yield invalid("spec.listeners", None, _UNIQUE_PLACE)
    for index, each in enumerate(listeners):
        yield from _check_listener(each, f"spec.listeners[{index}]")


def _check_listener(listener: Object, path: str) -> Iterator[Cause]:
    protocol, tls, host = str(listener.get("protocol")).upper(), listener.get("tls"), listener.get("hostname")
    if host and protocol in ("TCP", "UDP"):
        yield invalid(f"{path}.hostname", host, "hostname must not be specified for protocols ['TCP', 'UDP']")
    if tls is not None and protocol in _PLAIN:
        yield invalid(f"{path}.tls", None, "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']")
    if tls is not None and protocol == "HTTPS" and tls.get("mode") == "Passthrough":
        yield invalid(f"{path}.tls.mode", "Passthrough", "tls mode must be Terminate for protocol HTTPS")
    if protocol == "TLS" and tls is None:
        yield invalid(f"{path}.tls", None, "tls mode must be set for protocol TLS")
    ends_here = tls is not None and tls.get("mode", "Terminate") == "Terminate"
    if tls is not None and ends_here and not tls.get("certificateRefs") and not tls.get("options"):
        yield invalid(f"{path}.tls", None, "certificateRefs or options must be specified when mode is Terminate")


def check_tls_policy(new: Object, _old: Object | None) -> Iterator[Cause]:
    targets = value_at(new, "spec", "targetRefs") or ()
    yield from _check_parent_references(
        targets, ("group", "kind", "name"), ("sectionName",), "spec.targetRefs", "target"
    )
    checked = value_at(new, "spec", "validation") or {}
    sources = [bool(checked.get(field)) for field in ("caCertificateRefs", "wellKnownCACertificates")]
    if checked and sources[0] == sources[1]:
        verb = "not contain both CACertificateRefs and" if all(sources) else "specify either CACertificateRefs or"
        yield invalid("spec.validation", None, f"must {verb} WellKnownCACertificates")
    for index, each in enumerate(checked.get("subjectAltNames") or ()):
        yield from _check_union(each, "type", _NAME_FIELDS, _ALTERNATIVE, f"spec.validation.subjectAltNames[{index}]")


def check_route(new: Object, _old: Object | None) -> Iterator[Cause]:
    spec = new.get("spec") or {}
    keys = ("group", "kind", "namespace", "name")
    yield from _check_parent_references(
        spec.get("parentRefs") or (), keys, ("sectionName", "port"), "spec.parentRefs", "parent"
    )
    for index, host in enumerate(spec.get("hostnames") or ()):
        if new.get("kind") == "TLSRoute" and family_of(host):
            yield invalid(f"spec.hostnames[{index}]", host, "Hostnames cannot contain an IP")
    rules = spec.get("rules") or ()
    named = Counter(rule["name"] for rule in rules if rule.get("name"))
    if any(count > 1 for count in named.values()):
        yield invalid("spec.rules", None, "Rule name must be unique within the route")
    if sum(len(rule.get("matches") or ()) for rule in rules) > _MOST_MATCHES:
        yield invalid("spec.rules", None, _TOO_MANY_MATCHES)
    for index, rule in enumerate(rules):
        yield from _check_rule(rule, f"spec.rules[{index}]")


def _check_parent_references(
    references: Iterable[Object], keys: tuple[str, ...], parts: tuple[str, ...], path: str, of: str
) -> Iterator[Cause]:
    """Check references to one object: all of them, or none, name a part of the object, and each another one."""
    named, plural = " or ".join(parts), path.rpartition(".")[2]
    end = f"when {plural} includes 2 or more references to the same {of}"
    for found in _group_by_fields(
        references, keys, lambda each: tuple(each.get(part) or "" for part in parts)
    ).values():
        if len(set(found)) < len(found):
            yield invalid(path, None, f"{named} must be unique {end}")
        if len({tuple(map(bool, each)) for each in found}) > 1:
            yield invalid(path, None, f"{named} must be specified {end}")


def _check_union(
    value: Object, key: str, fields: Mapping[str, str], messages: tuple[str, str], path: str
) -> Iterator[Cause]:
    missing, other = messages
    for kind, field in fields.items():
        is_wanted, is_there = value.get(key) == kind, value.get(field) is not None
        if is_wanted and not is_there:
            yield invalid(path, None, missing.format(field=field, key=key, kind=kind))
        elif is_there and not is_wanted:
            yield invalid(path, None, other.format(field=field, key=key, kind=kind))


def _check_rule(rule: Object, path: str) -> Iterator[Cause]:
    refs, filters = rule.get("backendRefs") or (), rule.get("filters") or ()
    for kind in _ANSWERING:
        if refs and any(each.get("type") == kind for each in filters):
            yield invalid(path, None, f"{kind} filter must not be used together with backendRefs")
    for index, match in enumerate(rule.get("matches") or ()):
        where = f"{path}.matches[{index}]"
        yield from _check_path(match.get("path") or {}, f"{where}.path")
        if "method" in match and isinstance(match["method"], dict):
            yield from _check_grpc_method(match["method"], f"{where}.method")
    yield from _check_filters(filters, f"{path}.filters")
    yield from _check_prefixes(rule, path)
    for index, ref in enumerate(refs):
        yield from _check_backend(ref, f"{path}.backendRefs[{index}]")
        yield from _check_filters(ref.get("filters") or (), f"{path}.backendRefs[{index}].filters")
    yield from _check_timeouts(rule.get("timeouts") or {}, f"{path}.timeouts")
    session = rule.get("sessionPersistence") or {}
    if value_at(session, "cookieConfig", "lifetimeType") == "Permanent" and not session.get("absoluteTimeout"):
        said = "AbsoluteTimeout must be specified when cookie lifetimeType is Permanent"
        yield invalid(f"{path}.sessionPersistence", None, said)


def _check_backend(ref: Object, path: str) -> Iterator[Cause]:
    if not ref.get("group") and ref.get("kind", "Service") == "Service" and ref.get("port") is None:
        yield invalid(path, None, "Must have port for Service reference")


def _check_prefixes(rule: Object, path: str) -> Iterator[Cause]:
    """Check a rule with a filter that replaces a prefix: it needs exactly one match, of type PathPrefix.

    As in the definitions, this holds if exactly one filter, or exactly one backend, replaces a prefix.
    """
    matches = rule.get("matches") or []
    if len(matches) == 1 and value_at(matches[0], "path", "type") == "PathPrefix":
        return
    refs = [ref.get("filters") or () for ref in rule.get("backendRefs") or ()]
    for kind, start in (("RequestRedirect", "Within backendRefs, when"), ("URLRewrite", "Within backendRefs, When")):
        if sum(_replaces_prefix(each, kind) for each in rule.get("filters") or ()) == 1:
            yield invalid(path, None, f"When {_ONE_PREFIX.format(kind)}")
        if sum(sum(_replaces_prefix(each, kind) for each in filters) == 1 for filters in refs) == 1:
            yield invalid(path, None, f"{start} {_ONE_PREFIX.format(kind)}")


def _replaces_prefix(filter_: Object, kind: str) -> bool:
    path = value_at(filter_, _FIELDS[kind], "path") or {}
    return path.get("type") == "ReplacePrefixMatch" and path.get("replacePrefixMatch") is not None


def _check_filters(filters: Any, path: str) -> Iterator[Cause]:
    kinds = Counter(each.get("type") for each in filters)
    for kind in _ONCE:
        if kinds[kind] > 1:
            yield invalid(path, None, f"{kind} filter cannot be repeated")
    if kinds["RequestRedirect"] and kinds["URLRewrite"]:
        said = "May specify either httpRouteFilterRequestRedirect or httpRouteFilterRequestRewrite, but not both"
        yield invalid(path, None, said)
    for index, each in enumerate(filters):
        where = f"{path}[{index}]"
        yield from _check_union(each, "type", _FIELDS, _FILTER, where)
        for field in ("requestRedirect", "urlRewrite"):
            replacement = value_at(each, field, "path") or {}
            yield from _check_union(replacement, "type", _PATH_FIELDS, _MEMBER, f"{where}.{field}.path")
        for field in ("requestMirror", "externalAuth"):
            yield from _check_backend(
                value_at(each, field, "backendRef") or {"kind": ""}, f"{where}.{field}.backendRef"
            )
        yield from _check_mirror(each.get("requestMirror") or {}, f"{where}.requestMirror")
        for field, others in _ALONE.items():
            if "*" in (found := value_at(each, "cors", field) or ()) and len(found) > 1:
                said = f"{field[0].upper()}{field[1:]} cannot contain '*' alongside other {others}"
                yield invalid(f"{where}.cors.{field}", None, said)
        if auth := each.get("externalAuth"):
            yield from _check_union(auth, "protocol", _AUTH_FIELDS, _MEMBER, f"{where}.externalAuth")


def _check_mirror(mirror: Object, path: str) -> Iterator[Cause]:
    fraction = mirror.get("fraction")
    if fraction is not None and mirror.get("percent") is not None:
        yield invalid(path, None, "Only one of percent or fraction may be specified in HTTPRequestMirrorFilter")
    if fraction and fraction.get("numerator", 0) > fraction.get("denominator", 100):
        yield invalid(f"{path}.fraction", None, "numerator must be less than or equal to denominator")


def _check_path(path: Object, where: str) -> Iterator[Cause]:
    value = path.get("value", "/")
    if path.get("type", "PathPrefix") == "RegularExpression":
        return
    if not value.startswith("/"):
        yield invalid(where, value, _ABSOLUTE)
    for part in _SEQUENCES:
        if part in value:
            yield invalid(where, value, f"must not contain '{part}' when type one of ['Exact', 'PathPrefix']")
    for part in _ENDINGS:
        if value.endswith(part):
            yield invalid(where, value, f"must not end with '{part}' when type one of ['Exact', 'PathPrefix']")
    if not PATTERNS["path"].fullmatch(value):
        yield invalid(where, value, _CHARACTERS)


def _check_grpc_method(match: Object, path: str) -> Iterator[Cause]:
    if match.get("service") is None and match.get("method") is None:
        yield invalid(path, None, "One or both of 'service' or 'method' must be specified")
    for field, pattern in _GRPC_PATTERNS.items():
        text = match.get(field)
        if text is not None and match.get("type", "Exact") == "Exact" and not pattern.fullmatch(text):
            said = f"{field} must only contain valid characters (matching {_GRPC[field]})"
            yield invalid(f"{path}.{field}", text, said)


def _check_timeouts(timeouts: Object, path: str) -> Iterator[Cause]:
    whole, one = (_parse_milliseconds(timeouts.get(field)) for field in ("request", "backendRequest"))
    if 0 < whole < one:
        yield invalid(path, None, "backendRequest timeout cannot be longer than request timeout")


def _parse_milliseconds(duration: str | None) -> int:
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", duration or ""))
