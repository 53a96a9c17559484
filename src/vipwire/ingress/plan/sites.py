"""What the Ingresses add up to: the values between planning and HAProxy."""

import enum
from dataclasses import dataclass, field

from vipwire.ingress.plan.policy import Canary, Policy
from vipwire.ingress.watch.objects import Endpoint, Kind, ServicePort
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem

UNAVAILABLE = "unavailable"
"""The pool that answers 503: for a path whose Service is missing, or whose Ingress had to be closed."""
EVERY_HOST = "*"
"""The site of rules without a host."""


class Match(enum.Enum):
    """How a route's path is compared. Exact wins over expressions, those over prefixes; then the longest."""

    EXACT = "exact"
    EXPRESSION = "expression"
    PREFIX = "prefix"


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
    port: ServicePort
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
    """All of it. `sites` are the hosts that have rules; `default` leads where no rule matches."""

    routes: tuple[Route, ...] = ()
    pools: tuple[Pool, ...] = ()
    splits: tuple[Split, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    default: str = ""
    admitted: tuple[ObjectName, ...] = ()
    problems: tuple[Problem, ...] = ()
    named: frozenset[tuple[Kind, ObjectName]] = frozenset()
    """The Ingresses that are ours, and the Services and Secrets that they name, whether those are there or not."""

    @property
    def sites(self) -> frozenset[str]:
        """Name the hosts that have rules."""
        return frozenset(route.site for route in self.routes)


@dataclass(frozen=True, slots=True)
class Server:
    """An endpoint as a pool uses it. `weight` 0 to 256."""

    endpoint: Endpoint
    port: int
    weight: int = 16
