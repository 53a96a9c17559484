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
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

GROUP: Final = "vipwire.io"
_TABLE: Final = """
kind TrafficPolicy | Protection of routes: limits, source addresses, passwords.
  spec TrafficPolicySpec required | Desired state of the TrafficPolicy.
  status PolicyStatus | Observed state of the TrafficPolicy.
TrafficPolicySpec | Desired state of a TrafficPolicy.
  targetRefs []PolicyTarget required atomic | Gateways, ListenerSets and routes with this policy, or parts.
  limits TrafficLimits | Limits for each client address.
  allowSources []string atomic | Addresses and CIDRs of allowed clients; HAProxy refuses all others.
  denySources []string atomic | Addresses and CIDRs of refused clients.
  maxBodySize string | Largest body of a request, such as 8k or 10m.
  basicAuth BasicAuth | Basic authentication.
TrafficLimits | Limits for each client address.
  requestsPerSecond int32 range=1..1000000000 | Requests in a second.
  requestsPerMinute int32 range=1..1000000000 | Requests in a minute.
  connections int32 range=1..1000000000 | Connections at a time.
BasicAuth | Basic authentication.
  secretName string required max=253 | Name of the Secret with users and passwords, in the same namespace.
  secretType string one=auth-file,auth-map | auth-file: lines `user:hash`. auth-map: a key for each user.
  realm string max=1024 | Realm that HAProxy sends to clients.
kind BackendPolicy | Settings for connections to the endpoints of Services.
  spec BackendPolicySpec required | Desired state of the BackendPolicy.
  status PolicyStatus | Observed state of the BackendPolicy.
BackendPolicySpec | Desired state of a BackendPolicy.
  targetRefs []PolicyTarget required atomic | Services with this policy, or ports of them.
  balance BackendBalance | Choice of the endpoint.
  timeouts BackendTimeouts | Timeouts of connections and requests.
  healthCheck BackendHealthCheck | HAProxy's own health checks, in addition to readiness.
  connectionsPerEndpoint int32 range=1..1000000000 | Requests at one endpoint at a time.
  redispatch bool | True if HAProxy tries another endpoint when one refuses.
  proxyProtocol string one=no,v1,v2 | Version of the PROXY protocol header with the client's address.
  sessionCookie BackendCookie | Attributes of the session cookie.
BackendBalance | Choice of the endpoint.
  algorithm string one=roundrobin,leastconn,source,uri,header | Algorithm of the choice.
  header string max=64 | Name of the header to hash, for the algorithm header.
BackendTimeouts | Timeouts of connections and requests.
  connect string | Timeout of the connection to an endpoint.
  server string | Timeout until the response begins, unless the route sets one.
  queue string | Timeout in the queue for an endpoint.
  tunnel string | Timeout of an idle WebSocket.
BackendHealthCheck | HAProxy's own health checks.
  path string required max=1024 | Path of the request.
  interval string | Time between checks.
  rise int32 range=1..1000000000 | Consecutive successes before HAProxy uses an endpoint.
  fall int32 range=1..1000000000 | Consecutive failures before HAProxy stops using an endpoint.
BackendCookie | Attributes of the session cookie.
  sameSite string one=None,Lax,Strict | Attribute SameSite.
  secure bool | Attribute Secure.
  changeOnFailure bool | True if a client gets another endpoint when its endpoint refuses.
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
    yield from _check_targets(value_at(new, "spec", "targetRefs") or (), new.get("kind"))
    for path, (pattern, message) in PATTERNS.items():
        text = value_at(new, "spec", *path)
        if text is not None and not pattern.fullmatch(text):
            yield invalid(".".join(("spec", *path)), text, message)
    for field in ("allowSources", "denySources"):
        found = value_at(new, "spec", field) or ()
        if len(found) > MOST_SOURCES:
            yield invalid(f"spec.{field}", len(found), f"must have at most {MOST_SOURCES} items")
        for index, text in enumerate(found):
            if not _is_source_range(text):
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


def _is_source_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _format_targets(value: Object, _now: datetime) -> str:
    found = value_at(value, "spec", "targetRefs") or ()
    return ",".join(f"{each.get('kind')}/{each.get('name')}" for each in found)


def _policy_resource(kind: str, plural: str, short_name: str) -> Resource:
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
        columns=(NAME, Column("Targets", _format_targets), AGE),
    )


POLICY_RESOURCES: Final = (
    _policy_resource("TrafficPolicy", "trafficpolicies", "tpolicy"),
    _policy_resource("BackendPolicy", "backendpolicies", "bpolicy"),
)
