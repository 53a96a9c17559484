"""Finds the object and the verb of a request: paths and methods of Kubernetes' API. Pure."""

from dataclasses import dataclass
from typing import Final

from vipwire_up.api.kinds.catalogue import SERVED
from vipwire_up.api.objects.errors import page_not_found
from vipwire_up.api.objects.parameters import Parameters
from vipwire_up.api.objects.resource import Resource

_BY_PATH: Final = {(resource.base, resource.plural): resource for resource in SERVED}
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}
READING: Final = ("get", "list", "watch")
"""Verbs that change nothing."""


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a request. `verb` is Kubernetes' authorization verb: get, list, watch, create and so on."""

    resource: Resource
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def find_route(method: str, path: str, query: Parameters) -> Route:
    parts = path.strip("/").split("/")
    size = 2 if parts[0] == "api" else 3
    base, rest = "/" + "/".join(parts[:size]), parts[size:]
    old_watch = bool(rest) and rest[0] == "watch"  # /api/v1/watch/services, which old clients use
    rest = rest[1:] if old_watch else rest
    namespace = ""
    if (
        len(rest) > 2
        and rest[0] == "namespaces"
        and (base, rest[2]) in _BY_PATH
        and _BY_PATH[base, rest[2]].namespaced
    ):
        namespace, rest = rest[1], rest[2:]
    resource = _BY_PATH.get((base, rest[0])) if rest else None
    if resource is None or len(rest) > 3 or (resource.namespaced and not namespace and len(rest) > 1):
        raise page_not_found()
    name, subresource = (*rest[1:], "", "")[:2]
    if subresource and not _has_subresource(resource, subresource):
        raise page_not_found(f"{resource.plural}/{subresource} is not available, because vipwire runs no Pods")
    watch = old_watch or query.flag("watch")
    return Route(resource, _choose_verb(method, name, watch=watch), namespace, name, subresource)


def _has_subresource(resource: Resource, name: str) -> bool:
    return (name == "status" and resource.has_status) or (name == "finalize" and resource.plural == "namespaces")


def _choose_verb(method: str, name: str, *, watch: bool) -> str:
    verb = _VERBS.get(method)
    if verb is None:
        raise page_not_found()
    if verb == "get" and (watch or not name):
        return "watch" if watch else "list"
    return "deletecollection" if verb == "delete" and not name else verb
