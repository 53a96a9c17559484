"""Attaches TrafficPolicies and BackendPolicies to their targets. Pure.

A TrafficPolicy targets a Gateway, a ListenerSet, a listener of either, a route or one of its rules. For each field,
the policy nearest to the rule wins. A BackendPolicy targets a Service or one of its ports. Of two policies with the
same target the older one wins. The targets of a TrafficPolicy that cannot be read answer 503: the policy may have
been their guard.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, Item, RouteObject, Verdict, no, yes
from vipwire_l7.gateway.plan.listeners import Listener
from vipwire_l7.gateway.watch import rule_wire, wire
from vipwire_l7.plan.annotations import AnnotationValues
from vipwire_l7.plan.policy import PLAIN, Algorithm, BackendProtocol, Balance, Policy, inherit_policy
from vipwire_l7.plan.policy_fields import BACKEND, TRAFFIC, Target, read_fields, read_targets
from vipwire_l7.plan.pool_policy import read_login, read_policy
from vipwire_l7.plan.sites import ObjectField
from vipwire_l7.watch.objects import BackendPort, BackendService, IngressKind

_TRAFFIC_KINDS: Final = {
    each.value: each
    for each in (
        *(IngressKind.GATEWAY, IngressKind.LISTENER_SET),
        *(IngressKind.HTTP_ROUTE, IngressKind.GRPC_ROUTE),
    )
}
_COOKIE: Final = {"affinity": "cookie"}
Place = tuple[IngressKind, ObjectName, str]
"""The target of a policy: an object, and the name of a section."""


@dataclass(frozen=True, slots=True)
class PolicyContent:
    """The content of a policy. With `closed` it is invalid, and its targets answer 503."""

    policy: Policy
    problems: tuple[str, ...] = ()
    closed: bool = False


@dataclass(slots=True)
class PolicyResult:
    """The result of a policy, for each of its targets."""

    policy: Item
    problems: tuple[str, ...]
    targets: dict[Target, Verdict] = field(default_factory=dict)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        alone = () if self.targets or not self.problems else (no("Invalid", "; ".join(self.problems)),)
        return (*dict.fromkeys(self.targets.values()), *alone)


@dataclass(slots=True)
class Policies:
    """All policies, by target."""

    by_place: dict[Place, PolicyContent] = field(default_factory=dict)
    all: list[PolicyResult] = field(default_factory=list)

    def inherit_traffic_policies(
        self, route: RouteObject, rule: rule_wire.RouteRule, listener: Listener, policy: Policy, world: GatewayWorld
    ) -> Policy | None:
        """Complete the policy of a rule at a listener; None if a TrafficPolicy for it is invalid."""
        for place in _list_targets(route, rule, listener):
            world.looked_at.add(place[:2])
            asked = self.by_place.get(place)
            if asked is None:
                continue
            if asked.closed:
                return None
            policy = inherit_policy(policy, asked.policy)
        return policy

    def complete_pool_policy(self, service: ObjectName, port: BackendPort, policy: Policy) -> Policy:
        for section in (port.name, "") if port.name else ("",):
            asked = self.by_place.get((IngressKind.SERVICE, service, section))
            if asked is not None:
                policy = _merge_with_backend(policy, asked.policy)
        return policy


def _list_targets(route: RouteObject, rule: rule_wire.RouteRule, listener: Listener) -> Iterator[Place]:
    """Yield the targets that a policy for a rule may have, the nearest first."""
    owner, gateway = listener.owner, listener.gateway
    if rule.name:
        yield route.kind, route.name, rule.name
    yield route.kind, route.name, ""
    yield owner.kind, owner.name, listener.spec.name
    yield owner.kind, owner.name, ""
    if owner is not gateway:
        yield gateway.kind, gateway.name, ""


def _merge_with_backend(policy: Policy, asked: Policy) -> Policy:
    timeouts = {**dict(asked.timeouts), **dict(policy.timeouts)}
    connect = [dict(each.timeouts)["connect"] for each in (policy, asked) if "connect" in dict(each.timeouts)]
    if connect:
        timeouts["connect"] = min(connect)
    affinity, own = policy.affinity, asked.affinity
    if affinity is not None and own is not None:
        affinity = replace(
            affinity, same_site=own.same_site, secure=own.secure, change_on_failure=own.change_on_failure
        )
    made = inherit_policy(replace(policy, timeouts=(), affinity=None), replace(asked, affinity=None))
    balance = made.balance
    if policy.protocol in (BackendProtocol.TCP, BackendProtocol.PASSED) and balance.algorithm in _OF_REQUESTS:
        balance = Balance()
    return replace(made, timeouts=tuple(timeouts.items()), affinity=affinity, balance=balance)


_OF_REQUESTS: Final = (Algorithm.URI, Algorithm.HEADER)
"""Algorithms that choose by a property of the request."""


def read_policies(world: GatewayWorld, gateways: Iterable[Item]) -> Policies:
    """Read all policies. `gateways` are this controller's."""
    made = Policies()
    here = _PolicyTargets(world, frozenset(each.name for each in gateways))
    for policy in world.list_objects(IngressKind.TRAFFIC_POLICY, object):
        _attach_policy(made, policy, _read_traffic_policy(policy, world), here)
    for policy in world.list_objects(IngressKind.BACKEND_POLICY, object):
        _attach_policy(made, policy, _read_backend_policy(policy), here)
    return made


