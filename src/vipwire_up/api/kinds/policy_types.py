"""The types of our own policies (vipwire.io), as their custom resource definitions have them (deploy/gateway)."""

from typing import Final

from vipwire_up.api.kinds.gateway_types import GATEWAY_TYPES
from vipwire_up.api.kinds.meta import META
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
POLICY_TYPES: Final[dict[str, Type]] = read_types(_TABLE, "io.vipwire.v1", META | GATEWAY_TYPES)
