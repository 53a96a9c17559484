"""Reads the fields of TrafficPolicies and BackendPolicies by the readers of Ingress annotations. Pure.

A field and its annotation accept the same values with the same meaning. An unknown field is an error like an
invalid value: a guard with a misspelt name would guard nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from vipwire_l7.plan.annotations import READERS

TRAFFIC: Final[Mapping[str, str]] = {
    "limits.requestsPerSecond": "limit-rps",
    "limits.requestsPerMinute": "limit-rpm",
    "limits.connections": "limit-connections",
    "allowSources": "allow-source-range",
    "denySources": "deny-source-range",
    "maxBodySize": "body-size",
    "basicAuth.secretName": "auth-secret",
    "basicAuth.secretType": "auth-secret-type",
    "basicAuth.realm": "auth-realm",
}
"""By field of a TrafficPolicy, the annotation that means the same."""
BACKEND: Final[Mapping[str, str]] = {
    "balance.algorithm": "balance",
    "balance.header": "balance-header",
    "timeouts.connect": "timeout-connect",
    "timeouts.server": "timeout-server",
    "timeouts.queue": "timeout-queue",
    "timeouts.tunnel": "timeout-tunnel",
    "healthCheck.path": "health-check-path",
    "healthCheck.interval": "health-check-interval",
    "healthCheck.rise": "health-check-rise",
    "healthCheck.fall": "health-check-fall",
    "connectionsPerEndpoint": "pod-connections",
    "redispatch": "redispatch",
    "proxyProtocol": "proxy-protocol",
    "sessionCookie.sameSite": "session-cookie-samesite",
    "sessionCookie.secure": "session-cookie-secure",
    "sessionCookie.changeOnFailure": "session-cookie-change-on-failure",
}
"""The fields of a BackendPolicy."""
_NEEDED: Final = {
    "basicAuth": "basicAuth.secretName",
    "healthCheck": "healthCheck.path",
}
"""The required fields of groups: without them the other fields have no effect."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of a policy's `targetRefs`."""

    group: str
    kind: str
    name: str
    section: str = ""


def read_targets(spec: object) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    refs = spec.get("targetRefs") if isinstance(spec, dict) else None
    if not isinstance(refs, list) or not refs:
        return (), ("targetRefs is empty",)
    found, strange = [], []
    for index, ref in enumerate(refs):
        target = _read_target(ref) if isinstance(ref, dict) else None
        if target is None:
            strange.append(f"targetRefs[{index}] is no reference")
        else:
            found.append(target)
    return tuple(dict.fromkeys(found)), tuple(strange)


def _read_target(ref: Mapping[object, object]) -> Target | None:
    words = [ref.get(key) or "" for key in ("group", "kind", "name", "sectionName")]
    group, kind, name, section = texts = [word if isinstance(word, str) else "" for word in words]
    return Target(group, kind, name, section) if texts == words and kind and name else None


def read_fields(
    spec: Mapping[object, object], fields: Mapping[str, str]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Read the fields of a policy as values of annotations, and the errors in them."""
    values, strange = {}, []
    found = dict(_list_fields({key: value for key, value in spec.items() if key != "targetRefs"}, fields))
    for path, value in found.items():
        if path not in fields:
            strange.append(f"{path[:80]} is an unknown field")
            continue
        try:
            values[fields[path]] = READERS[fields[path]](_write_as_annotation(value))
        except ValueError as error:
            strange.append(f"{path}: {str(value)[:60]!r}: {error}")
    for group, needed in _NEEDED.items():
        if group in spec and needed not in found:
            strange.append(f"{needed} is missing")
    return values, tuple(strange)


def _list_fields(spec: Mapping[object, object], fields: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """Yield all fields by their paths. Of the known groups, yield their fields."""
    groups = {path.partition(".")[0] for path in fields if "." in path}
    for key, value in spec.items():
        if key in groups and isinstance(value, dict):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items())
        else:
            yield str(key), value


def _write_as_annotation(value: object) -> str:
    """Write a value as the text of an annotation; raise ValueError for other types."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | str):
        return str(value).strip()
    if isinstance(value, list) and all(isinstance(each, str) and "," not in each for each in value):
        return ",".join(value)
    raise ValueError("allowed: a text, a number, true, false, or a list of texts")
