"""Validates ConfigMaps, Secrets, Events and Leases (pkg/apis/core and coordination, validation). Pure."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, forbidden, invalid, required, too_long
from vipwire_up.api.objects.resource import Object

_KEY: Final = re.compile("[-._a-zA-Z0-9]+")
_NO_KEY: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_MOST_BYTES: Final = 1 << 20
_STAYS: Final = "field is immutable when `immutable` is set"
_REDACTED: Final = "<secret contents redacted>"
_KEYS_OF_TYPE: Final = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}
_ACCOUNT: Final = "kubernetes.io/service-account.name"


def check_config_map(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a ConfigMap."""
    texts, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in texts:
        yield from _check_key(key, "data")
        if key in binary:
            yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        yield from _check_key(key, "binaryData")
    if sum(len(text.encode()) for text in texts.values()) + _bytes_in(binary) > _MOST_BYTES:
        yield too_long("", _MOST_BYTES)
    yield from _check_immutable(new, old)


def check_secret(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a Secret."""
    if old and old.get("type") != new.get("type"):
        yield invalid("type", new.get("type"), "field is immutable")
    yield from _check_immutable(new, old)
    data = new.get("data") or {}
    for key in data:
        yield from _check_key(key, "data")
    if _bytes_in(data) > _MOST_BYTES:
        yield too_long("data", _MOST_BYTES)
    yield from _check_type(new, data)


def _check_type(new: Object, data: Mapping[str, str]) -> Iterator[Cause]:
    kind = str(new.get("type") or "")
    for key in _KEYS_OF_TYPE.get(kind, ()):
        if key not in data or (kind.endswith("ssh-auth") and not data[key]):
            yield required(f"data[{key}]")
        elif key.startswith(".docker") and (problem := _json_problem(data[key])):
            yield invalid(f"data[{key}]", _REDACTED, problem)
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        yield required("data[username]")
        yield required("data[password]")
    if kind == "kubernetes.io/service-account-token" and not at(new, "metadata", "annotations", _ACCOUNT):
        yield required(f"metadata.annotations[{_ACCOUNT}]")


def _json_problem(encoded: str) -> str:
    try:
        found: Any = json.loads(base64.b64decode(encoded))
    except (ValueError, RecursionError) as error:
        return str(error)
    return "" if isinstance(found, dict) else "json: cannot unmarshal into a map"


def _check_key(key: str, part: str) -> Iterator[Cause]:
    path = f"{part}[{key}]"
    if len(key) > 253:
        yield invalid(path, key, "must be no more than 253 characters")
    if not _KEY.fullmatch(key):
        yield invalid(path, key, _NO_KEY)
    if key in (".", ".."):
        yield invalid(path, key, f"must not be '{key}'")
    elif key.startswith(".."):
        yield invalid(path, key, "must not start with '..'")


def _bytes_in(data: Mapping[str, str]) -> int:
    return sum(len(text.rstrip("=")) * 3 // 4 for text in data.values())


def _check_immutable(new: Object, old: Object | None) -> Iterator[Cause]:
    if old and old.get("immutable"):
        for part in ("immutable", "data", "binaryData"):
            if (new.get(part) or None) != (old.get(part) or None):
                yield forbidden(part, _STAYS)


def check_event(new: Object, _old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in an Event: it is in the namespace of what it is about."""
    about = at(new, "involvedObject", "namespace") or ""
    namespace = new["metadata"].get("namespace", "")
    if about != namespace and not (about == "" and namespace == "default"):
        yield invalid("involvedObject.namespace", about, "does not match event.namespace")


def check_lease(new: Object, _old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a Lease."""
    spec = new.get("spec") or {}
    for name, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        value = spec.get(name)
        if value is not None and value < least:
            yield invalid(f"spec.{name}", value, f"must be greater than {'' if least else 'or equal to '}0")
    if spec.get("preferredHolder") and not spec.get("strategy"):
        yield forbidden("spec.preferredHolder", "may only be specified when `strategy` is defined")