def _attach_policy(made: Policies, policy: Item, asked: PolicyContent, here: "_PolicyTargets") -> None:
    targets, strange = read_targets(policy.spec)
    judged = PolicyResult(policy, (*strange, *asked.problems))
    for target in targets:
        kind, verdict = here.resolve_target(policy, target)
        if kind is not None:
            place = (kind, ObjectName(policy.name.namespace, target.name), target.section)
            if made.by_place.setdefault(place, asked) is not asked:
                verdict = no("Conflicted", "an older policy has the same target")
        if verdict.reason != "Conflicted" and verdict.holds and judged.problems:
            verdict = no("Invalid", "; ".join(judged.problems)[:1000])
        judged.targets[target] = verdict
    made.all.append(judged)


def _read_traffic_policy(policy: Item, world: GatewayWorld) -> PolicyContent:
    if not isinstance(policy.spec, dict):
        return PolicyContent(PLAIN, ("spec is no object",), closed=True)
    values, strange = read_fields(policy.spec, TRAFFIC)
    annotations = AnnotationValues(values)
    owner = ObjectField(policy.kind.value, policy.name, "spec.basicAuth")
    login, problems, locked = read_login(
        owner, annotations, world.secrets.get, "the targets of the policy answer 503"
    )
    texts = (*strange, *(each.message for each in problems))
    return PolicyContent(read_policy(annotations, login), texts, bool(strange) or locked)


def _read_backend_policy(policy: Item) -> PolicyContent:
    if not isinstance(policy.spec, dict):
        return PolicyContent(PLAIN, ("spec is no object",))
    values, strange = read_fields(policy.spec, BACKEND)
    return PolicyContent(PLAIN if strange else read_policy(AnnotationValues({**_COOKIE, **values}), None), strange)


@dataclass(frozen=True, slots=True)
class _PolicyTargets:
    """The objects that policies may target."""

    world: GatewayWorld
    gateways: frozenset[ObjectName]

    def resolve_target(self, policy: Item, target: Target) -> tuple[IngressKind | None, Verdict]:
        """Resolve a target; no kind if the target is invalid.

        A target that does not exist yet is valid: the policy waits.
        """
        name = ObjectName(policy.name.namespace, target.name)
        if policy.kind is IngressKind.BACKEND_POLICY:
            if (target.group, target.kind) != ("", "Service"):
                return None, no("Invalid", f"{target.kind[:40]!r}: a BackendPolicy targets Services")
            return IngressKind.SERVICE, self._check_service(self.world.services.get(name), name, target)
        kind = _TRAFFIC_KINDS.get(target.kind)
        if kind is None or target.group != wire.GROUP:
            text = f"{target.kind[:40]!r}: a TrafficPolicy targets {', '.join(_TRAFFIC_KINDS)}"
            return None, no("Invalid", text)
        sections = self._find_sections(kind, name)
        if sections is None:
            return kind, no("TargetNotFound", f"there is no {kind.value} {name} of this controller")
        if target.section and target.section not in sections:
            return kind, no(
                "TargetNotFound", f"{kind.value} {name} has no section with the name {target.section[:80]}"
            )
        return kind, yes("Accepted")

    def _check_service(self, service: BackendService | None, name: ObjectName, target: Target) -> Verdict:
        if service is None:
            return no("TargetNotFound", f"the Service {name} does not exist")
        if target.section and all(port.name != target.section for port in service.ports):
            return no("TargetNotFound", f"Service {name} has no port with the name {target.section[:80]}")
        return yes("Accepted")

    def _find_sections(self, kind: IngressKind, name: ObjectName) -> frozenset[str] | None:
        """Return the section names of an object; None if there is no such object of this controller."""
        if kind is IngressKind.GATEWAY and name not in self.gateways:
            return None
        return self.world.look_up_sections(kind, name)
