"""Reads one Ingress by itself, with the Secret of its users and the Services it names.

The planner keeps the result as long as the Ingress and the Secret are the same.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.plan.annotations import read_weights
from vipwire_l7.plan.annotations import AnnotationValues, read_annotations
from vipwire_l7.plan.dependencies import Looked
from vipwire_l7.plan.limits import Demand, Limited, each_one
from vipwire_l7.plan.policy import Canary, Policy, intern_policy
from vipwire_l7.plan.pool_policy import (
    canary_of,
    general_policy,
    is_expression,
    login_of,
    protocol_of,
    rewrite_of,
    users_of,
)
from vipwire_l7.plan.sessions import with_mark
from vipwire_l7.plan.sites import CLOSED, EVERY_HOST, UNAVAILABLE, Asker, Match, Pool, pool_name
from vipwire_l7.watch.objects import BackendService, Ingress, IngressKind, PathRule, PathType, Secret, ServiceRef

Key: TypeAlias = tuple[str, Match, str]
"""A site, a path type and a path: only one Ingress can have each."""


@dataclass(frozen=True, slots=True)
class ResolvedBackend:
    """The pool of a backend: its name and, unless HAProxy itself answers 503 there, the pool."""

    service: BackendService | None
    """The Service that the pool was made from."""
    target: str
    pool: Pool | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The content of one Ingress. `users` is a Secret; `keys` has its rules' keys."""

    ingress: Ingress
    annotations: AnnotationValues
    users: ObjectName | None
    policy: Policy
    closed: bool
    canary: Canary | None
    secure: frozenset[str]
    """The hosts with a certificate, EVERY_HOST for all."""
    keys: tuple[Key, ...]
    shares: tuple[str, ...]
    """The namespaces that may have a part of its hosts."""
    problems: tuple[Problem, ...]
    resolved: dict[str, ResolvedBackend] = field(default_factory=dict, compare=False)
    """The resolved backends, by field of the Ingress."""
    at: dict[str, list[tuple[PathRule, Key]]] = field(default_factory=dict, compare=False)
    """The rules of each host, with their keys; EVERY_HOST for all."""

    def __post_init__(self) -> None:
        for rule, key in zip(self.ingress.rules, self.keys, strict=True):
            self.at.setdefault(key[0], []).append((rule, key))

    @property
    def sites(self) -> AbstractSet[str]:
        return self.at.keys()

    def resolve(
        self, ref: ServiceRef, rule: PathRule | None, where: str, services: Looked[BackendService]
    ) -> ResolvedBackend:
        """Find the pool of a backend of this Ingress. `rule` has the path, None for the default backend."""
        service, found = services.get(ref.service), self.resolved.get(where)
        if found is None or found.service is not service:
            found = self.resolved[where] = _resolve(self, ref, rule, where, service)
        return found


def wanted_of(ingress: Ingress, secrets: Looked[Secret]) -> Wanted:
    annotations = read_annotations(ingress)
    users = users_of(ingress.name.namespace, annotations)
    asker = Asker("Ingress", ingress.name, "metadata.annotations[vipwire.io/auth-secret]")
    login, problems, locked = login_of(asker, annotations, secrets.get, "the Ingress answers 503")
    return Wanted(
        ingress,
        annotations,
        users,
        general_policy(annotations, login),
        annotations.closed or locked,
        canary_of(annotations),
        frozenset(host for tls in ingress.tls for host in tls.hosts or map(_site, ingress.rules)),
        tuple(_key(rule, annotations) for rule in ingress.rules),
        annotations("share-with", ()),
        (*annotations.problems, *problems),
    )


def demand_of(wanted: Wanted) -> Demand:
    ingress = wanted.ingress
    refs = {ingress.default_backend, *(rule.backend for rule in ingress.rules)} - {None}
    return {
        **each_one(Limited.HOSTS, wanted.sites),
        (Limited.PATHS, (IngressKind.INGRESS, ingress.name)): len(wanted.keys),
        **each_one(Limited.BACKENDS, ((ref, wanted.policy) for ref in refs)),
        **each_one(Limited.CERTIFICATES, (tls.secret for tls in ingress.tls if tls.secret is not None)),
    }


def leave_out(wanted: Wanted, text: str) -> Wanted:
    """Leave an Ingress out, but deny its guarded paths: without the Ingress, older paths could bypass the guard."""
    guards = not wanted.canary and (wanted.closed or bool(wanted.policy.guard))
    rules, keys = (wanted.ingress.rules, wanted.keys) if guards else ((), ())
    ingress = replace(wanted.ingress, rules=rules, tls=(), default_backend=None)
    problems = (Problem("Ingress", ingress.name, "spec", text),)
    return replace(wanted, ingress=ingress, closed=True, keys=keys, problems=problems, resolved={}, at={})


def _site(rule: PathRule) -> str:
    return rule.host or EVERY_HOST


def _key(rule: PathRule, annotations: AnnotationValues) -> Key:
    if rule.type is PathType.EXACT:
        return _site(rule), Match.EXACT, rule.path
    if is_expression(rule, annotations):
        return _site(rule), Match.EXPRESSION, rule.path
    elements = rule.path.strip("/")
    return _site(rule), Match.PREFIX, f"/{elements}" if elements else ""


def _resolve(
    wanted: Wanted, ref: ServiceRef, rule: PathRule | None, where: str, service: BackendService | None
) -> ResolvedBackend:
    """Find the pool of a backend; one that answers 503 if the Service has no such port."""
    nowhere, name = CLOSED if wanted.closed else UNAVAILABLE, wanted.ingress.name
    if service is None:
        missing = Problem("Ingress", name, f"{where}.service.name", f"the Service {ref.service} does not exist")
        return ResolvedBackend(service, nowhere, problems=(missing,))
    port = next((port for port in service.ports if ref.port in (port.name, port.number)), None)
    if port is None:
        missing = Problem("Ingress", name, f"{where}.service.port", f"{ref.service} has no TCP port {ref.port}")
        return ResolvedBackend(service, nowhere, problems=(missing,))
    if wanted.closed:
        return ResolvedBackend(service, nowhere)
    policy = intern_policy(with_mark(_policy_for(wanted, rule, port.application), ref.service, port.number))
    target = pool_name(ref.service, port.number, policy)
    ill = tuple(
        Problem("Ingress", name, f"{where}.service.name", text) for text in _list_invalid_weights(ref, service)
    )
    return ResolvedBackend(service, target, Pool(target, ref.service, port, policy, service.external), ill)


def _list_invalid_weights(ref: ServiceRef, service: BackendService) -> Iterator[str]:
    for complaint in read_weights(service.annotations)[1]:
        yield f"{ref.service}: the annotation vipwire.io/weights is invalid in part: {complaint}"


def _policy_for(wanted: Wanted, rule: PathRule | None, application: str) -> Policy:
    policy = wanted.policy
    https = policy.https or (rule is not None and _is_redirected(wanted, rule))
    rewrite = rewrite_of(rule, wanted.annotations) if rule else None
    protocol = protocol_of(application, policy)
    if (https, rewrite, protocol) == (policy.https, policy.rewrite, policy.protocol):
        return policy
    return replace(policy, https=https, rewrite=rewrite, protocol=protocol)


def _is_redirected(wanted: Wanted, rule: PathRule) -> bool:
    host = _site(rule)
    return wanted.annotations.is_not_false("ssl-redirect") and not wanted.secure.isdisjoint((host, wildcard_of(host)))


def wildcard_of(site: str) -> str:
    """Return the wildcard site that covers a host."""
    return f"*.{site.partition('.')[2]}"
