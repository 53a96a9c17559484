"""Plans Ingresses: the owner of each path, the pools, and the certificates.

The oldest Ingress with a path of a host gets the path. A default backend ranks after all rules. A path without its
Service answers 503, and does not fall back to the next best path. `tenancy` limits one namespace at another's hosts.
Ingresses interact only at hosts: the planner plans each host on its own, and again when one of its Ingresses changes,
or an object that the host's result looked up.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.ingress.plan.ingress_content import (
    IngressContent,
    count_ingress_demand,
    get_wildcard,
    leave_out,
    read_ingress,
)
from vipwire_l7.ingress.plan.site import Defaults, SiteDraft, SiteResult, make_failure
from vipwire_l7.ingress.plan.tenancy import Tenancy, find_tenancy
from vipwire_l7.plan.budget import Budget
from vipwire_l7.plan.certificates import find_next_change, judge_secret
from vipwire_l7.plan.dependencies import Dependencies, World
from vipwire_l7.plan.limits import Limits
from vipwire_l7.plan.plan import Plan, Setting
from vipwire_l7.plan.sites import Certificate, ObjectField, Pool, name_certificate
from vipwire_l7.watch.compact import SetsByKey
from vipwire_l7.watch.objects import Ingress, IngressClass, IngressKind
from vipwire_l7.watch.snapshot import Changes, ObjectRef, Snapshot

_CONTENT, _SITE, _DEFAULT, _CERTIFICATES = "content", "site", "default", "certificates"
Result: TypeAlias = tuple[str, ObjectName]
"""An Ingress's part, or a site (`_make_site_ref`)."""


@dataclass(frozen=True, slots=True)
class CertificatesResult:
    """The certificates of an Ingress's `tls`: by file name the content, hosts and field. It holds until `until`."""

    parts: tuple[tuple[str, str, tuple[str, ...], ObjectField], ...] = ()
    problems: tuple[Problem, ...] = ()
    until: float = math.inf


_NO_CERTIFICATES, _NO_SITE = CertificatesResult(), SiteResult()


@dataclass(frozen=True, slots=True)
class DefaultResult:
    """The target of an Ingress's default backend."""

    target: str
    pools: Mapping[str, Pool] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def _make_site_ref(site: str) -> ObjectRef:
    """Return a reference that stands for a site in dependencies. No Ingress can have this name."""
    return IngressKind.INGRESS, ObjectName("", site)


