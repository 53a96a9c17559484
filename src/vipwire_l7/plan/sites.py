"""The plan of Ingresses and Gateways as one value, which `haproxy` reads.

A request enters at a *frontend*, belongs to a *site* (its host), takes the best *route* there, which may lead to a
*choice* (conditions, weights), and ends at a *pool*. The pool's policy has all other settings.
"""

import enum
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire_l7.plan.policy import PLAIN, Policy
from vipwire_l7.watch.objects import BackendEndpoint, BackendPort, KeyEnum

UNAVAILABLE = "unavailable"
"""The pool that answers 503 for a path without its Service."""
CLOSED = "closed"
"""The pool that answers 503 for a denied path, since its access controls are invalid."""
BROKEN = "broken"
"""The pool that answers 500 for a route whose backend cannot be resolved, as the Gateway API asks."""
REFUSED = "refused"
"""The pool that closes connections: BROKEN without HTTP."""
NOWHERE = "nowhere"
"""The pool that answers 404 for a path without a rule."""
ANSWERS = frozenset({UNAVAILABLE, CLOSED, BROKEN, REFUSED, NOWHERE})
"""The pools without endpoints: HAProxy itself answers."""
EVERY_HOST = "*"
"""The site of rules without a host."""


class Match(KeyEnum):
    """How a route compares paths. Exact wins over expressions, these over prefixes; then the longest wins."""

    EXACT = "exact"
    EXPRESSION = "expression"
    PREFIX = "prefix"


ROOT = (Match.PREFIX, "")
"""Matches all paths of a site that have no other route."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path of a site and its target: the name of a pool or of a choice. A prefix has no slash at its end."""

    site: str
    match: Match
    path: str
    target: str
    owner: ObjectName
    kind: str = "Ingress"
    """The kind of the owner."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The endpoints of one Service port under one policy. `external` is a DNS name in their place.

    Without a Service, HAProxy itself answers by the policy.
    """

    name: str
    service: ObjectName
    port: BackendPort
    policy: Policy
    external: str = ""


class Aspect(enum.Enum):
    """The part of a request that a condition compares."""

    METHOD = "method"
    HEADER = "header"
    COOKIE = "cookie"
    QUERY = "query"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition: a part of the request equals `value`, or matches it as a regular expression."""

    aspect: Aspect
    value: str
    name: str = ""
    expression: bool = False
    split: bool = False
    """Whether to compare the comma-separated values of a header one by one."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A condition that is true for `part` of `whole` requests, at random."""

    part: int
    whole: int


@dataclass(frozen=True, slots=True)
class SessionBound:
    """True if the client's session cookie names `pool` and the pool has an endpoint.

    `mark` is the start of the value of their cookie, `name`.
    """

    name: str
    mark: str
    pool: str


Condition: TypeAlias = Comparison | Chance | SessionBound


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a choice: the target if all its conditions are true."""

    target: str
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Steps by which a request finds its target: the first step whose conditions are true wins."""

    name: str
    steps: tuple[Step, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.target for step in self.steps))

    @property
    def whole(self) -> int:
        """The sum of the weights, 0 without weights."""
        return next((each.whole for step in self.steps for each in step.when if isinstance(each, Chance)), 0)


@dataclass(frozen=True, slots=True)
class ObjectField:
    """An object and its field that asks for a part of the plan, for messages about that part."""

    kind: str
    name: ObjectName
    field: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, and its SNI names; without any, the names in the certificate."""

    name: str
    pem: str = field(repr=False)
    hosts: tuple[str, ...] = ()
    askers: tuple[ObjectField, ...] = ()
    listed: bool = True
    """Whether the operator's own frontend serves the certificate. Other frontends list theirs."""


class Mode(KeyEnum):
    """The protocol that a frontend reads."""

    HTTP = "http"
    HTTPS = "https"
    TCP = "tcp"
    TLS = "tls"
    """TLS passed through, by SNI."""
    TLS_ENDED = "tls ended"
    """TLS terminated, with its content passed on as TCP."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """An address and port beside the operator's own (`Layout`). `bind` is `*:80`, "" if only other frontends connect.

    The hosts of its routes end with `mark`, which no other frontend has. `certificates` are names of certificates,
    each with its hosts.
    """

    name: str
    bind: str
    mark: str
    mode: Mode = Mode.HTTP
    certificates: tuple[tuple[str, tuple[str, ...]], ...] = ()
    has_default: bool = False
    """Whether the first certificate is for all names without one. Otherwise the operator's default certificate is."""
    choices: tuple[Choice, ...] = ()
    hosts: frozenset[str] = frozenset()
    """Hosts of listeners without routes: requests for these hosts never match a wildcard."""
    clients: str = ""
    """The CA file for client certificates, if HAProxy asks for any."""
    lets_strangers_in: bool = False
    """Whether clients without such a certificate may connect too."""

    @property
    def inner_target(self) -> str:
        """The backend by which another frontend connects to this one."""
        return f"to-{self.name}"


