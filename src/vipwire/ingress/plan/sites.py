"""The plan of all Ingresses: the values between planning and HAProxy, and their names there."""

import enum
import hashlib
from dataclasses import astuple, dataclass, field
from functools import lru_cache

from vipwire.ingress.plan.policy import Canary, Policy
from vipwire.ingress.watch.objects import BackendEndpoint, BackendPort, IngressKind
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem

UNAVAILABLE = "unavailable"
"""The pool that answers 503 for a path whose Service is missing."""
CLOSED = "closed"
"""The pool that answers 503 for a path that had to be closed, since what guards it cannot be had."""
EVERY_HOST = "*"
"""The site of rules without a host."""


class Match(enum.Enum):
    """The comparison of a route's path. Exact wins over expressions, those over prefixes; then the longest."""

    EXACT = "exact"
    EXPRESSION = "expression"
    PREFIX = "prefix"


ROOT = (Match.PREFIX, "")
"""All paths of a site for which there is no other route."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path of a site and what it leads to: the name of a pool or of a split. A prefix has no slash at its end."""

    site: str
    match: Match
    path: str
    target: str
    owner: ObjectName


@dataclass(frozen=True, slots=True)
class Pool:
    """The endpoints of one Service port under one policy. `external` is a DNS name in their place."""

    name: str
    service: ObjectName
    port: BackendPort
    policy: Policy
    external: str = ""


@dataclass(frozen=True, slots=True)
class Split:
    """A route that canaries share: what each takes from `main`, by names of pools, the oldest Ingress's first."""

    name: str
    main: str
    parts: tuple[tuple[str, Canary], ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, and the names for which a client gets it (SNI); none are those that it names."""

    name: str
    pem: str = field(repr=False)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SitePlan:
    """The plan of all hosts. `sites` are those that have rules; `default` leads where no rule matches."""

    routes: tuple[Route, ...] = ()
    pools: tuple[Pool, ...] = ()
    splits: tuple[Split, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    default: str = ""
    admitted: tuple[ObjectName, ...] = ()
    problems: tuple[Problem, ...] = ()
    named: frozenset[tuple[IngressKind, ObjectName]] = frozenset()
    """The Ingresses that are ours, and the Services and Secrets that they name, whether those are there or not."""

    @property
    def sites(self) -> frozenset[str]:
        """Name the hosts that have rules."""
        return frozenset(route.site for route in self.routes)


@dataclass(frozen=True, slots=True)
class Server:
    """An endpoint as a pool uses it. `weight` 0 to 256."""

    endpoint: BackendEndpoint
    port: int
    weight: int = 16


def has_guarded_paths(plan: SitePlan) -> bool:
    """Report whether paths of one host are guarded differently: then it matters what a server takes a path for."""
    guards: dict[str, tuple[object, ...]] = {pool.name: pool.policy.guard for pool in plan.pools}
    guards[CLOSED] = (CLOSED,)
    for split in plan.splits:
        guards[split.name] = tuple(guards.get(name, ()) for name in (split.main, *(part for part, _ in split.parts)))
    found: dict[str, set[tuple[object, ...]]] = {}
    for route in plan.routes:
        found.setdefault(route.site, set()).add(guards.get(route.target, ()))
    if plan.default:
        for site in found.keys() - {route.site for route in plan.routes if (route.match, route.path) == ROOT}:
            found[site].add(guards.get(plan.default, ()))
    return any(len(each) > 1 for each in found.values())


def sites_with_guarding_expressions(plan: SitePlan) -> tuple[str, ...]:
    """Name the sites where a regular expression leads to what is guarded."""
    guards = {pool.name: bool(pool.policy.guard) for pool in plan.pools} | {CLOSED: True}
    for split in plan.splits:
        guards[split.name] = any(guards.get(name) for name in (split.main, *(part for part, _ in split.parts)))
    found = {each.site for each in plan.routes if each.match is Match.EXPRESSION and guards.get(each.target)}
    return tuple(sorted(found))


def certificate_name(secret: ObjectName) -> str:
    """Name the certificate of a Secret; a namespace has no underscore, so that no two share a name."""
    return f"{secret.namespace}_{secret.name}.pem"


@lru_cache(maxsize=16384)
def pool_name(service: ObjectName, port: int, policy: Policy) -> str:
    """Name a pool: `namespace:service:port`, and a digest of what is asked for it, if anything is.

    The parts are DNS labels, so that no two pools share a name.
    """
    plain = f"{service.namespace}:{service.name}:{port}"
    return plain if policy == Policy() else f"{plain}:{_digest(repr(astuple(policy)))}"


def split_name(main: str, parts: tuple[tuple[str, Canary], ...]) -> str:
    """Name a split, by its content."""
    return f"split:{_digest(repr((main, parts)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
