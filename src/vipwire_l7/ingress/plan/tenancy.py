"""Limits a namespace at another namespace's host: it must not take requests from existing paths.

A host belongs to the namespace of the oldest Ingress with a rule for it. Other namespaces may add new paths, unless
the operator sets `Setting.hosts_apart`. vipwire refuses their canaries, regular expressions (which win over prefixes)
and certificates for the host, since these redirect requests for existing paths. The owner allows them by the
annotation `vipwire.io/share-with`, at any of its Ingresses for the host.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from vipwire.model.names import ObjectName
from vipwire_l7.ingress.plan.ingress_content import IngressContent, get_wildcard
from vipwire_l7.plan.policy import Policy
from vipwire_l7.plan.sites import EVERY_HOST

EVERYBODY = "*"
"""In `share-with`: all namespaces."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The owners of hosts.

    `owners` has the oldest Ingress by host, `shared` the namespaces that its namespace allows.
    """

    owners: Mapping[str, ObjectName] = field(default_factory=dict)
    shared: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    hosts_apart: bool = False

    def find_foreign_owner(self, site: str, namespace: str) -> ObjectName | None:
        """Return the Ingress that owns a host, if it is in another namespace that does not share the host."""
        owner = self.find_owner(site)
        if owner is None or owner.namespace == namespace:
            return None
        shared = self.shared.get(site, frozenset()) | self.shared.get(get_wildcard(site), frozenset())
        return None if shared & {namespace, EVERYBODY} else owner

    def split_by_certificate(self, hosts: Iterable[str], namespace: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Split hosts into those for which a namespace may have a certificate served, and the others."""
        given = tuple(hosts)
        good = tuple(host for host in given if self.find_foreign_owner(host, namespace) is None)
        return good, tuple(host for host in given if host not in good)

    def find_owner(self, site: str) -> ObjectName | None:
        found = self.owners.get(site)
        if found is None and self.hosts_apart and site != EVERY_HOST:
            return self.owners.get(get_wildcard(site))
        return found


def find_tenancy(
    sites: AbstractSet[str], ingresses: Iterable[IngressContent], *, hosts_apart: bool = False
) -> Tenancy:
    """Find the owners of these hosts. `ingresses` are all that have rules for one, the oldest first."""
    owners: dict[str, ObjectName] = {}
    shared: dict[str, set[str]] = {}
    made = Tenancy(owners, shared, hosts_apart)
    for wanted in ingresses:
        if wanted.canary:
            continue
        name = wanted.ingress.name
        for site in wanted.sites & sites:
            owner = made.find_owner(site) if hosts_apart else owners.get(site)
            if owner is None:
                owner = owners[site] = name
            if wanted.shares and owner.namespace == name.namespace:
                shared.setdefault(site, set()).update(wanted.shares)
    return made


def add_guards(policy: Policy, main: Policy) -> Policy:
    """Give a canary from another namespace the access controls of the path it splits."""
    return replace(
        policy,
        allow=main.allow or policy.allow,
        deny=(*main.deny, *(each for each in policy.deny if each not in main.deny)),
        login=main.login or policy.login,
        limit=main.limit or policy.limit,
        https=main.https or policy.https,
        body_size=main.body_size if main.body_size is not None else policy.body_size,
    )
