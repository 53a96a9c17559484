"""Finds the target of a rule: pools of Services, split by weight, or a generated response. Pure.

A backend that cannot be resolved keeps its weight. Its requests get 500 (HTTPRoute, backendRefs), or 503, which gRPC
clients read as UNAVAILABLE (GRPCRoute, backendRefs). Without HTTP, HAProxy closes the connection (TLSRoute and
TCPRoute, backendRefs).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.filters import Filters, read_external_auth, read_filters, read_mirrored_share
from vipwire_l7.gateway.plan.frame import Frame
from vipwire_l7.gateway.plan.kinds.grants import may_refer
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, RouteObject, Verdict, no, yes
from vipwire_l7.gateway.plan.matching.expressions import Unsupported
from vipwire_l7.gateway.watch import rule_wire
from vipwire_l7.plan.destinations import REASON
from vipwire_l7.plan.policy import (
    PLAIN,
    BackendProtocol,
    MirrorTarget,
    Policy,
    Reply,
    replace_client_certificate,
    replace_protocol,
)
from vipwire_l7.plan.pool_policy import APPLICATIONS
from vipwire_l7.plan.sessions import add_session_mark, make_session_steps, share_requests
from vipwire_l7.plan.sites import BROKEN, CLOSED, REFUSED, UNAVAILABLE, Choice, Pool, make_choice, name_pool
from vipwire_l7.watch.compact import share_equal
from vipwire_l7.watch.objects import BackendPort, BackendService, IngressKind

_MOST_WEIGHT = 1_000_000
_NOWHERE = Reply(500, "reply-nowhere.txt")
_BROKEN_FOR = {
    IngressKind.GRPC_ROUTE: UNAVAILABLE,
    IngressKind.TLS_ROUTE: REFUSED,
    IngressKind.TCP_ROUTE: REFUSED,
}
"""The target for a backend that cannot be resolved, unless HAProxy answers with HTTP."""
NO_SERVICE = ObjectName("", "")


@dataclass(slots=True)
class Targets:
    """The pools and choices that one route needs so far."""

    world: GatewayWorld
    frame: Frame
    pools: dict[str, Pool] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    bodies: dict[str, str] = field(default_factory=dict)
    """The content of the files named by replies."""

    def find_rule_target(
        self,
        route: RouteObject,
        refs: Sequence[rule_wire.BackendRef],
        filters: Filters,
        protocol: BackendProtocol | None = None,
    ) -> tuple[str, Verdict]:
        """Return the target of a rule, and the condition ResolvedRefs. Raise Unsupported."""
        mirrors, verdict = self._resolve_mirrors(route, filters, protocol)
        verdicts = [verdict]
        policy = replace(filters.policy, mirrors=mirrors) if mirrors else filters.policy
        if filters.auth is not None:
            spoken = BackendProtocol.H2 if filters.auth.protocol == "GRPC" else None
            server, verdict = self.find_backend_target(route, filters.auth.backend_ref, PLAIN, spoken)
            verdicts.append(verdict)
            if server == BROKEN:
                return self._choose_broken_target(route, policy), verdict
            policy = replace(policy, external_auth=read_external_auth(filters.auth, server))
        if policy.reply is not None and refs:
            raise Unsupported("DirectResponse excludes backendRefs")
        if policy.reply is not None and policy.reply.body:
            self.bodies[policy.reply.body] = filters.body
        if policy.answers:
            return self._add_answer_pool(policy), next((each for each in verdicts if not each.holds), verdicts[0])
        parts: list[tuple[str, int]] = []
        for ref in refs:
            weight = check_weight(ref)
            target, verdict = self.find_backend_target(route, ref, policy, protocol, filters)
            verdicts.append(verdict)
            if target == BROKEN:
                target = self._choose_broken_target(route, _apply_backend_filters(ref, policy, filters))
            parts.append((target, weight))
        failed = next((each for each in verdicts if not each.holds), yes("ResolvedRefs"))
        if not any(weight for _, weight in parts):
            return self._choose_broken_target(route, policy), failed
        return self.split_requests(parts), failed

    def split_requests(self, parts: Iterable[tuple[str, int]]) -> str:
        """Split requests by weight, and return the name of the split. At least one weight is above 0."""
        given = tuple(parts)
        if len(given) == 1:
            return given[0][0]
        weighed = [(target, weight) for target, weight in given if weight > 0]
        divisor = gcd(*(weight for _, weight in weighed))
        least = tuple((to, weight // divisor) for to, weight in weighed)
        drawn = tuple(share_requests(least, sum(weight for _, weight in least)))
        steps = (*make_session_steps(given, self.pools), *drawn)
        if len({step.target for step in steps}) == 1:
            return weighed[0][0]
        choice = make_choice(steps)
        self.choices[choice.name] = choice
        return choice.name

    def is_guarded(self, target: str) -> bool:
        """Report whether a target, or a part of it, has access controls."""
        if target in self.choices:
            return any(map(self.is_guarded, self.choices[target].targets))
        return target == CLOSED or (target in self.pools and bool(self.pools[target].policy.guard))

    def find_backend_target(
        self,
        route: RouteObject,
        ref: rule_wire.BackendRef,
        policy: Policy,
        protocol: BackendProtocol | None = None,
        within: Filters | None = None,
    ) -> tuple[str, Verdict]:
        """Return the target of one reference. Its filters come on top of the rule's, `within`."""
        found, verdict = self.resolve_service(route, ref)
        if found is None:
            return BROKEN, verdict
        service, port = found
        if ref.filters and within is not None and within.path is not None and within.listener is not None:
            own = read_filters(ref.filters, within.path, within.listener, policy)
            if own.auth is not None or own.policy.reply is not None:
                raise Unsupported("ExternalAuth and DirectResponse apply to rules, not to single backends")
            mirrors, mirrored = self._resolve_mirrors(route, own, protocol)
            verdict = verdict if mirrored.holds else mirrored
            policy = replace(own.policy, mirrors=(*policy.mirrors, *mirrors))
            if policy.answers:
                return self._add_answer_pool(policy), verdict
        policy = replace_protocol(policy, protocol or APPLICATIONS.get(port.application, BackendProtocol.HTTP))
        return self.add_pool(service, port, policy), verdict

    def resolve_service(
        self, route: RouteObject, ref: rule_wire.BackendRef
    ) -> tuple[tuple[BackendService, BackendPort] | None, Verdict]:
        if (ref.group, ref.kind) != ("", "Service"):
            return None, no("InvalidKind", f"{ref.group}/{ref.kind} {ref.name}: only Services can be backends")
        name = ObjectName(ref.namespace or route.name.namespace, ref.name)
        if not may_refer(self.world, route, "", "Service", name):
            text = f"Service {name}: no ReferenceGrant of {name.namespace} allows it"
            return None, no("RefNotPermitted", text)
        service = self.world.services.get(name)
        if service is None:
            return None, no("BackendNotFound", f"the Service {name} does not exist")
        ports = service.udp_ports if route.kind is IngressKind.UDP_ROUTE else service.ports
        port = next((each for each in ports if each.number == ref.port), None)
        if port is None:
            return None, no("BackendNotFound", f"Service {name} has no port {ref.port} of this protocol")
        refusal = self.world.refusals.get(name)
        if refusal is not None:
            return (None if refusal.whole else (service, port)), no(REASON, refusal.message)
        return (service, port), yes("ResolvedRefs")

    def add_pool(self, service: BackendService, port: BackendPort, policy: Policy) -> str:
        """Return the name of the pool of a Service's port.

        A BackendTLSPolicy makes HAProxy speak TLS to the endpoints.
        """
        passed = policy.protocol is BackendProtocol.PASSED
        checked = None if passed else self.frame.tls.find_policy(service.name, port)
        if checked is not None and not checked.verdict.holds:
            return BROKEN
        if checked is not None:
            policy = replace(policy, verify=checked.verification)
        if policy.verify is None and policy.protocol not in (BackendProtocol.HTTPS, BackendProtocol.H2S):
            policy = replace_client_certificate(policy, "")
        policy = self.frame.policies.complete_pool_policy(service.name, port, policy)
        policy = add_session_mark(policy, service.name, port.number)
        if policy is not PLAIN:
            policy = share_equal(policy)
        name = name_pool(service.name, port.number, policy)
        self.pools.setdefault(name, Pool(name, service.name, port, policy, service.external))
        return name

    def _choose_broken_target(self, route: RouteObject, policy: Policy) -> str:
        """Return the target for a backend that cannot be resolved. CORS lets browsers read the answer."""
        if route.kind in _BROKEN_FOR or policy.cors is None:
            return _BROKEN_FOR.get(route.kind, BROKEN)
        self.bodies[_NOWHERE.body] = "this route has no backend: see its status\n"
        return self._add_answer_pool(replace(policy, location=None, reply=_NOWHERE))

    def _add_answer_pool(self, policy: Policy) -> str:
        """Return the pool of a generated response, without the parts of the policy that concern endpoints."""
        bare = Policy(
            rewrite=policy.rewrite,
            location=policy.location,
            reply=policy.reply,
            set_response=policy.set_response,
            add_response=policy.add_response,
            remove_response=policy.remove_response,
            cors=policy.cors,
            allow=policy.allow,
            deny=policy.deny,
            limit=policy.limit,
            body_size=policy.body_size,
            # A redirect comes before the password: it mostly leads to HTTPS, where the password is asked for.
            login=policy.login if policy.reply is not None else None,
            external_auth=policy.external_auth,
        )
        name = "answer" + name_pool(NO_SERVICE, 0, bare)
        self.pools.setdefault(name, Pool(name, NO_SERVICE, BackendPort("", 0), bare))
        return name

    def _resolve_mirrors(
        self, route: RouteObject, filters: Filters, protocol: BackendProtocol | None
    ) -> tuple[tuple[MirrorTarget, ...], Verdict]:
        """Resolve the mirrors of a rule. One that cannot be resolved is ignored and reported in the status."""
        mirrors, verdict = list[MirrorTarget](), yes("ResolvedRefs")
        for mirror in filters.mirrors:
            target, found = self.find_backend_target(route, mirror.backend_ref, PLAIN, protocol)
            if not found.holds:
                verdict = found
            part, whole = read_mirrored_share(mirror) if target != BROKEN else (0, 0)
            if part:
                mirrors.append(MirrorTarget(target, part, whole))
        return tuple(mirrors), verdict


def check_weight(ref: rule_wire.BackendRef) -> int:
    """Return the weight of a reference. Raise Unsupported."""
    if not 0 <= ref.weight <= _MOST_WEIGHT:
        raise Unsupported(f"the weight {ref.weight} is out of range (allowed: 0 to {_MOST_WEIGHT})")
    return ref.weight


def _apply_backend_filters(ref: rule_wire.BackendRef, policy: Policy, within: Filters) -> Policy:
    """Return the policy of one reference: the rule's, with the reference's filters. Raise Unsupported."""
    if not ref.filters or within.path is None or within.listener is None:
        return policy
    return read_filters(ref.filters, within.path, within.listener, policy).policy
