"""Limits a namespace at a host that another one has: it cannot take requests from paths that are there.

A host is the namespace's of the oldest Ingress that has a rule for it. Further namespaces may have paths of it that
nobody has yet, unless the operator wants hosts apart (`Setting.hosts_apart`). What leads requests for existing paths
elsewhere is refused from other namespaces: canaries, regular expressions (which win over prefixes), and certificates
for the host. The owner allows it by the annotation `vipwire.io/share-with`, at any of its Ingresses for the host.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from vipwire.model.names import ObjectName
from vipwire_l7.ingress.plan.wishes import Wanted
from vipwire_l7.plan.policy import Policy
from vipwire_l7.plan.sites import EVERY_HOST

EVERYBODY = "*"
"""In `share-with`: all namespaces."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Whose hosts are whose. `owners` is by host the oldest Ingress, `shared` whom its namespace has let in."""

    owners: Mapping[str, ObjectName] = field(default_factory=dict)
    shared: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    hosts_apart: bool = False

    def stranger_to(self, site: str, namespace: str) -> ObjectName | None:
        """Name the Ingress that has a host, if it is another namespace's that does not share it."""
        owner = self.owner(site)
        if owner is None or owner.namespace == namespace:
            return None
        shared = self.shared.get(site, frozenset()) | self.shared.get(wildcard_of(site), frozenset())
        return None if shared & {namespace, EVERYBODY} else owner

    def certified(self, hosts: Iterable[str], namespace: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Part hosts into those that a namespace may have a certificate served for, and those that it may not."""
        return _parted(hosts, lambda host: self.stranger_to(host, namespace) is None)

    def owner(self, site: str) -> ObjectName | None:
        """Name the Ingress that has a host first."""
        found = self.owners.get(site)
        if found is None and self.hosts_apart and site != EVERY_HOST:
            return self.owners.get(wildcard_of(site))
        return found


def tenancy_of(sites: AbstractSet[str], ingresses: Iterable[Wanted], *, hosts_apart: bool = False) -> Tenancy:
    """Find whose these hosts are; `ingresses` are all that have rules for one, the oldest first."""
    owners: dict[str, ObjectName] = {}
    shared: dict[str, set[str]] = {}
    made = Tenancy(owners, shared, hosts_apart)
    for wanted in ingresses:
        if wanted.canary:
            continue
        name = wanted.ingress.name
        for site in wanted.sites & sites:
            owner = made.owner(site) if hosts_apart else owners.get(site)
            if owner is None:
                owner = owners[site] = name
            if wanted.shares and owner.namespace == name.namespace:
                shared.setdefault(site, set()).update(wanted.shares)
    return made


def with_guards_of(policy: Policy, main: Policy) -> Policy:
    """Replace the guards of a canary of another namespace by those of the path that it shares."""
    return replace(
        policy,
        allow=main.allow or policy.allow,
        deny=(*main.deny, *(each for each in policy.deny if each not in main.deny)),
        login=main.login or policy.login,
        limit=main.limit or policy.limit,
        https=main.https or policy.https,
        body_size=main.body_size if main.body_size is not None else policy.body_size,
    )


def wildcard_of(site: str) -> str:
    """Name the site of the wildcard that covers a host."""
    return f"*.{site.partition('.')[2]}"


def _parted(hosts: Iterable[str], fits: Callable[[str], bool]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    all_of_them = tuple(hosts)
    good = tuple(host for host in all_of_them if fits(host))
    return good, tuple(host for host in all_of_them if host not in good)
