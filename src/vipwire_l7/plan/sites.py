"""The plan: what shall be served, whoever asks for it. Ingresses and Gateways become one; `haproxy` reads it.

A request comes in at a *frontend*, is of a *site* (its host), takes the best *route* there, perhaps by way of a
*choice* (conditions, shares), and ends at a *pool*, whose policy has what else is asked for.
"""

import enum
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.plan.policy import Policy
from vipwire_l7.watch.objects import BackendEndpoint, BackendPort, IngressKind

UNAVAILABLE = "unavailable"
"""The pool that answers 503 for a path whose Service is missing."""
CLOSED = "closed"
"""The pool that answers 503 for a path that had to be closed, since what guards it cannot be had."""
BROKEN = "broken"
"""The pool that answers 500 for a route whose backend cannot be had, as the Gateway API asks."""
REFUSED = "refused"
"""The pool that takes no connection: BROKEN where no HTTP is spoken."""
NOWHERE = "nowhere"
"""The pool that answers 404 for a path that no rule has."""
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
    """A path of a site and what it leads to: the name of a pool or of a choice. A prefix has no slash at its end."""

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

    Without a Service, HAProxy answers itself, as the policy says.
    """

    name: str
    service: ObjectName
    port: BackendPort
    policy: Policy
    external: str = ""


class Aspect(enum.Enum):
    """The part of a request that a condition looks at."""

    METHOD = "method"
    HEADER = "header"
    COOKIE = "cookie"
    QUERY = "query"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Compared:
    """A condition: a part of the request is `value`, or matches it as a regular expression."""

    aspect: Aspect
    value: str
    name: str = ""
    expression: bool = False
    split: bool = False
    """Of a header: whether the values between its commas are compared."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A condition that holds for `part` of `whole` requests."""

    part: int
    whole: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition that holds for clients with a session in `pool`, while an endpoint is there.

    `mark` is what the value of their cookie, `name`, begins with.
    """

    name: str
    mark: str
    pool: str


Condition: TypeAlias = Compared | Chance | Bound


@dataclass(frozen=True, slots=True)
class Step:
    """One way of a choice: where it leads if all its conditions hold."""

    target: str
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways to go on with a request: the first step whose conditions hold is taken."""

    name: str
    steps: tuple[Step, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """Name what it may lead to."""
        return tuple(dict.fromkeys(step.target for step in self.steps))


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for something, to be told what becomes of it: an object, and the field of it."""

    kind: str
    name: ObjectName
    field: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, and the names for which a client gets it (SNI); none are those that it names."""

    name: str
    pem: str = field(repr=False)
    hosts: tuple[str, ...] = ()
    askers: tuple[Asker, ...] = ()
    listed: bool = True
    """Whether the operator's own frontend has it; other frontends name theirs."""


class Mode(enum.Enum):
    """What a frontend understands of what comes in."""

    HTTP = "http"
    HTTPS = "https"
    TCP = "tcp"
    TLS = "tls"
    """TLS that is handed on as it comes, by the name that the client asks for."""
    TLS_ENDED = "tls ended"
    """TLS that ends here; what is in it is handed on."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """An address and port beside the operator's own (`Layout`). `bind` is `*:80`; "" where only others lead here.

    The hosts of its routes end with `mark`, which no other frontend has. `certificates` are names of certificates,
    each with the hosts that it is served for.
    """

    name: str
    bind: str
    mark: str
    mode: Mode = Mode.HTTP
    certificates: tuple[tuple[str, tuple[str, ...]], ...] = ()
    has_default: bool = False
    """Whether the first certificate is for all names that have none; else it is the operator's default."""
    choices: tuple[Choice, ...] = ()
    hosts: frozenset[str] = frozenset()
    """Hosts that are served here though no route may be there: they never fall to those of a wildcard."""
    clients: str = ""
    """The file of who must have signed the certificates of clients, if any are asked for."""
    lets_strangers_in: bool = False
    """Whether clients without such a certificate are let in all the same."""

    @property
    def inner_target(self) -> str:
        """The backend by which another frontend leads here."""
        return f"to-{self.name}"


@dataclass(frozen=True, slots=True)
class DatagramFrontend:
    """An address (`*` for all) and port of UDP, which HAProxy knows nothing of: a relay serves it.

    Clients are shared among the endpoints of Services by weight; what comes to None is dropped.
    """

    name: str
    bind: str
    port: int
    shares: tuple[tuple[Pool | None, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SitePlan:
    """The plan of all hosts. `sites` are those that have rules; `default` leads where no rule matches."""

    routes: tuple[Route, ...] = ()
    pools: tuple[Pool, ...] = ()
    choices: tuple[Choice, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    default: str = ""
    admitted: tuple[ObjectName, ...] = ()
    problems: tuple[Problem, ...] = ()
    named: frozenset[tuple[IngressKind, ObjectName]] = frozenset()
    """The Ingresses that are ours, and the Services and Secrets that they name, whether those are there or not."""
    frontends: tuple[Frontend, ...] = ()
    """Where clients come in beside the operator's own addresses."""
    authorities: tuple[tuple[str, str], ...] = ()
    """Files that policies name, with their content: certificates of authorities, in PEM, and bodies of replies."""
    datagrams: tuple[DatagramFrontend, ...] = ()

    @property
    def sites(self) -> frozenset[str]:
        """Name the hosts that have rules."""
        return frozenset(route.site for route in self.routes)

    @property
    def all_choices(self) -> tuple[Choice, ...]:
        """Return the choices of all frontends."""
        return (*self.choices, *(choice for frontend in self.frontends for choice in frontend.choices))


@dataclass(frozen=True, slots=True)
class Server:
    """An endpoint as a pool uses it. `weight` 0 to 256."""

    endpoint: BackendEndpoint
    port: int
    weight: int = 16


@dataclass(frozen=True, slots=True)
class Apart:
    """Where it matters how a Pod reads a request.

    `sites` are those whose paths lead to different places. `choices` are those whose conditions decide what guards a
    request, with these conditions; to refuse HEAD is one, where GET is guarded.
    """

    sites: frozenset[str] = frozenset()
    choices: Mapping[str, tuple[Compared, ...]] = field(default_factory=dict)


def apart_of(plan: SitePlan) -> Apart:
    """Find where it matters how a Pod reads a request."""
    # A reply in place of an endpoint guards it as well.
    guards: dict[str, tuple[object, ...]] = {
        pool.name: pool.policy.guard or (pool.policy.reply and (pool.policy.reply,)) or () for pool in plan.pools
    }
    guards[CLOSED] = (CLOSED,)
    choices = {choice.name: choice for choice in plan.all_choices}
    for name in choices:
        _note_guard(name, choices, guards)
    deciding = {name: tuple(_deciding(choice, guards)) for name, choice in choices.items()}
    by_path = {name for name, choice in choices.items() if any(map(_is_of_path, _conditions(choice)))}
    found: dict[str, set[str]] = {}
    for route in plan.routes:
        found.setdefault(route.site, set()).add(route.target)
    for site in found.keys() - {route.site for route in plan.routes if (route.match, route.path) == ROOT}:
        found[site].add(plan.default)
    apart = {site for site, targets in found.items() if len(targets) > 1 or targets & by_path}
    return Apart(frozenset(apart), {name: conditions for name, conditions in deciding.items() if conditions})


def _note_guard(
    name: str, choices: Mapping[str, Choice], guards: dict[str, tuple[object, ...]]
) -> tuple[object, ...]:
    """Note what guards a target; of a choice, what guards each of those that it leads to, if anything does."""
    if name not in guards and name in choices:
        inner = tuple(_note_guard(target, choices, guards) for target in choices[name].targets)
        guards[name] = inner if any(inner) else ()
    return guards.get(name, ())


def _conditions(choice: Choice) -> Iterator[Compared]:
    return (each for step in choice.steps for each in step.when if isinstance(each, Compared))


def _is_of_path(condition: Compared) -> bool:
    return condition.aspect is Aspect.PATH


def _deciding(choice: Choice, guards: Mapping[str, tuple[object, ...]]) -> Iterator[Compared]:
    """Yield the conditions of a choice if they decide what guards a request."""
    if len({guards.get(step.target, ()) for step in choice.steps}) < 2:  # all are guarded alike
        return
    yield from _conditions(choice)
    if any(guards.get(step.target) for step in choice.steps if Compared(Aspect.METHOD, "GET") in step.when):
        yield Compared(Aspect.METHOD, "HEAD")


def sites_with_guarding_expressions(plan: SitePlan) -> tuple[str, ...]:
    """Name the sites where a regular expression leads to what is guarded."""
    guards = {pool.name: bool(pool.policy.guard) for pool in plan.pools} | {CLOSED: True}
    for choice in plan.choices:
        guards[choice.name] = any(guards.get(name) for name in choice.targets)
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


def choice_of(steps: tuple[Step, ...]) -> Choice:
    """Make a choice, named by its content."""
    return Choice(f"choice:{_digest(repr(steps))}", steps)


def _digest(text: str) -> str:
    """Write a digest that nobody can aim at: all tenants share the names that are made of it."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]