class IngressPlanner:
    """Plans Ingresses, and keeps the results from one plan to the next."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._forget_results(None)

    def _forget_results(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._changes = snapshot.follow_changes() if snapshot is not None else Changes()
        self.kept = Plan()
        self._looked_at = Dependencies[Result]()
        self._limits = Limits(self._setting.limits)
        self._wanted: dict[ObjectName, IngressContent] = {}
        self._failed: dict[ObjectName, tuple[Ingress, Problem]] = {}
        self._by_site = SetsByKey[str, ObjectName]()
        self._sites: dict[str, SiteResult] = {}
        self._demands: dict[str, Budget] = {}
        """The budgets that sites ask for."""
        self._sum = Counter[str]()
        self._is_limited = False
        self._defaults: dict[ObjectName, DefaultResult] = {}
        self._certificates: dict[ObjectName, CertificatesResult] = {}
        self._certified = SetsByKey[str, ObjectName]()
        """The Ingresses of each certificate, by file name."""
        self._ends: list[tuple[float, ObjectName]] = []
        self._now = 0.0
        self._told = set[ObjectRef]()
        self.revision: int | None = None
        """A count of changes of the set of served Ingresses; None before the first plan."""

    @property
    def zone(self) -> str:
        return self._setting.zone

    @property
    def looked_at(self) -> Collection[ObjectRef]:
        return self._looked_at.looked_at

    def serves(self, ref: ObjectRef) -> bool:
        """Report whether an Ingress belongs to this controller now."""
        return ref not in self._changes and (ref[1] in self._wanted or ref[1] in self._failed)

    def list_ours(self) -> Iterator[ObjectRef]:
        return ((IngressKind.INGRESS, name) for name in (*self._wanted, *self._failed))

    def take_changed_ingresses(self) -> set[ObjectRef]:
        """Return the Ingresses that were read since the last call."""
        taken, self._told = self._told, set()
        return taken

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        """Plan the changed objects. Ingresses have no frontends that HAProxy could refuse."""
        del refused
        is_first = snapshot is not self._snapshot
        if is_first:
            self._forget_results(snapshot)
        changed = self._changes.take()
        self._plan_changes(World(snapshot, now), None if is_first else changed)

    def _plan_changes(self, world: World, changed: Collection[ObjectRef] | None) -> None:
        """Plan the effect of changed objects, None for all."""
        stale = self._looked_at.find_users(changed or ())
        if changed is None or any(kind is IngressKind.INGRESS_CLASS for kind, _ in changed):
            names = {*world.snapshot.ingresses, *self._wanted, *self._failed}
        else:
            names = {name for kind, name in changed if kind is IngressKind.INGRESS}
            names |= {name for what, name in stale if what == _CONTENT}
        sites = {site for name in names for site in self._read_ingress(name, world)}
        judged = {name for _, name in self._limits.judge()}
        sites |= {site for name in judged for site in self._read_ingress(name, world)}
        names |= judged
        self._told |= {(IngressKind.INGRESS, name) for name in names}
        self.revision = (self.revision or 0) + bool(names)
        stale |= self._looked_at.find_users(map(_make_site_ref, sites))
        defaults = names | {name for what, name in stale if what == _DEFAULT}
        told = set(names)
        if self._plan_defaults(defaults, world):
            told |= defaults
            sites |= {
                site for site, each in self._sites.items() if each.looks_at_default or self._setting.hosts_apart
            }
            sites |= {site for name in defaults if name in self._wanted for site in self._wanted[name].sites}
        sites |= {name.name for what, name in stale if what == _SITE}
        told |= self._plan_sites(sites, world)
        if world.now < self._now:  # the clock was set back
            stale |= {(_CERTIFICATES, name) for name in self._certificates}
        self._now = world.now
        while self._ends and self._ends[0][0] <= world.now:
            stale.add((_CERTIFICATES, heapq.heappop(self._ends)[1]))
        certified = names | {name for what, name in stale if what == _CERTIFICATES}
        self._plan_certificates(certified, world)
        for name in told | certified:
            self.kept.problems.put((IngressKind.INGRESS, name), self._list_problems(name) or None)

    def _read_ingress(self, name: ObjectName, world: World) -> Collection[str]:
        """Read one Ingress; return the sites that it has or had."""
        before, ingress = self._wanted.pop(name, None), world.snapshot.ingresses.get(name)
        self._failed.pop(name, None)
        now, ref = None, (IngressKind.INGRESS, name)
        if ingress is not None and is_ours(ingress, world.snapshot.classes, self._setting):
            try:
                now = read_ingress(ingress, world.secrets)
                self._limits.record_demand(ref, count_ingress_demand(now))
                if text := self._limits.find_excess(ref):
                    now = leave_out(now, text)
                self._wanted[name] = now
            except Exception as error:  # noqa: BLE001  # an unexpected exception must cost this Ingress only
                self._limits.record_demand(ref, None)
                self._failed[name] = ingress, make_failure(name, error)
            self._looked_at.record((_CONTENT, name), world.take_lookups())
        else:
            self._limits.record_demand(ref, None)
            for what in (_CONTENT, _DEFAULT, _CERTIFICATES):
                self._looked_at.forget((what, name))
        self.kept.admitted.put(name, (name in self._wanted or name in self._failed) or None)
        old, new = (each.sites if each else frozenset[str]() for each in (before, now))
        for site in old - new:
            self._by_site.discard(site, name)
        for site in new:
            self._by_site.add(site, name)
        return old | new

    def _find_at_sites(self, sites: Iterable[str]) -> list[IngressContent]:
        """Return the Ingresses of some sites, the oldest first."""
        names = {name for site in sites for name in self._by_site.get(site)}
        found = [self._wanted[name] for name in names]
        return sorted(found, key=lambda each: each.ingress.age) if len(found) > 1 else found

    def _find_tenancy(self, sites: Iterable[str], world: World) -> Tenancy:
        looked = {each for site in sites for each in (site, get_wildcard(site))}
        world.looked_at.update(map(_make_site_ref, looked))
        return find_tenancy(looked, self._find_at_sites(looked), hosts_apart=self._setting.hosts_apart)

    def _plan_defaults(self, names: Iterable[ObjectName], world: World) -> bool:
        before = dict(self._defaults)
        for name in names:
            wanted, old = self._wanted.get(name), self._defaults.pop(name, None)
            backend = wanted.ingress.default_backend if wanted is not None and not wanted.canary else None
            if old is None and backend is None:
                continue
            if wanted is not None and backend is not None:
                draft = SiteDraft(world, "", Tenancy(), Budget(), {})
                target = draft.resolve_default(wanted, backend)
                self._defaults[name] = DefaultResult(target, draft.pools, tuple(draft.problems.get(name, ())))
                self._looked_at.record((_DEFAULT, name), world.take_lookups())
            else:
                self._looked_at.forget((_DEFAULT, name))
            now = self._defaults.get(name)
            self.kept.pools.replace_values(old.pools if old else {}, now.pools if now else {})
        first = next(iter(self._order_defaults().values()), None)
        self.kept.default.put("", first)
        return before != self._defaults

    def _order_defaults(self) -> Defaults:
        names = sorted(self._defaults, key=lambda name: self._wanted[name].ingress.age)
        return {name: self._defaults[name].target for name in names}

    def _plan_sites(self, sites: Collection[str], world: World) -> set[ObjectName]:
        """Plan some sites; return the Ingresses whose problems may change.

        As long as the demands of all namespaces fit into their budgets, sites do not affect each other.
        """
        made: dict[str, SiteResult] = {}
        for site in sites:
            demand = Budget(limited=False)
            made |= self._draft_sites((site,), demand, world)
            if before := self._demands.pop(site, None):
                self._sum.subtract(before.tried)
            if demand.tried or demand.is_crowded:
                self._demands[site] = demand
                self._sum.update(demand.tried)
        was_limited = self._is_limited
        self._is_limited = not Budget.has_room(self._sum) or any(each.is_crowded for each in self._demands.values())
        if self._is_limited or was_limited:
            budget = Budget(limited=self._is_limited)
            made = self._draft_sites({*self._sites, *self._by_site.keys()}, budget, world)
        told = set[ObjectName]()
        for site, now in made.items():
            old = self._sites.pop(site, _NO_SITE)
            if now.host is not None or now.problems or self._by_site.get(site):
                self._sites[site] = now
            else:
                self._looked_at.forget((_SITE, ObjectName("", site)))
            self.kept.hosts.put(site, now.host)
            self.kept.pools.replace_values(old.pools, now.pools)
            told.update(old.problems, now.problems)
        return told

    def _draft_sites(self, sites: Collection[str], budget: Budget, world: World) -> dict[str, SiteResult]:
        """Plan some sites with one budget: first the paths of their Ingresses, then the canaries."""
        drafts, defaults = dict[str, SiteDraft](), self._order_defaults() if self._defaults else {}
        seen: dict[str, set[ObjectRef]] = {}
        for site in sites:
            drafts[site] = SiteDraft(world, site, self._find_tenancy((site,), world), budget, defaults)
            seen[site] = set(world.take_lookups())
        for wanted in sorted(self._find_at_sites(sites), key=lambda each: each.canary is not None):
            for site in wanted.sites & drafts.keys():
                drafts[site].add_ingress(wanted)
                seen[site] |= world.take_lookups()
        made = {site: draft.finish() for site, draft in drafts.items()}
        for site, found in seen.items():
            self._looked_at.record((_SITE, ObjectName("", site)), found)
        return made

    def _plan_certificates(self, names: Iterable[ObjectName], world: World) -> None:
        changed = set[str]()
        for name in names:
            wanted, before = self._wanted.get(name), self._certificates.pop(name, _NO_CERTIFICATES)
            now = _NO_CERTIFICATES
            if wanted is not None and wanted.ingress.tls:
                self._certificates[name] = now = self._read_certificates(wanted, world)
                self._looked_at.record((_CERTIFICATES, name), world.take_lookups())
                if now.until < math.inf:
                    heapq.heappush(self._ends, (now.until, name))
            else:
                self._looked_at.forget((_CERTIFICATES, name))
            for file in {part[0] for part in before.parts}:
                self._certified.discard(file, name)
            for file in {part[0] for part in now.parts}:
                self._certified.add(file, name)
            changed |= {part[0] for part in (*before.parts, *now.parts)}
        for file in changed:
            self.kept.certificates.put(file, self._merge_certificate(file))

    def _merge_certificate(self, file: str) -> Certificate | None:
        """Merge the uses of a certificate by Ingresses, the oldest first."""
        names = sorted(self._certified.get(file), key=lambda name: self._wanted[name].ingress.age)
        parts = [part for name in names for part in self._certificates[name].parts if part[0] == file]
        if not parts:
            return None
        hosts = dict.fromkeys(host for part in parts for host in part[2])
        return Certificate(file, parts[0][1], tuple(hosts), tuple(part[3] for part in parts))

    def _read_certificates(self, wanted: IngressContent, world: World) -> CertificatesResult:
        """Read the certificates of an Ingress, for the hosts where its namespace may have them served."""
        ingress, until = wanted.ingress, math.inf
        parts, problems = [], []
        for tls in ingress.tls:
            if tls.secret is None:
                continue
            secret = world.secrets.get(tls.secret)
            until = min(until, find_next_change(secret, world.now))
            pair, reason = judge_secret(secret, world.now)
            if pair is None:
                text = f"{tls.secret}: {reason}; its hosts get the default certificate"
                problems.append(Problem("Ingress", ingress.name, tls.field, text))
                continue
            hosts = tls.hosts or pair.names
            good, strange = self._find_tenancy(hosts, world).split_by_certificate(hosts, ingress.name.namespace)
            for host in strange:
                text = f"{host} belongs to a namespace that does not share it; it does not get this certificate"
                problems.append(Problem("Ingress", ingress.name, tls.field, text))
            if good or not strange:
                asker = ObjectField("Ingress", ingress.name, tls.field)
                parts.append((name_certificate(tls.secret), pair.pem, good if tls.hosts or strange else (), asker))
        return CertificatesResult(tuple(parts), tuple(problems), until)

    def _list_problems(self, name: ObjectName) -> tuple[Problem, ...]:
        if name in self._failed:
            return (self._failed[name][1],)
        wanted = self._wanted.get(name)
        if wanted is None:
            return ()
        sites = dict.fromkeys(key[0] for key in wanted.keys)
        default = self._defaults.get(name)
        return (
            *wanted.problems,
            *self._certificates.get(name, _NO_CERTIFICATES).problems,
            *(each for site in sites if site in self._sites for each in self._sites[site].problems.get(name, ())),
            *(default.problems if default is not None else ()),
        )


def is_ours(ingress: Ingress, classes: Mapping[ObjectName, IngressClass], setting: Setting) -> bool:
    """Report whether an Ingress belongs to this controller: by its class, or without one by the default class."""
    if not ingress.class_name:
        default = any(each.default and each.controller == setting.controller for each in classes.values())
        return setting.without_class or default
    found = classes.get(ObjectName("", ingress.class_name))
    return found.controller == setting.controller if found else ingress.class_name == setting.class_name
