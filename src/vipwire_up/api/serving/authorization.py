"""Authorization: four roles, which follow from a user's groups. Pure.

    admin   group system:masters     everything
    node    group system:nodes       what a service proxy and a kubelet of this system read and report
    view    group vipwire:view       reads everything but Secrets
    ingress group vipwire:ingress    what an Ingress or Gateway controller reads and reports; of Secrets only
                                     those that Ingresses and Gateways name (named_secrets.py)

All other users may only read version, health and the root of discovery.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.kinds.catalogue import SERVED
from vipwire_up.api.kinds.gateway import GATEWAY_CLASSES, GATEWAY_RESOURCES
from vipwire_up.api.kinds.policies import POLICY_RESOURCES
from vipwire_up.api.objects.errors import forbidden_object
from vipwire_up.api.serving.route import Route

_READ: Final = frozenset({"get", "list", "watch"})
_WRITE: Final = frozenset({"create", "update", "patch"})
_ALL: Final = _READ | _WRITE | {"delete"}
_NOT_SHOWN: Final = ("secrets", "*")  # not for role view; `*` would include Secrets

_NODE_RIGHTS: Final = {
    **dict.fromkeys(("services", "endpoints", "endpointslices", "namespaces", "configmaps"), _READ),
    **dict.fromkeys(("servicecidrs", "ipaddresses", "ingresses", "ingressclasses"), _READ),
    "nodes": _ALL,  # controllers/node_restriction.py limits a machine to its own Node
    "pods": _READ | _WRITE,
    "nodes/status": _READ | _WRITE,
    "pods/status": _READ | _WRITE,
    "events": _READ | _WRITE,
    "leases": _ALL,
}


_GATEWAY_PLURALS: Final = tuple(each.plural for each in (*GATEWAY_RESOURCES, GATEWAY_CLASSES, *POLICY_RESOURCES))
_INGRESS_RIGHTS: Final = {
    **dict.fromkeys(("services", "endpointslices", "ingresses", "ingressclasses", "secrets"), _READ),
    **dict.fromkeys(("namespaces", "configmaps", *_GATEWAY_PLURALS), _READ),
    **dict.fromkeys((f"{each}/status" for each in _GATEWAY_PLURALS), _READ | _WRITE),
    "pods": frozenset({"get"}),  # whether an endpoint at a node's address is a Pod with hostNetwork
    "ingresses/status": _READ | _WRITE,
    "events": _READ | _WRITE,
    "leases": _READ | _WRITE,
}


class Role(Enum):
    """The rights of a group."""

    ADMIN = "system:masters"
    NODE = "system:nodes"
    VIEW = "vipwire:view"
    INGRESS = "vipwire:ingress"


@dataclass(frozen=True, slots=True)
class User:
    """The caller: name and groups of a certificate or token, and the certificate's serial number."""

    name: str
    groups: tuple[str, ...] = ()
    serial: int = field(default=0, compare=False)


ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))
UNNAMED: Final = "no Ingress and no Gateway refers to this Secret"
_OPEN: Final = frozenset({"/version", "/healthz", "/livez", "/readyz"})


def may_read_page(user: User, path: str) -> bool:
    """Report whether a user may read a page about no object: discovery, OpenAPI, version, health."""
    return path.rstrip("/") in _OPEN or path.startswith(("/livez/", "/readyz/")) or has_role(user)


def has_role(user: User) -> bool:
    return bool(_roles_of(user.groups))


def list_allowed_pages(user: User) -> tuple[str, ...]:
    return ("*",) if _roles_of(user.groups) else tuple(sorted((*_OPEN, "/livez/*", "/readyz/*")))


def allows_route(user: User, route: Route) -> bool:
    plural = route.resource.plural
    return may_use(user, route.verb, f"{plural}/{route.subresource}" if route.subresource else plural)


def may_use(user: User, verb: str, what: str) -> bool:
    """Report whether a user may use a verb on a kind, by its plural, or on a subresource: `nodes/status`."""
    roles = _roles_of(user.groups)
    if Role.ADMIN in roles:
        return True
    if Role.VIEW in roles and verb in _READ and what.partition("/")[0] not in _NOT_SHOWN:
        return True
    if Role.INGRESS in roles and verb in _INGRESS_RIGHTS.get(what, frozenset()):
        return True
    return Role.NODE in roles and verb in _NODE_RIGHTS.get(what, frozenset())


def may_read_only_named(user: User, what: str) -> bool:
    """Report whether a user who may read a kind may read only named objects: Secrets, for the role ingress."""
    return what == "secrets" and Role.ADMIN not in _roles_of(user.groups)


def list_rules(user: User) -> Iterator[tuple[list[str], str, str]]:
    """Yield verbs that a user may use, with the API group and the kind or subresource."""
    roles = _roles_of(user.groups)
    if Role.ADMIN in roles:
        yield ["*"], "*", "*"
        return
    for resource in {(each.group, each.plural): each for each in SERVED}.values():
        for what in (resource.plural, f"{resource.plural}/status") if resource.has_status else (resource.plural,):
            if verbs := sorted(verb for verb in _ALL if may_use(user, verb, what)):
                yield verbs, resource.group, what


def forbidden_request(user: User, route: Route, reason: str = "") -> ApiError:
    resource = route.resource
    what = f"{resource.plural}/{route.subresource}" if route.subresource else resource.plural
    where = f' in the namespace "{route.namespace}"' if route.namespace else " at the cluster scope"
    why = f'User "{user.name}" cannot {route.verb} resource "{what}" in API group "{resource.group}"{where}'
    return forbidden_object(resource.id, route.name, f"{why}: {reason}" if reason else why)


def forbidden_page(user: User, path: str, method: str) -> ApiError:
    why = f'User "{user.name}" cannot {method.lower()} path "{path}"'
    return ApiError(403, "Forbidden", f"forbidden: {why}")


def forbidden_impersonation(user: User, wanted: str) -> ApiError:
    """Build the 403 for impersonation: to ignore the headers would act with the caller's own rights."""
    return forbidden_object(
        "users", wanted, f'User "{user.name}" cannot impersonate: vipwire does not support impersonation'
    )


def _roles_of(groups: Iterable[str]) -> set[Role]:
    return {role for role in Role if role.value in groups}
