"""From objects to a `SitePlan`: who owns which path, which pools there are, which certificates are served.

Ingresses are taken from the oldest to the youngest, and the first to name a path of a host has it. A default backend
ranks after all rules. A path whose Service is missing is not handed to the next best path: it answers 503. What one
namespace may do at another's hosts, `tenancy` says.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vipwire.kube.resource import unexpected
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.ingress.plan.tenancy import Tenancy, tenancy_of, with_guards_of
from vipwire_l7.ingress.plan.wishes import Key, Known, Wanted, forget, recall
from vipwire_l7.plan.budget import Budget
from vipwire_l7.plan.canaries import Split
from vipwire_l7.plan.certificates import judge_secret
from vipwire_l7.plan.destinations import REASON
from vipwire_l7.plan.expressions import is_costly, literal_prefix, steps_of
from vipwire_l7.plan.misread import may_be_misread, other_reading
from vipwire_l7.plan.planner import Setting
from vipwire_l7.plan.policy import inherited
from vipwire_l7.plan.sites import (
    CLOSED,
    EVERY_HOST,
    NOWHERE,
    Asker,
    Certificate,
    Choice,
    Match,
    Pool,
    Route,
    SitePlan,
    certificate_name,
    pool_name,
)
from vipwire_l7.watch.objects import (
    BackendService,
    Ingress,
    IngressClass,
    IngressKind,
    PathRule,
    Secret,
    ServiceRef,
)
from vipwire_l7.watch.snapshot import Refusal, Snapshot

_RULES_OF_A_CANARY, _STEPS_OF_A_CANARY = 5, 1_000
"""What it adds to a choice at most (`canaries`), and the steps that cost the same time."""


class IngressPlanner:
    """Plans Ingresses."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._known = setting, dict[ObjectName, Wanted]()

    @property
    def zone(self) -> str:
        """The zone that we are in, if known."""
        return self._setting.zone

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Plan all Ingresses. They have no frontends of their own that could be refused."""
        del refused
        world = World(
            snapshot.ingresses, snapshot.classes, snapshot.services, snapshot.secrets, now, snapshot.refusals
        )
        return plan_sites(world, self._setting, self._known)

    def wants(self, snapshot: Snapshot, kind: IngressKind, name: ObjectName) -> bool:
        """Report whether an Ingress is ours."""
        ingress = snapshot.ingresses.get(name) if kind is IngressKind.INGRESS else None
        return ingress is not None and is_ours(ingress, snapshot.classes, self._setting)

    def moved(self) -> bool:
        """Report that the setting stays as it is."""
        return False


@dataclass(frozen=True, slots=True)
class World:
    """The objects that are planned. `now` in seconds since the epoch, for certificates."""

    ingresses: Mapping[ObjectName, Ingress]
    classes: Mapping[ObjectName, IngressClass]
    services: Mapping[ObjectName, BackendService]
    secrets: Mapping[ObjectName, Secret]
    now: float
    refusals: Mapping[ObjectName, Refusal] = field(default_factory=dict)
    """By Service what of it is not connected to."""


def plan_sites(world: World, setting: Setting, known: Known | None = None) -> SitePlan:
    """Plan everything. `known` is what the last plan has left there of each Ingress, and is kept for the next."""
    ours = [ingress for ingress in world.ingresses.values() if is_ours(ingress, world.classes, setting)]
    known = {} if known is None else known
    forget(known, (ingress.name for ingress in ours))
    ours.sort(key=lambda each: each.age)
    ingresses: list[Wanted] = []
    failed: list[Problem] = []
    for ingress in ours:
        try:
            ingresses.append(recall(ingress, world.secrets, known))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is about this Ingress
            failed.append(_failure(ingress.name, error))
    draft = _Draft(world, tenancy_of(ingresses, hosts_apart=setting.hosts_apart))
    draft.problems += failed
    canaries: list[tuple[Wanted, PathRule, Key]] = []
    for wanted in ingresses:
        try:
            canaries.extend(draft.add(wanted))
        except Exception as error:  # noqa: BLE001  # as above
            draft.problems.append(_failure(wanted.ingress.name, error))
    for each in canaries:
        try:
            draft.divide(*each)
        except Exception as error:  # noqa: BLE001  # as above
            draft.problems.append(_failure(each[0].ingress.name, error))
    return draft.finished(tuple(ingress.name for ingress in ours))


def _failure(name: ObjectName, error: Exception) -> Problem:
    """Report an Ingress whose planning has failed unexpectedly."""
    return Problem("Ingress", name, "", f"cannot be planned, which is a defect of vipwire; {unexpected(error)}")


def is_ours(ingress: Ingress, classes: Mapping[ObjectName, IngressClass], setting: Setting) -> bool:
    """Report whether an Ingress is this controller's, by its class; without one, by the default class."""
    if not ingress.class_name:
        default = any(each.default and each.controller == setting.controller for each in classes.values())
        return setting.without_class or default
    found = classes.get(ObjectName("", ingress.class_name))
    return found.controller == setting.controller if found else ingress.class_name == setting.class_name


