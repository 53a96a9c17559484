"""Pages that are about no object: discovery, OpenAPI and version."""

import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import no_such_page
from vipwire_up.api.objects.object import encode
from vipwire_up.api.openapi import discovery, documents, protobuf_document

_JSON: Final = "application/json"
_OLD_PROTOBUF: Final = "/swagger-2.0.0.pb-v1"  # where clients look that were refused at /openapi/v2
_AGGREGATED: Final = "apidiscovery.k8s.io"
CUSTOM_KINDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
"""Where kubectl looks for a kind that it does not know, before it applies the others of a file: there are none."""
_ROOTS: Final = (
    "/api",
    "/api/v1",
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
        """The ETag of the content."""
        return f'"{_digest(self.body)}"'


@lru_cache(64)
def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest().upper()


def read_page(path: str, accept: str, host: str) -> Page:
    """Return a page; raise ApiError 404 if there is none, 406 if not in a form that is asked for."""
    path = path.rstrip("/") or "/"
    if path in ("/api", "/apis"):
        return _root(path, accept, host)
    if path in ("/openapi/v2", _OLD_PROTOBUF):
        return _openapi_v2(path, accept)
    if path == "/version":
        return Page(encode(discovery.version()))
    if path.startswith("/openapi/v3"):
        return _openapi_v3(path)
    return _plain(path)


def _root(path: str, accept: str, host: str) -> Page:
    for choice in accept.split(","):
        if f"g={_AGGREGATED}" in choice and "application/json" in choice:
            version = "v2" if "v=v2;" in f"{choice.replace(' ', '')};" else "v2beta1"
            return _aggregated(path, version)
        if choice.strip().partition(";")[0] in (_JSON, "*/*", ""):
            break
    return Page(encode(discovery.api_versions(host) if path == "/api" else discovery.api_groups()))


@cache
def _aggregated(path: str, version: str) -> Page:
    names = [group for group in discovery.groups() if bool(group) == (path == "/apis")]
    media = f"{_JSON};g={_AGGREGATED};v={version};as=APIGroupDiscoveryList"
    return Page(encode(discovery.aggregated(names, version)), media)


def _openapi_v2(path: str, accept: str) -> Page:
    if "protobuf" in accept or path == _OLD_PROTOBUF:
        return Page(protobuf_document.document_proto(), protobuf_document.MEDIA_TYPE)
    if accept and not any(word in accept for word in ("json", "*/*")):
        raise ApiError(406, "NotAcceptable", f"only {_JSON} and {protobuf_document.MEDIA_TYPE} are served")
    return Page(_document_v2())


@cache
def _document_v2() -> bytes:
    return encode(documents.document_v2())


def _openapi_v3(path: str) -> Page:
    if path == "/openapi/v3":
        return Page(documents.index_v3())
    for group in discovery.groups():
        if path == f"/openapi/v3/{f'apis/{group}' if group else 'api'}/v1":
            return Page(documents.document_v3(group))
    raise no_such_page()


def _plain(path: str) -> Page:
    known: dict[str, Any] = {
        "/": {"paths": sorted([*_ROOTS, *_group_paths()])},
        "/api/v1": discovery.resource_list(""),
        CUSTOM_KINDS: {"kind": "CustomResourceDefinitionList", "apiVersion": "apiextensions.k8s.io/v1", "items": []}
        | {"metadata": {"resourceVersion": "1"}},
    }
    for group in filter(None, discovery.groups()):
        known[f"/apis/{group}"] = discovery.api_group(group)
        known[f"/apis/{group}/v1"] = discovery.resource_list(group)
    if path not in known:
        raise no_such_page()
    return Page(encode(known[path]))


def _group_paths() -> list[str]:
    return [f"/apis/{group}{version}" for group in discovery.groups() if group for version in ("", "/v1")]
