"""vipwire's own policies for Gateways and Services: types, and validation as in their definitions."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.gateway_types import GATEWAY_TYPES
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.columns import AGE, NAME
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

GROUP: Final = "vipwire.io"
_TABLE: Final = """
kind TrafficPolicy | What guards routes: limits, addresses, passwords.
  spec TrafficPolicySpec required | What is wanted.
  status PolicyStatus | What is the case.
TrafficPolicySpec | What guards routes.
  targetRefs []PolicyTarget required atomic | Gateways, ListenerSets, HTTPRoutes, GRPCRoutes, or parts of them.
  limits TrafficLimits | The most that one client address may ask.
  allowSources []string atomic | The only addresses and CIDRs that may come.
  denySources []string atomic | Addresses and CIDRs that may not come.
  maxBodySize string | The longest body of a request: 8k, 10m.
  basicAuth BasicAuth | Users and their passwords.
TrafficLimits | The most that one client address may ask.
  requestsPerSecond int32 range=1..1000000000 | In a second.
  requestsPerMinute int32 range=1..1000000000 | In a minute.
  connections int32 range=1..1000000000 | At once.
BasicAuth | Users and their passwords.
  secretName string required max=253 | The Secret that has them, of the same namespace.
  secretType string one=auth-file,auth-map | Lines `user:hash` in its key `auth`, or its keys are the users.
  realm string max=1024 | What clients are told.
kind BackendPolicy | How the endpoints of Services are used.
  spec BackendPolicySpec required | What is wanted.
  status PolicyStatus | What is the case.
BackendPolicySpec | How endpoints are used.
  targetRefs []PolicyTarget required atomic | Services, or ports of them.
  balance BackendBalance | How an endpoint is chosen.
  timeouts BackendTimeouts | How long things may take.
  healthCheck BackendHealthCheck | HAProxy's own checks, in addition to readiness.
  connectionsPerEndpoint int32 range=1..1000000000 | The most requests at an endpoint at once.
  redispatch bool | Whether another endpoint is tried when one refuses.
  proxyProtocol string one=no,v1,v2 | The version of the header that names the client.
  sessionCookie BackendCookie | The attributes of the cookie of a session.
BackendBalance | How an endpoint is chosen.
  algorithm string one=roundrobin,leastconn,source,uri,header | The algorithm.
  header string max=64 | The header that is hashed.
BackendTimeouts | How long things may take.
  connect string | Until a connection is there.
  server string | Until an answer begins, where the route does not say it.
  queue string | Until an endpoint is free.
  tunnel string | Of a WebSocket, without a word.
BackendHealthCheck | HAProxy's own checks.
  path string required max=1024 | What is asked for.
  interval string | How often.
  rise int32 range=1..1000000000 | How many good answers make an endpoint good.
  fall int32 range=1..1000000000 | How many bad answers make it bad.
BackendCookie | The attributes of a cookie.
  sameSite string one=None,Lax,Strict | SameSite.
  secure bool | Secure.
  changeOnFailure bool | Whether a client gets another endpoint when its own refuses.
"""
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, "io.vipwire.v1", META | GATEWAY_TYPES, custom=True)


MOST_TARGETS: Final = 16
MOST_SOURCES: Final = 256
_DURATION: Final = (re.compile(r"[1-9][0-9]{0,8}(ms|s|m|h|d)?"), "must be a duration such as 500ms or 30s")
PATTERNS: Final[Mapping[tuple[str, ...], tuple[re.Pattern[str], str]]] = {
    ("maxBodySize",): (re.compile(r"[0-9]{1,12}[kKmMgG]?"), "must be a number of bytes, or with k, m or g"),
    ("basicAuth", "secretName"): (re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"), "must be the name of a Secret"),
    ("basicAuth", "realm"): (re.compile(r"[ -&(-~]*"), "must be printable ASCII without '"),
    ("balance", "header"): (re.compile(r"[A-Za-z0-9_-]+"), "must be the name of a header"),
    ("healthCheck", "path"): (
        re.compile(r"/([A-Za-z0-9/._~!$&()*+,;=:@?-]|%[0-9A-Fa-f]{2})*"),
        "must be a path",
    ),
    ("healthCheck", "interval"): _DURATION,
    **{("timeouts", name): _DURATION for name in ("connect", "server", "queue", "tunnel")},
}
"""The pattern of a text field, by its path in `spec`."""
SERVICES: Final = (("", "Service"),)
ROUTES: Final = tuple(
    ("gateway.networking.k8s.io", kind) for kind in ("Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute")
)


def _check_policy(new: Object, _old: Object | None) -> Iterator[Cause]:
    yield from _check_targets(at(new, "spec", "targetRefs") or (), new.get("kind"))
    for path, (pattern, message) in PATTERNS.items():
        text = at(new, "spec", *path)
        if text is not None and not pattern.fullmatch(text):
            yield invalid(".".join(("spec", *path)), text, message)
    for field in ("allowSources", "denySources"):
        found = at(new, "spec", field) or ()
        if len(found) > MOST_SOURCES:
            yield invalid(f"spec.{field}", len(found), f"must have at most {MOST_SOURCES} items")
        for index, text in enumerate(found):
            if not _is_source(text):
                yield invalid(f"spec.{field}[{index}]", text, "must be an address or a CIDR, such as 10.9.8.0/24")


def _check_targets(targets: Any, kind: Any) -> Iterator[Cause]:
    allowed = SERVICES if kind == "BackendPolicy" else ROUTES
    if not targets:
        yield required("spec.targetRefs")
    if len(targets) > MOST_TARGETS:
        yield invalid("spec.targetRefs", len(targets), f"must have at most {MOST_TARGETS} items")
    for index, each in enumerate(targets):
        if (each.get("group") or "", each.get("kind")) not in allowed:
            text = f"must be one of {', '.join(name for _, name in allowed)}"
            yield invalid(f"spec.targetRefs[{index}].kind", each.get("kind"), text)


def _is_source(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _targets(value: Object, _now: datetime) -> str:
    found = at(value, "spec", "targetRefs") or ()
    return ",".join(f"{each.get('kind')}/{each.get('name')}" for each in found)


def _kind(kind: str, plural: str, short_name: str) -> Resource:
    return Resource(
        kind=kind,
        plural=plural,
        type=_TYPES[kind],
        group=GROUP,
        short_names=(short_name,),
        categories=("gateway-api",),
        has_status=True,
        counts_generations=True,
        check=_check_policy,
        columns=(NAME, Column("Targets", _targets), AGE),
    )


POLICY_RESOURCES: Final = (
    _kind("TrafficPolicy", "trafficpolicies", "tpolicy"),
    _kind("BackendPolicy", "backendpolicies", "bpolicy"),
)
