"""Pages about no object: discovery, OpenAPI, version, and health as kube-apiserver writes it.

    /livez, /healthz     200: the server answers
    /readyz              200 ok if all parts run, else 500 with all checks
    /readyz?verbose      all checks in any case; exclude=NAME leaves one out
    /readyz/NAME         one check

Only users with a role see why a check fails; others see `reason withheld`.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.answers import discovery, openapi
from vipwire_up.api.objects.errors import page_not_found
from vipwire_up.api.objects.object import encode

_JSON: Final = "application/json"
_OLD_PROTOBUF: Final = "/swagger-2.0.0.pb-v1"  # the path that clients try after a refusal at /openapi/v2
_AGGREGATED: Final = "apidiscovery.k8s.io"
CUSTOM_KINDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
"""kubectl looks here for kinds that it does not know before it applies the others of a file: the list is empty."""
_ROOTS: Final = (
    "/api",
    "/apis",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/readyz",
    "/version",
)


@dataclass(frozen=True, slots=True)
class Page:
    """A body with its media type."""

    body: bytes
    media: str = _JSON

    @property
    def tag(self) -> str:
        return f'"{_hash_body(self.body)}"'


@lru_cache(64)
def _hash_body(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest().upper()


def read_page(path: str, accept: str, host: str) -> Page:
    """Return a page; raise ApiError 404 for an unknown path, 406 for an unsupported media type."""
    path = path.rstrip("/") or "/"
    if path in ("/api", "/apis"):
        return _read_root_page(path, accept, host)
    if path in ("/openapi/v2", _OLD_PROTOBUF):
        return _read_openapi_v2(path, accept)
    if path == "/version":
        return Page(encode(discovery.build_version()))
    if path.startswith("/openapi/v3"):
        return _read_openapi_v3(path)
    return _read_plain_page(path)


def _read_root_page(path: str, accept: str, host: str) -> Page:
    for choice in accept.split(","):
        if f"g={_AGGREGATED}" in choice and "application/json" in choice:
            version = "v2" if "v=v2;" in f"{choice.replace(' ', '')};" else "v2beta1"
            return _read_aggregated_discovery(path, version)
        if choice.strip().partition(";")[0] in (_JSON, "*/*", ""):
            break
    return Page(encode(discovery.build_api_versions(host) if path == "/api" else discovery.build_api_group_list()))


@cache
def _read_aggregated_discovery(path: str, version: str) -> Page:
    names = [group for group in discovery.resources_by_group() if bool(group) == (path == "/apis")]
    media = f"{_JSON};g={_AGGREGATED};v={version};as=APIGroupDiscoveryList"
    return Page(encode(discovery.build_aggregated_discovery(names, version)), media)


def _read_openapi_v2(path: str, accept: str) -> Page:
    if "protobuf" in accept or path == _OLD_PROTOBUF:
        return Page(openapi.encode_document_proto(), openapi.PROTOBUF)
    if accept and not any(word in accept for word in ("json", "*/*")):
        raise ApiError(406, "NotAcceptable", f"only {_JSON} and {openapi.PROTOBUF} are served")
    return Page(_encode_document_v2())


@cache
def _encode_document_v2() -> bytes:
    return encode(openapi.build_document_v2())


def _read_openapi_v3(path: str) -> Page:
    if path == "/openapi/v3":
        return Page(openapi.build_index_v3())
    base = path.removeprefix("/openapi/v3")
    if base not in discovery.resources_by_base_path():
        raise page_not_found()
    return Page(openapi.build_document_v3(base))


def _read_plain_page(path: str) -> Page:
    known: dict[str, Any] = {
        "/": {"paths": sorted([*_ROOTS, *_list_group_paths()])},
        CUSTOM_KINDS: {"kind": "CustomResourceDefinitionList", "apiVersion": "apiextensions.k8s.io/v1", "items": []}
        | {"metadata": {"resourceVersion": "1"}},
    }
    known |= {f"/apis/{group}": discovery.build_api_group(group) for group in discovery.resources_by_group() if group}
    known |= {
        base: discovery.build_resource_list(members) for base, members in discovery.resources_by_base_path().items()
    }
    if path not in known:
        raise page_not_found()
    return Page(encode(known[path]))


def _list_group_paths() -> list[str]:
    return [
        *(f"/apis/{group}" for group in discovery.resources_by_group() if group),
        *discovery.resources_by_base_path(),
    ]


_PAGES: Final = ("healthz", "livez", "readyz")
_PING: Final = {"ping": ""}


def read_health(
    path: str,
    troubles: Mapping[str, str],
    *,
    verbose: bool,
    left_out: Collection[str],
    trusted: bool,
    notes: Mapping[str, str],
) -> tuple[int, str] | None:
    """Answer a health page with code and text, None for other paths; raise ApiError 404 for an unknown check.

    `troubles` maps each part to its problem, "" for none; `notes` has problems inside of working parts. `trusted`
    callers see both.
    """
    page, _, one = path.strip("/").partition("/")
    if page not in _PAGES:
        return None
    parts, notes = ({_name_check(name): why for name, why in each.items()} for each in (troubles, notes))
    checks = _PING | (parts if page == "readyz" else {})
    if one and one not in checks:
        raise page_not_found()
    if one:
        checks = {one: checks[one]}
    checks = {name: why for name, why in checks.items() if name not in left_out}
    failed = any(checks.values())
    if not failed and not verbose:
        return 200, "ok"
    lines = [_format_check_line(name, why, notes.get(name, ""), trusted=trusted) for name, why in checks.items()]
    return 500 if failed else 200, "\n".join([*lines, f"{page} check {'failed' if failed else 'passed'}", ""])


def _name_check(part: str) -> str:
    return f"part-{part.lower().replace(' ', '-')}"


def _format_check_line(name: str, why: str, note: str, *, trusted: bool) -> str:
    if not why:
        return f"[+]{name} ok" + (f", but {note}" if note and trusted else "")
    return f"[-]{name} failed: {why if trusted else 'reason withheld'}"
