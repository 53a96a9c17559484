"""Turns the rules of a route, of any kind, into matches and targets. Pure.

A rule that cannot be served is left out, and its requests go to the next best rule. A rule with ExternalAuth is
denied instead: the next best rule may have no authorization. The rules of a UDPRoute become weighted Services, for
the relay that serves UDP in HAProxy's place. There, a backend that cannot be resolved keeps its weight: the relay
drops its datagrams (UDPRoute, backendRefs).
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.attach import Attachment
from vipwire_l7.gateway.plan.filters import Filters, add_session_persistence, add_timeouts, read_filters
from vipwire_l7.gateway.plan.kinds.objects import RouteObject, Verdict, no, yes
from vipwire_l7.gateway.plan.matching.expressions import Unsupported
from vipwire_l7.gateway.plan.matching.matches import (
    ALL,
    PathMatch,
    RequestMatch,
    read_grpc_matches,
    read_http_matches,
)
from vipwire_l7.gateway.plan.matching.precedence import Entry
from vipwire_l7.gateway.plan.targets import Targets, check_weight
from vipwire_l7.gateway.watch import rule_wire
from vipwire_l7.plan.expressions import find_literal_prefix, is_costly
from vipwire_l7.plan.policy import PLAIN, BackendProtocol, Policy, replace_client_certificate
from vipwire_l7.plan.sites import CLOSED, Match, Pool
from vipwire_l7.watch.compact import share_equal


@dataclass(slots=True)
class RuleErrors:
    """The errors of a route's rules. `failed` is by rule; `list_failures` has the messages.

    `unasked` are the rules whose authorization server cannot be resolved: they answer with an error.
    """

    resolved: Verdict = field(default_factory=lambda: yes("ResolvedRefs"))
    failed: dict[int, str] = field(default_factory=dict)
    unasked: dict[int, str] = field(default_factory=dict)

    def add_verdict(self, verdict: Verdict) -> None:
        """Record a rule's reference condition. The first false one goes to the status."""
        if self.resolved.holds:
            self.resolved = verdict

    def list_failures(self, number: int) -> tuple[str, ...]:
        """Return the messages for rules left out, of `number` rules.

        `unasked` rules are told only if others are valid.
        """
        told = {**self.unasked, **self.failed}
        if len(told) >= number:
            told = self.failed
        return tuple(f"rules[{index}]: {text}" for index, text in told.items())


def list_services(route: RouteObject) -> Iterator[ObjectName]:
    for rule in route.spec.rules:
        for ref in rule.backend_refs:
            if (ref.group, ref.kind) == ("", "Service"):
                yield ObjectName(ref.namespace or route.name.namespace, ref.name)


def plan_entries(route: RouteObject, attachment: Attachment, targets: Targets, read: RuleErrors) -> Iterator[Entry]:
    """Yield the entries of the rules at one listener. An error costs its own rule only."""
    for index, rule in enumerate(route.spec.rules):
        try:
            found = tuple(_plan_rule(route, rule, index, attachment, targets, read))
        except Unsupported as error:
            read.failed.setdefault(index, str(error))
            if _list_auth_filters(rule):
                yield from _deny_rule(route, rule, index)
        else:
            yield from found


def _plan_rule(
    route: RouteObject,
    rule: rule_wire.RouteRule,
    index: int,
    attachment: Attachment,
    targets: Targets,
    read: RuleErrors,
) -> Iterator[Entry]:
    if isinstance(rule, rule_wire.HttpRule):
        matches: Sequence[RequestMatch] = tuple(read_http_matches(rule.matches))
    elif isinstance(rule, rule_wire.GrpcRule):
        matches = tuple(read_grpc_matches(rule.matches))
    else:
        matches = (ALL,)
    for each in _list_auth_filters(rule):
        server, verdict = targets.resolve_service(route, each.backend_ref)
        if server is None:
            read.unasked.setdefault(index, verdict.message)
    known: dict[PathMatch | None, str] = {}
    for number, match in enumerate(matches):
        key = match.path if isinstance(rule, rule_wire.HttpRule) and _needs_path(rule) else None
        if key not in known:
            known[key], verdict = _find_rule_target(route, rule, match.path, attachment, targets)
            read.add_verdict(verdict)
        if _may_miss(route, rule, match, attachment, targets):
            text = f"{match.path.path[:80]!r} is too expensive to enforce access control; all its paths are denied"
            read.failed.setdefault(index, text)
            wide = re.escape(find_literal_prefix(match.path.path))
            yield Entry(
                route, replace(match, path=PathMatch(Match.EXPRESSION, f"{wide}(?:/.*)?")), (index, number), CLOSED
            )
        else:
            yield Entry(route, match, share_equal((index, number)), known[key])