class _Draft:
    """A plan in the making."""

    def __init__(self, world: World, tenancy: Tenancy) -> None:
        self._world, self._tenancy = world, tenancy
        self._routes: dict[tuple[str, Match, str], Route] = {}
        self._fallbacks: list[tuple[Wanted, str, str]] = []
        self._pools: dict[str, Pool] = {}
        self._splits: dict[str, Split] = {}
        self._choices: dict[str, Choice] = {}
        self._certificates: dict[str, tuple[str, dict[str, None], list[Asker]]] = {}
        """What is in them, by file name: their hosts, and the Ingresses that ask for them."""
        self.problems: list[Problem] = []
        self._named: set[tuple[IngressKind, ObjectName]] = set()
        self._defaults: list[tuple[ObjectName, str]] = []
        """The targets of default backends, the oldest Ingress's first."""
        self._shut: dict[str, dict[str, set[tuple[object, ...]]]] = {}
        """By site the paths below which all is closed but what has all of some guards."""
        self._misread: list[tuple[Wanted, PathRule, Key]] = []
        """The rules whose paths some servers may read otherwise."""
        self._budget = Budget()

    def add(self, wanted: Wanted) -> Iterable[tuple[Wanted, PathRule, Key]]:
        """Add an Ingress; return the paths that it shares as a canary, for when all others are there."""
        ingress = wanted.ingress
        if wanted.users:
            self._named.add((IngressKind.SECRET, wanted.users))
        self.problems += wanted.problems
        self._certify(ingress)
        if wanted.canary:
            return [(wanted, *each) for each in zip(ingress.rules, wanted.keys, strict=True)]
        for rule, key in zip(ingress.rules, wanted.keys, strict=True):
            self._claim(wanted, rule, key)
        if ingress.default_backend is not None:
            target = self._target(wanted, ingress.default_backend, None, "spec.defaultBackend")
            self._defaults.append((ingress.name, target))
            sites = (rule.host or EVERY_HOST for rule in ingress.rules)
            self._fallbacks += [(wanted, site, target) for site in sites if not self._is_apart(site, ingress.name)]
        return []

    def divide(self, wanted: Wanted, rule: PathRule, key: Key) -> None:
        """Give a canary its part of a path."""
        main = self._routes.get(key)
        if main is None or wanted.canary is None:
            self._note(wanted.ingress, rule.field, "is a canary of no other Ingress's path; it is left out")
            return
        foreign = main.owner.namespace != wanted.ingress.name.namespace
        if foreign and self._is_strange(wanted, rule, "a canary"):
            return
        before = self._splits.get(main.target) or Split(main.target)
        shared = self._pools.get(before.main)
        if shared is None:
            self._note(
                wanted.ingress, rule.field, f"the path is {main.owner}'s and answers 503; so does this part of it"
            )
            return
        left = 100 - sum(canary.weight for _, canary in before.parts)
        if wanted.canary.weight > left:
            text = f"other canaries of the path leave {left} percent; this one gets no more"
            self._note(wanted.ingress, "metadata.annotations[vipwire.io/canary-weight]", text)
        if text := self._excess(wanted, key[0], _STEPS_OF_A_CANARY, _RULES_OF_A_CANARY):
            self._note(wanted.ingress, rule.field.removesuffix(".backend") + ".path", f"{text}; it is left out")
            return
        canary = replace(wanted.canary, weight=min(wanted.canary.weight, left))
        part = self._target(wanted, rule.backend, rule, rule.field, (shared, foreign))
        split = Split(before.main, (*before.parts, (part, canary)))
        choice = split.choice
        self._splits[choice.name], self._choices[choice.name] = split, choice
        self._routes[key] = replace(main, target=choice.name)

    def finished(self, admitted: tuple[ObjectName, ...]) -> SitePlan:
        """Build the plan."""
        for wanted, site, target in self._fallbacks:
            key = site, Match.PREFIX, ""
            self._routes.setdefault(key, Route(*key, target, wanted.ingress.name))
        if self._defaults and self._tenancy.hosts_apart:
            self._keep_defaults_apart()
        self._close()
        self._note_misread()
        used = {route.target for route in self._routes.values()}
        return SitePlan(
            tuple(self._routes.values()),
            tuple(self._pools.values()),
            tuple(choice for name, choice in self._choices.items() if name in used),
            tuple(
                Certificate(name, pem, tuple(hosts), tuple(askers))
                for name, (pem, hosts, askers) in self._certificates.items()
            ),
            self._defaults[0][1] if self._defaults else "",
            admitted,
            tuple(self.problems),
            frozenset(self._named | {(IngressKind.INGRESS, name) for name in admitted}),
        )

    def _is_strange(self, wanted: Wanted, rule: PathRule, what: str) -> bool:
        """Report, and note, whether a path is at a host of another namespace that does not share it."""
        owner = self._tenancy.stranger_to(rule.host or EVERY_HOST, wanted.ingress.name.namespace)
        if owner is not None:
            text = (
                f"{what} at {rule.host or 'all hosts'}, which is {owner}'s, needs the annotation "
                f"vipwire.io/share-with: {wanted.ingress.name.namespace} there; it is left out"
            )
            self._note(wanted.ingress, rule.field.removesuffix(".backend") + ".path", text)
        return owner is not None

    def _is_apart(self, site: str, ingress: ObjectName) -> bool:
        """Report whether a site is another namespace's, where hosts are apart."""
        return self._tenancy.hosts_apart and self._tenancy.stranger_to(site, ingress.namespace) is not None

    def _keep_defaults_apart(self) -> None:
        """Lead what no path of a host takes to the first default backend that may have it, or nowhere."""
        for site in {*self._tenancy.owners, *(key[0] for key in self._routes)}:
            near = (each for each in self._defaults if not self._is_apart(site, each[0]))
            name, target = next(near, (ObjectName("", ""), NOWHERE))
            self._routes.setdefault((site, Match.PREFIX, ""), Route(site, Match.PREFIX, "", target, name))

    def _close(self) -> None:
        """Close all paths of sites at or below those that are to be shut, unless they are guarded in the same way."""
        for key, route in tuple(self._routes.items()) if self._shut else ():
            shut = self._shut.get(key[0], {})
            above = shut if key[1] is Match.EXPRESSION else _above(key[2])
            guards = {guard for below in above for guard in shut.get(below, ())}
            pool = self._pools.get(route.target)
            if guards and (pool is None or guards != {pool.policy.guard}):
                self._routes[key] = replace(route, target=CLOSED)
        for site, shut in self._shut.items():
            for below in shut:
                key = site, Match.PREFIX, below
                self._routes.setdefault(key, Route(*key, CLOSED, ObjectName("", "")))

    def _note_misread(self) -> None:
        """Tell of rules whose own paths HAProxy refuses, since some servers read them as others."""
        targets = {site: {self._found(site, "")} for _, _, (site, _, _) in self._misread}
        for (site, _, _), route in self._routes.items() if targets else ():
            targets.get(site, set()).add(route.target)
        for wanted, rule, key in self._misread:
            other = other_reading(key[2])
            if len(targets[key[0]]) < 2 or (other and self._found(key[0], other) == self._routes[key].target):
                continue
            why = f"read it as {other[:80]}, which leads elsewhere" if other else "read it in several ways"
            text = f"HAProxy answers 400 to requests for {rule.path[:80]}: some servers {why}"
            self._note(wanted.ingress, rule.field.removesuffix(".backend") + ".path", text)

    def _found(self, site: str, path: str) -> str:
        """Find where a path of a site leads, regular expressions apart."""
        exact = self._routes.get((site, Match.EXACT, path))
        above = (self._routes.get((site, Match.PREFIX, each)) for each in _above(path.rstrip("/")))
        found = exact or next(filter(None, above), None)
        return found.target if found else self._defaults[0][1] if self._defaults else ""

    def _claim(self, wanted: Wanted, rule: PathRule, key: Key) -> None:
        if key[1] is Match.EXPRESSION and self._is_strange(wanted, rule, "a regular expression"):
            return
        guards = key[1] is Match.EXPRESSION and (wanted.closed or bool(wanted.policy.guard))
        if guards and is_costly(rule.path):
            self._shut_below(wanted, rule, key, "it may need more steps than there are")
            return
        if self._tenancy.hosts_apart and self._is_strange(wanted, rule, "a path"):
            return
        holder = self._routes.get(key)
        if holder is not None:
            owner = (
                "is there twice"
                if holder.owner == wanted.ingress.name
                else f"belongs to {holder.owner}, which is older"
            )
            text = f"{rule.host or EVERY_HOST}{rule.path} {owner}; it is left out"
            self._note(wanted.ingress, rule.field.removesuffix(".backend") + ".path", text)
            return
        if key[1] is Match.EXPRESSION and (text := self._excess(wanted, key[0], steps_of(rule.path))):
            if guards:
                self._shut_below(wanted, rule, key, text)
            else:
                self._note(wanted.ingress, rule.field.removesuffix(".backend") + ".path", f"{text}; it is left out")
            return
        target = self._target(wanted, rule.backend, rule, rule.field)
        self._routes[key] = Route(*key, target, wanted.ingress.name)
        if key[1] is not Match.EXPRESSION and may_be_misread(key[2]):
            self._misread.append((wanted, rule, key))

    def _excess(self, wanted: Wanted, site: str, steps: int, tried: int = 1) -> str:
        """Use a part of the namespace's budget; say why not if that is too much."""
        return self._budget.take(wanted.ingress.name.namespace, tried, {site: steps})

    def _shut_below(self, wanted: Wanted, rule: PathRule, key: Key, why: str) -> None:
        """Close what a regular expression that guards could match, and more, since it cannot be tried."""
        below = literal_prefix(rule.path)
        guard = () if wanted.closed else wanted.policy.guard
        self._shut.setdefault(key[0], {}).setdefault(below, set()).add(guard)
        text = f"{rule.path[:80]} guards, but {why}: all of {below or '/'} is closed"
        self._note(wanted.ingress, rule.field.removesuffix(".backend") + ".path", text)

    def _target(
        self,
        wanted: Wanted,
        ref: ServiceRef,
        rule: PathRule | None,
        field: str,
        shared: tuple[Pool, bool] | None = None,
    ) -> str:
        """Find or make the pool of a backend; `shared` is that of the path of which it is a canary; if foreign."""
        resolved = wanted.resolve(ref, rule, field, self._world.services)
        self._named.add((IngressKind.SERVICE, ref.service))
        self.problems += resolved.problems
        refusal = self._world.refusals.get(ref.service)
        if refusal is not None:
            where = f"{field}.service.name"
            self.problems.append(Problem("Ingress", wanted.ingress.name, where, refusal.message, REASON))
        pool = resolved.pool
        if pool is None:
            return resolved.target
        if shared is not None:
            main, foreign = shared
            policy = inherited(pool.policy, main.policy)
            policy = with_guards_of(policy, main.policy) if foreign else policy
            pool = replace(pool, name=pool_name(pool.service, pool.port.number, policy), policy=policy)
        return self._pools.setdefault(pool.name, pool).name

    def _certify(self, ingress: Ingress) -> None:
        for tls in ingress.tls:
            if tls.secret is None:
                continue
            self._named.add((IngressKind.SECRET, tls.secret))
            pair, reason = judge_secret(self._world.secrets.get(tls.secret), self._world.now)
            if pair is None:
                self._note(ingress, tls.field, f"{tls.secret}: {reason}; its hosts get the default certificate")
                continue
            good, strange = self._tenancy.certified(tls.hosts or pair.names, ingress.name.namespace)
            for host in strange:
                text = f"{host} is another namespace's, which does not share it; it gets no certificate from here"
                self._note(ingress, tls.field, text)
            if good or not strange:
                asker = Asker("Ingress", ingress.name, tls.field)
                self._add_certificate(good if tls.hosts or strange else (), tls.secret, pair.pem, asker)

    def _add_certificate(self, names: tuple[str, ...], secret: ObjectName, pem: str, asker: Asker) -> None:
        name = certificate_name(secret)
        _, hosts, askers = self._certificates.setdefault(name, (pem, {}, []))
        hosts.update(dict.fromkeys(names))
        askers.append(asker)

    def _note(self, ingress: Ingress, field: str, message: str) -> None:
        self.problems.append(Problem("Ingress", ingress.name, field, message))


def _above(path: str) -> Iterator[str]:
    """Yield a path and all that it is below."""
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path
