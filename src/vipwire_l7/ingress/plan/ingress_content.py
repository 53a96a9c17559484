"""Reads one Ingress by itself, with the Secret of its users and the Services it names.

The planner keeps the result as long as the Ingress and the Secret are the same.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.plan.annotations import read_weights
from vipwire_l7.plan.annotations import AnnotationValues, read_annotations
from vipwire_l7.plan.dependencies import RecordedObjects
from vipwire_l7.plan.limits import Demand
from vipwire_l7.plan.policy import PLAIN, Canary, Policy
from vipwire_l7.plan.pool_policy import (
    choose_protocol,
    find_user_secret,
    is_expression,
    read_canary,
    read_login,
    read_policy,
    read_rewrite,
)
from vipwire_l7.plan.sessions import add_session_mark
from vipwire_l7.plan.sites import CLOSED, EVERY_HOST, UNAVAILABLE, Match, ObjectField, Pool, name_pool
from vipwire_l7.watch.compact import share_equal
from vipwire_l7.watch.objects import BackendService, Ingress, PathRule, PathType, Secret, ServiceRef

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
class IngressContent:
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

    def resolve_backend(
        self, ref: ServiceRef, rule: PathRule | None, where: str, services: RecordedObjects[BackendService]
    ) -> ResolvedBackend:
        """Find the pool of a backend of this Ingress. `rule` has the path, None for the default backend."""
        service, found = services.get(ref.service), self.resolved.get(where)
        if found is None or found.service is not service:
            found = self.resolved[where] = _resolve_backend(self, ref, rule, where, service)
        return found


def read_ingress(ingress: Ingress, secrets: RecordedObjects[Secret]) -> IngressContent:
    annotations = read_annotations(ingress)
    users = find_user_secret(ingress.name.namespace, annotations)
    asker = ObjectField("Ingress", ingress.name, "metadata.annotations[vipwire.io/auth-secret]")
    login, problems, locked = read_login(asker, annotations, secrets.get, "the Ingress answers 503")
    return IngressContent(
        ingress,
        annotations,
        users,
        share_equal(read_policy(annotations, login)) if annotations.values else PLAIN,
        annotations.closed or locked,
        read_canary(annotations),
        frozenset(host for tls in ingress.tls for host in tls.hosts or map(_get_site, ingress.rules)),
        tuple(_make_key(rule, annotations) for rule in ingress.rules),
        annotations("share-with", ()),
        (*annotations.problems, *problems),
    )


def count_ingress_demand(wanted: IngressContent) -> Demand:
    ingress = wanted.ingress
    refs = {ingress.default_backend, *(rule.backend for rule in ingress.rules)} - {None}
    backends = tuple((ref, wanted.policy) for ref in refs)
    secrets = tuple({tls.secret for tls in ingress.tls if tls.secret is not None})
    return Demand((*ingress.age, 0), tuple(wanted.at), len(wanted.keys), backends, secrets)


def leave_out(wanted: IngressContent, text: str) -> IngressContent:
    """Leave an Ingress out, but deny its guarded paths: without the Ingress, older paths could bypass the guard."""
    guards = not wanted.canary and (wanted.closed or bool(wanted.policy.guard))
    rules, keys = (wanted.ingress.rules, wanted.keys) if guards else ((), ())
    ingress = replace(wanted.ingress, rules=rules, tls=(), default_backend=None)
    problems = (Problem("Ingress", ingress.name, "spec", text),)
    return replace(wanted, ingress=ingress, closed=True, keys=keys, problems=problems, resolved={}, at={})


def _get_site(rule: PathRule) -> str:
    return rule.host or EVERY_HOST


def _make_key(rule: PathRule, annotations: AnnotationValues) -> Key:
    if rule.type is PathType.EXACT:
        return _get_site(rule), Match.EXACT, rule.path
    if is_expression(rule, annotations):
        return _get_site(rule), Match.EXPRESSION, rule.path
    elements = rule.path.strip("/")
    return _get_site(rule), Match.PREFIX, f"/{elements}" if elements else ""


def _resolve_backend(
    wanted: IngressContent, ref: ServiceRef, rule: PathRule | None, where: str, service: BackendService | None
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
    policy = add_session_mark(_complete_policy(wanted, rule, port.application), ref.service, port.number)
    if policy is not wanted.policy:
        policy = share_equal(policy)
    target = name_pool(ref.service, port.number, policy)
    text = f"{ref.service}: the annotation vipwire.io/weights is invalid in part"
    complaints = read_weights(service.annotations)[1]
    ill = tuple(Problem("Ingress", name, f"{where}.service.name", f"{text}: {each}") for each in complaints)
    return ResolvedBackend(service, target, Pool(target, ref.service, port, policy, service.external), ill)


def _complete_policy(wanted: IngressContent, rule: PathRule | None, application: str) -> Policy:
    policy = wanted.policy
    https = policy.https or (rule is not None and _is_redirected(wanted, rule))
    rewrite = read_rewrite(rule, wanted.annotations) if rule else None
    protocol = choose_protocol(application, policy)
    if (https, rewrite, protocol) == (policy.https, policy.rewrite, policy.protocol):
        return policy
    return replace(policy, https=https, rewrite=rewrite, protocol=protocol)


def _is_redirected(wanted: IngressContent, rule: PathRule) -> bool:
    host = _get_site(rule)
    return wanted.annotations.is_not_false("ssl-redirect") and not wanted.secure.isdisjoint(
        (host, get_wildcard(host))
    )


def get_wildcard(site: str) -> str:
    return f"*.{site.partition('.')[2]}"