def _list_auth_filters(rule: rule_wire.RouteRule) -> tuple[rule_wire.ExternalAuthFilter, ...]:
    """Return the ExternalAuth filters of a rule, valid or not."""
    filters = rule.filters if isinstance(rule, rule_wire.HttpRule | rule_wire.GrpcRule) else ()
    unread = rule_wire.ExternalAuthFilter(rule_wire.BackendRef(""))
    return tuple(each.external_auth or unread for each in filters if each.type == "ExternalAuth")


def _deny_rule(route: RouteObject, rule: rule_wire.RouteRule, index: int) -> Iterator[Entry]:
    """Deny everything a rule matches. Where a match is invalid, deny its path or the path's literal prefix."""
    for number, match in enumerate(rule.matches if isinstance(rule, rule_wire.HttpRule) else ()):
        begin = find_literal_prefix(match.path.value)
        whole = (rule_wire.HttpMatch(rule_wire.HttpPathMatch(value=begin)),) if begin else ()
        for each in (match, rule_wire.HttpMatch(match.path), *whole):
            with contextlib.suppress(Unsupported):
                yield from (Entry(route, found, (index, number), CLOSED) for found in read_http_matches((each,)))
                break


def _may_miss(
    route: RouteObject, rule: rule_wire.RouteRule, match: RequestMatch, attachment: Attachment, targets: Targets
) -> bool:
    """Report whether a regular expression guards requests, and PCRE may give up before it matches them."""
    if match.path.match is not Match.EXPRESSION or not is_costly(match.path.path):
        return False
    policies, world = targets.frame.policies, targets.world
    policy = policies.inherit_traffic_policies(route, rule, attachment.listener, PLAIN, world)
    return policy is None or bool(policy.guard) or bool(_list_auth_filters(rule))


def _needs_path(rule: rule_wire.HttpRule) -> bool:
    """Report whether a rule's policy depends on the matched path."""
    filters = chain(rule.filters, *(ref.filters for ref in rule.backend_refs))
    changes = (change for each in filters for change in (each.url_rewrite, each.request_redirect))
    modifiers = (change.path for change in changes if change is not None)
    return any(each is not None and each.type == "ReplacePrefixMatch" for each in modifiers)


def _find_rule_target(
    route: RouteObject, rule: rule_wire.RouteRule, path: PathMatch, attachment: Attachment, targets: Targets
) -> tuple[str, Verdict]:
    certificate = targets.frame.find_client_certificate(attachment.listener.gateway.name)
    if not isinstance(rule, rule_wire.HttpRule | rule_wire.GrpcRule):
        plain = BackendProtocol.PASSED if attachment.listener.is_passthrough else BackendProtocol.TCP
        return targets.find_rule_target(
            route, rule.backend_refs, Filters(Policy(client_certificate=certificate)), plain
        )
    filters = read_filters(rule.filters, path, attachment.listener)
    if isinstance(rule, rule_wire.HttpRule):
        filters.policy = add_timeouts(filters.policy, rule.timeouts, rule.retry)
    filters.policy = add_session_persistence(filters.policy, rule.session_persistence)
    policies, world = targets.frame.policies, targets.world
    completed = policies.inherit_traffic_policies(route, rule, attachment.listener, filters.policy, world)
    if completed is None:
        return CLOSED, yes("ResolvedRefs")
    filters.policy = replace_client_certificate(completed, certificate)
    protocol = None if isinstance(rule, rule_wire.HttpRule) else BackendProtocol.H2
    return targets.find_rule_target(route, rule.backend_refs, filters, protocol)


Shares = tuple[tuple[Pool | None, int], ...]


def plan_shares(route: RouteObject, targets: Targets, read: RuleErrors) -> Shares:
    """Read a route's rules.

    The first rule that can be served gets all clients, since a UDPRoute's rules have no matches.
    """
    found: Shares = ()
    for index, rule in enumerate(route.spec.rules):
        try:
            shares = tuple(_plan_rule_shares(route, rule, targets, read))
        except Unsupported as error:
            read.failed[index] = str(error)
        else:
            found = found or shares
    return found


def _plan_rule_shares(
    route: RouteObject, rule: rule_wire.RouteRule, targets: Targets, read: RuleErrors
) -> Iterator[tuple[Pool | None, int]]:
    for ref in rule.backend_refs:
        weight = check_weight(ref)
        found, verdict = targets.resolve_service(route, ref)
        pool = None
        if found is not None and found[0].external:
            verdict = no(
                "BackendNotFound",
                f"the Service {found[0].name} has the type ExternalName, which UDPRoutes do not support",
            )
        elif found is not None:
            service, port = found
            pool = Pool(f"udp:{service.name}:{port.number}", service.name, port, PLAIN)
        read.add_verdict(verdict)
        if weight:
            yield pool, weight
