"""Plans one site: the owner of each path, the shares of canaries, and the targets. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from vipwire.kube.resource import describe_unexpected
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.ingress.plan.ingress_content import IngressContent, Key
from vipwire_l7.ingress.plan.tenancy import Tenancy, add_guards
from vipwire_l7.plan.budget import Budget
from vipwire_l7.plan.dependencies import World
from vipwire_l7.plan.destinations import REASON
from vipwire_l7.plan.expressions import estimate_steps, find_literal_prefix, is_costly
from vipwire_l7.plan.misread import find_other_reading, may_be_misread
from vipwire_l7.plan.plan import HostPlan
from vipwire_l7.plan.policy import inherit_policy
from vipwire_l7.plan.sessions import Split, add_session_mark
from vipwire_l7.plan.sites import CLOSED, EVERY_HOST, NOWHERE, Match, Pool, Route, name_pool
from vipwire_l7.watch.objects import Ingress, PathRule, ServiceRef

_RULES_OF_A_CANARY, _STEPS_OF_A_CANARY = 7, 1_000
"""The maximum steps that a canary adds to a choice (`canaries`), and the PCRE steps that take the same time."""
Defaults: TypeAlias = Mapping[ObjectName, str]
"""The targets of default backends by Ingress, the oldest first."""
Told: TypeAlias = dict[ObjectName, list[Problem]]


@dataclass(frozen=True, slots=True)
class SiteResult:
    """The result of one site. With `looks_at_default`, it depends on the targets of default backends."""

    host: HostPlan | None = None
    pools: Mapping[str, Pool] = field(default_factory=dict)
    problems: Told = field(default_factory=dict)
    looks_at_default: bool = False


def make_failure(name: ObjectName, error: Exception) -> Problem:
    return Problem("Ingress", name, "", f"internal error, please report it: {describe_unexpected(error)}")


class SiteDraft:
    """The unfinished plan of a site."""

    def __init__(self, world: World, site: str, tenancy: Tenancy, budget: Budget, defaults: Defaults) -> None:
        self._world, self._site, self._tenancy = world, site, tenancy
        self._budget, self._defaults = budget, defaults
        self._routes: dict[Key, Route] = {}
        self._fallbacks: list[ObjectName] = []
        """The Ingresses of the site that have a default backend for it."""
        self.pools: dict[str, Pool] = {}
        self._splits: dict[Key, Split] = {}
        self.problems: Told = {}
        self._shut: dict[str, set[tuple[object, ...]]] = {}
        """The paths to deny, with all paths below them, unless they have all the access controls given here."""
        self._misread: list[tuple[IngressContent, PathRule, Key]] = []
        """The rules whose paths some servers may read differently."""

    def add_ingress(self, wanted: IngressContent) -> None:
        """Add an Ingress. Add canaries after all other Ingresses."""
        try:
            for rule, key in wanted.at[self._site]:
                (self._add_canary if wanted.canary else self._add_path)(wanted, rule, key)
        except Exception as error:  # noqa: BLE001  # an unexpected exception must cost this Ingress only
            name = wanted.ingress.name
            self.problems.setdefault(name, []).append(make_failure(name, error))
        if wanted.ingress.name in self._defaults and not self._is_apart(wanted.ingress.name):
            self._fallbacks.append(wanted.ingress.name)

    def resolve_default(self, wanted: IngressContent, backend: ServiceRef) -> str:
        return self._resolve_target(wanted, backend, None, "spec.defaultBackend")

    def _add_canary(self, wanted: IngressContent, rule: PathRule, key: Key) -> None:
        main = self._routes.get(key)
        if main is None or wanted.canary is None:
            self._add_problem(wanted.ingress, rule.field, "no other Ingress serves this path; the canary is ignored")
            return
        foreign = main.owner.namespace != wanted.ingress.name.namespace
        if foreign and self._is_at_foreign_host(wanted, rule, "a canary"):
            return
        shared = self.pools.get(main.target)
        if shared is None:
            text = f"the path belongs to {main.owner} and answers 503, so the canary does too"
            self._add_problem(wanted.ingress, rule.field, text)
            return
        split = self._splits.get(key) or Split(main.target)
        left = split.left
        if wanted.canary.weight > left:
            text = f"the weights of all canaries exceed 100 percent; this one is reduced to {left} percent"
            self._add_problem(wanted.ingress, "metadata.annotations[vipwire.io/canary-weight]", text)
        if text := self._spend_budget(wanted, _STEPS_OF_A_CANARY, _RULES_OF_A_CANARY):
            self._add_problem(wanted.ingress, _name_path_field(rule), f"{text}; it is left out")
            return
        canary = replace(wanted.canary, weight=min(wanted.canary.weight, left))
        part = self._resolve_target(wanted, rule.backend, rule, rule.field, (shared, foreign))
        split.add_canary(part, canary)
        self._splits[key] = split

    def finish(self) -> SiteResult:
        root = self._site, Match.PREFIX, ""
        for name in self._fallbacks:
            self._routes.setdefault(root, Route(*root, self._defaults[name], name))
        if self._defaults and self._tenancy.hosts_apart and (self._routes or self._site in self._tenancy.owners):
            # Requests that match no path go to the first default backend that may serve the host, if any.
            near = (each for each in self._defaults.items() if not self._is_apart(each[0]))
            name, target = next(near, (ObjectName("", ""), NOWHERE))
            self._routes.setdefault(root, Route(*root, target, name))
        choices = {key: split.make_choice(self.pools) for key, split in self._splits.items()}
        for key, choice in choices.items():
            self._routes[key] = replace(self._routes[key], target=choice.name)
        self._deny_shut_paths()
        self._report_misread_rules()
        used = {route.target for route in self._routes.values()}
        made = {choice.name: choice for choice in choices.values() if choice.name in used}
        host = HostPlan(tuple(self._routes.values()), tuple(made.values())) if self._routes else None
        return SiteResult(host, self.pools, self.problems, bool(self._misread))

    def _is_at_foreign_host(self, wanted: IngressContent, rule: PathRule, what: str) -> bool:
        """Report whether a path is at a host that another namespace does not share; record the problem."""
        owner = self._tenancy.find_foreign_owner(rule.host or EVERY_HOST, wanted.ingress.name.namespace)
        if owner is not None:
            text = (
                f"{what} at {rule.host or 'all hosts'}, which is {owner}'s, needs the annotation "
                f"vipwire.io/share-with: {wanted.ingress.name.namespace} there; it is left out"
            )
            self._add_problem(wanted.ingress, _name_path_field(rule), text)
        return owner is not None

    def _is_apart(self, ingress: ObjectName) -> bool:
        """Report whether the site is another namespace's, where each host belongs to one namespace."""
        return (
            self._tenancy.hosts_apart and self._tenancy.find_foreign_owner(self._site, ingress.namespace) is not None
        )

    def _deny_shut_paths(self) -> None:
        """Deny all paths at or below those to deny, unless they have the same access controls."""
        for key, route in tuple(self._routes.items()) if self._shut else ():
            above = self._shut if key[1] is Match.EXPRESSION else _list_parents(key[2])
            guards = {guard for below in above for guard in self._shut.get(below, ())}
            pool = self.pools.get(route.target)
            if guards and (pool is None or guards != {pool.policy.guard}):
                self._routes[key] = replace(route, target=CLOSED)
        for below in self._shut:
            key = self._site, Match.PREFIX, below
            self._routes.setdefault(key, Route(*key, CLOSED, ObjectName("", "")))

    def _report_misread_rules(self) -> None:
        """Report rules whose own paths HAProxy denies, since some servers read them as others."""
        targets = {self._find_target(""), *(route.target for route in self._routes.values())} if self._misread else ()
        for wanted, rule, key in self._misread:
            other = find_other_reading(key[2])
            if len(targets) < 2 or (other and self._find_target(other) == self._routes[key].target):
                continue
            why = f"read it as {other[:80]}, which leads elsewhere" if other else "read it in several ways"
            text = f"HAProxy answers 400 to requests for {rule.path[:80]}: some servers {why}"
            self._add_problem(wanted.ingress, _name_path_field(rule), text)

    def _find_target(self, path: str) -> str:
        """Return the target of a path, without regular expressions."""
        exact = self._routes.get((self._site, Match.EXACT, path))
        above = (self._routes.get((self._site, Match.PREFIX, each)) for each in _list_parents(path.rstrip("/")))
        found = exact or next(filter(None, above), None)
        return found.target if found else next(iter(self._defaults.values()), "")

    def _add_path(self, wanted: IngressContent, rule: PathRule, key: Key) -> None:
        if key[1] is Match.EXPRESSION and self._is_at_foreign_host(wanted, rule, "a regular expression"):
            return
        guards = key[1] is Match.EXPRESSION and (wanted.closed or bool(wanted.policy.guard))
        if guards and is_costly(rule.path):
            self._shut_below(wanted, rule, "it is too expensive to enforce access control")
            return
        if self._tenancy.hosts_apart and self._is_at_foreign_host(wanted, rule, "a path"):
            return
        holder = self._routes.get(key)
        if holder is not None:
            is_own = holder.owner == wanted.ingress.name
            owner = "occurs twice" if is_own else f"belongs to {holder.owner}, which is older"
            text = f"{rule.host or EVERY_HOST}{rule.path} {owner}; it is left out"
            self._add_problem(wanted.ingress, _name_path_field(rule), text)
            return
        if key[1] is Match.EXPRESSION and (text := self._spend_budget(wanted, estimate_steps(rule.path))):
            if guards:
                self._shut_below(wanted, rule, text)
            else:
                self._add_problem(wanted.ingress, _name_path_field(rule), f"{text}; it is left out")
            return
        target = self._resolve_target(wanted, rule.backend, rule, rule.field)
        self._routes[key] = Route(*key, target, wanted.ingress.name)
        if key[1] is not Match.EXPRESSION and may_be_misread(key[2]):
            self._misread.append((wanted, rule, key))

    def _spend_budget(self, wanted: IngressContent, steps: int, tried: int = 1) -> str:
        return self._budget.spend(wanted.ingress.name.namespace, tried, {self._site: steps})

    def _shut_below(self, wanted: IngressContent, rule: PathRule, why: str) -> None:
        """Deny everything that a regular expression that guards could match, since HAProxy cannot try it."""
        below = find_literal_prefix(rule.path)
        guard = () if wanted.closed else wanted.policy.guard
        self._shut.setdefault(below, set()).add(guard)
        text = f"{rule.path[:80]} has access controls, but {why}: all of {below or '/'} is denied"
        self._add_problem(wanted.ingress, _name_path_field(rule), text)

    def _resolve_target(
        self,
        wanted: IngressContent,
        ref: ServiceRef,
        rule: PathRule | None,
        field: str,
        shared: tuple[Pool, bool] | None = None,
    ) -> str:
        """Find or make the pool of a backend.

        For a canary, `shared` is the pool of its path, and whether it is foreign.
        """
        resolved = wanted.resolve_backend(ref, rule, field, self._world.services)
        told = [*resolved.problems]
        if (refusal := self._world.refusals.get(ref.service)) is not None:
            told.append(Problem("Ingress", wanted.ingress.name, f"{field}.service.name", refusal.message, REASON))
        if told:
            self.problems.setdefault(wanted.ingress.name, []).extend(told)
        pool = resolved.pool
        if pool is None:
            return resolved.target
        if shared is not None:
            main, foreign = shared
            policy = inherit_policy(pool.policy, main.policy)
            policy = add_guards(policy, main.policy) if foreign else policy
            policy = add_session_mark(policy, pool.service, pool.port.number)
            pool = replace(pool, name=name_pool(pool.service, pool.port.number, policy), policy=policy)
        return self.pools.setdefault(pool.name, pool).name

    def _add_problem(self, ingress: Ingress, field: str, message: str) -> None:
        self.problems.setdefault(ingress.name, []).append(Problem("Ingress", ingress.name, field, message))


def _name_path_field(rule: PathRule) -> str:
    return rule.field.removesuffix(".backend") + ".path"


def _list_parents(path: str) -> Iterator[str]:
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path