@dataclass(frozen=True, slots=True)
class DatagramFrontend:
    """A UDP address (`*` for all) and port, which the relay serves since HAProxy has no UDP.

    The endpoints of Services share the clients by weight. The relay drops the share of None.
    """

    name: str
    bind: str
    port: int
    shares: tuple[tuple[Pool | None, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SitePlan:
    """The plan of all hosts. `sites` are those that have rules; `default` is the target without a match."""

    routes: tuple[Route, ...] = ()
    pools: tuple[Pool, ...] = ()
    choices: tuple[Choice, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    default: str = ""
    frontends: tuple[Frontend, ...] = ()
    """The frontends beside the operator's own addresses."""
    authorities: tuple[tuple[str, str], ...] = ()
    """Files named by policies, with their content: CA certificates in PEM, and bodies of responses."""

    @property
    def sites(self) -> frozenset[str]:
        return frozenset(route.site for route in self.routes)

    @property
    def all_choices(self) -> tuple[Choice, ...]:
        return (*self.choices, *(choice for frontend in self.frontends for choice in frontend.choices))


@dataclass(frozen=True, slots=True)
class Server:
    """An endpoint as a server of a pool. `weight` is 0 to 256."""

    endpoint: BackendEndpoint
    port: int
    weight: int = 16


@dataclass(frozen=True, slots=True)
class PathSensitive:
    """The places where a Pod's reading of a request matters.

    `sites` are those whose paths lead to different places. `choices` are those whose conditions decide which access
    controls a request meets, with these conditions; where GET has some, a condition for HEAD is added.
    """

    sites: frozenset[str] = frozenset()
    choices: Mapping[str, tuple[Comparison, ...]] = field(default_factory=dict)


def find_path_sensitive(plan: SitePlan) -> PathSensitive:
    # A generated response in place of an endpoint counts as an access control too.
    guards: dict[str, tuple[object, ...]] = {
        pool.name: pool.policy.guard or (pool.policy.reply and (pool.policy.reply,)) or () for pool in plan.pools
    }
    guards[CLOSED] = (CLOSED,)
    choices = {choice.name: choice for choice in plan.all_choices}
    for name in choices:
        _collect_guards(name, choices, guards)
    deciding = {name: tuple(_list_deciding_conditions(choice, guards)) for name, choice in choices.items()}
    by_path = {
        name
        for name, choice in choices.items()
        if any(each.aspect is Aspect.PATH for each in _list_conditions(choice))
    }
    found: dict[str, set[str]] = {}
    for route in plan.routes:
        found.setdefault(route.site, set()).add(route.target)
    for site in found.keys() - {route.site for route in plan.routes if (route.match, route.path) == ROOT}:
        found[site].add(plan.default)
    apart = {site for site, targets in found.items() if len(targets) > 1 or targets & by_path}
    return PathSensitive(frozenset(apart), {name: conditions for name, conditions in deciding.items() if conditions})


def _collect_guards(
    name: str, choices: Mapping[str, Choice], guards: dict[str, tuple[object, ...]]
) -> tuple[object, ...]:
    """Record the access controls of a target; a choice has the access controls of its targets."""
    if name not in guards and name in choices:
        inner = tuple(_collect_guards(target, choices, guards) for target in choices[name].targets)
        guards[name] = inner if any(inner) else ()
    return guards.get(name, ())


def _list_conditions(choice: Choice) -> Iterator[Comparison]:
    return (each for step in choice.steps for each in step.when if isinstance(each, Comparison))


def _list_deciding_conditions(choice: Choice, guards: Mapping[str, tuple[object, ...]]) -> Iterator[Comparison]:
    """Yield the conditions of a choice if they decide which access controls a request meets."""
    if len({guards.get(step.target, ()) for step in choice.steps}) < 2:  # all have the same access controls
        return
    yield from _list_conditions(choice)
    if any(guards.get(step.target) for step in choice.steps if Comparison(Aspect.METHOD, "GET") in step.when):
        yield Comparison(Aspect.METHOD, "HEAD")


def find_sites_with_guarding_expressions(plan: SitePlan) -> tuple[str, ...]:
    """Return the sites where a regular expression leads to a pool with access controls."""
    guards = {pool.name: bool(pool.policy.guard) for pool in plan.pools} | {CLOSED: True}
    for choice in plan.choices:
        guards[choice.name] = any(guards.get(name) for name in choice.targets)
    found = {each.site for each in plan.routes if each.match is Match.EXPRESSION and guards.get(each.target)}
    return tuple(sorted(found))


def name_certificate(secret: ObjectName) -> str:
    """Name the certificate of a Secret. A namespace has no underscore, so no two Secrets share a name."""
    return f"{secret.namespace}_{secret.name}.pem"


def name_pool(service: ObjectName, port: int, policy: Policy) -> str:
    """Name a pool: `namespace:service:port`, and a digest of its policy unless it is the plain one.

    The parts are DNS labels, so that no two pools share a name.
    """
    return _name_plain_pool(service, port) if policy is PLAIN else _name_pool(service, port, policy)


@lru_cache(maxsize=16384)
def _name_plain_pool(service: ObjectName, port: int) -> str:
    return f"{service.namespace}:{service.name}:{port}"


@lru_cache(maxsize=16384)
def _name_pool(service: ObjectName, port: int, policy: Policy) -> str:
    plain = _name_plain_pool(service, port)
    return plain if policy == PLAIN else f"{plain}:{_hash_text(repr(astuple(policy)))}"


def make_choice(steps: tuple[Step, ...]) -> Choice:
    """Make a choice, named by its content. The name ends with the sum of the weights."""
    return Choice(f"choice:{_hash_text(repr(steps))}:{Choice('', steps).whole}", steps)


def _hash_text(text: str) -> str:
    """Hash a text. Tenants share the names made from it, so it must resist collisions."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]
