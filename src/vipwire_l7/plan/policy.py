"""The policy of a pool: the settings of annotations or of a route's filters, as types.

A policy is a value that can be compared: two objects with equal settings for one Service port share a pool. Times are
in milliseconds, sizes in bytes.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Final

from vipwire.model.net import Prefix
from vipwire_l7.watch.objects import KeyEnum


class SameSite(KeyEnum):
    """`SameSite` of a cookie (RFC 6265bis)."""

    NONE = "None"
    LAX = "Lax"
    STRICT = "Strict"


class Algorithm(KeyEnum):
    """The algorithm by which HAProxy chooses a server."""

    ROUND_ROBIN = "roundrobin"
    LEAST_CONNECTIONS = "leastconn"
    SOURCE = "source"
    URI = "uri"
    HEADER = "header"


class BackendProtocol(KeyEnum):
    """The protocol of the endpoints."""

    HTTP = "http"
    HTTPS = "https"
    H2 = "h2"
    """HTTP/2 without TLS, which gRPC servers speak."""
    H2S = "h2s"
    TCP = "tcp"
    """TCP: HAProxy does not read the content."""
    PASSED = "passed"
    """TCP whose content is TLS between the client and the endpoint."""


class ProxyProtocol(KeyEnum):
    """The version of the header that tells endpoints the client's address (haproxy.org, proxy-protocol.txt)."""

    NO = "no"
    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that binds a client to a Pod. `max_age` is in seconds, None for a session cookie.

    HAProxy itself ends a session after `max_idle` seconds without a request, and after `max_life` seconds. The
    cookie's value begins with `mark`, if set, which tells apart the pools of a weighted split.
    """

    name: str = ""
    """Empty until the Service is known, whose hash then names the cookie."""
    max_age: int | None = None
    same_site: SameSite | None = None
    secure: bool = False
    change_on_failure: bool = True
    max_idle: int | None = None
    max_life: int | None = None
    mark: str = ""
    path: str = "/"


@dataclass(frozen=True, slots=True)
class Balance:
    """The algorithm, and the request header for `HEADER`."""

    algorithm: Algorithm = Algorithm.ROUND_ROBIN
    header: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """HAProxy's own health checks, in addition to readiness. `interval` is in milliseconds."""

    path: str
    interval: int = 2000
    rise: int = 2
    fall: int = 3


@dataclass(frozen=True, slots=True)
class Hsts:
    """Strict-Transport-Security (RFC 6797)."""

    max_age: int = 15_768_000
    subdomains: bool = False
    preload: bool = False

    @property
    def header(self) -> str:
        parts = (f"max-age={self.max_age}", "includeSubDomains" * self.subdomains, "preload" * self.preload)
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Cors:
    """Cross-origin requests. An origin is `*`, or `https://host` with a `*` in it for any labels.

    `echoes` is the Gateway API's behaviour: where `*` allows everything, the response repeats the requested values;
    and a request without a method to allow is no preflight. A preflight of a foreign origin gets an empty response.
    """

    origins: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
    headers: tuple[str, ...] = ("Authorization", "Content-Type", "X-Requested-With")
    expose: tuple[str, ...] = ()
    credentials: bool = False
    max_age: int = 1_728_000
    code: int = 204
    """The status of the response to a preflight."""
    echoes: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """Basic authentication: a realm, and (user, crypt(3) hash) pairs."""

    realm: str
    users: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rewrite:
    r"""Replace the part of the path that matches `pattern` by `target`, where \\1 to \\9 are the pattern's groups."""

    pattern: str
    target: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirect to `location`; with `keep_path`, the request's path and query follow."""

    location: str
    code: int
    keep_path: bool = False


@dataclass(frozen=True, slots=True)
class Location:
    """Redirect to the request's URL with other parts: an empty part stays as requested. `port` has its colon.

    The path is the one after the policy's `rewrite`.
    """

    scheme: str = ""
    host: str = ""
    port: str = ""
    code: int = 302


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer with a status code and, if `body` names a file, with its content."""

    code: int
    body: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The verification of endpoints' certificates: the required name, and the CA."""

    hostname: str
    authorities: str = ""
    """The CA file, beside the configuration; empty for the system's CA certificates."""


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """Send copies of `part` of each `whole` requests to a pool, by its name, and discard the responses."""

    pool: str
    part: int = 1
    whole: int = 1


@dataclass(frozen=True, slots=True)
class ExternalAuth:
    """An authorization server, by its pool, asked about each request: a 200 allows the request.

    The server gets the path with `prefix` before it, and `headers` in addition to Host and Authorization. The
    endpoint gets `response_headers` of the server's response, all headers if empty. The server gets up to `body`
    bytes of the request's body.

    With `grpc`, the server gets `headers`, all if empty, and itself decides which headers the endpoint gets.
    """

    pool: str
    prefix: str = ""
    headers: tuple[str, ...] = ()
    response_headers: tuple[str, ...] = ()
    body: int = 0
    grpc: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits for one client address: requests per second and per minute, concurrent connections. None is no limit."""

    per_second: int | None = None
    per_minute: int | None = None
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a pool."""

    affinity: Affinity | None = None
    balance: Balance = field(default_factory=Balance)
    protocol: BackendProtocol = BackendProtocol.HTTP
    proxy_protocol: ProxyProtocol = ProxyProtocol.NO
    timeouts: tuple[tuple[str, int], ...] = ()
    """By HAProxy's keyword: connect, server, queue, tunnel."""
    retries: int | None = None
    redispatch: bool = True
    check: Check | None = None
    pod_connections: int | None = None
    """The maximum of concurrent requests at a Pod. Further requests wait for the `queue` timeout."""
    limit: Limit | None = None
    allow: tuple[Prefix, ...] = ()
    deny: tuple[Prefix, ...] = ()
    https: bool = False
    """Whether HAProxy redirects HTTP to HTTPS."""
    redirect: Redirect | None = None
    root: str = ""
    """The redirect of `/`, if any."""
    hsts: Hsts | None = None
    rewrite: Rewrite | None = None
    location: Location | None = None
    reply: Reply | None = None
    set_request: tuple[tuple[str, str], ...] = ()
    remove_request: tuple[str, ...] = ()
    set_response: tuple[tuple[str, str], ...] = ()
    remove_response: tuple[str, ...] = ()
    body_size: int | None = None
    login: Login | None = None
    cors: Cors | None = None
    add_request: tuple[tuple[str, str], ...] = ()
    add_response: tuple[tuple[str, str], ...] = ()
    retry_on: tuple[str, ...] = ()
    """HAProxy's `retry-on`: status codes, `conn-failure`, `response-timeout`."""
    verify: Verification | None = None
    mirrors: tuple[MirrorTarget, ...] = ()
    external_auth: ExternalAuth | None = None
    client_certificate: str = ""
    """The file of the client certificate for endpoints."""

    @property
    def answers(self) -> bool:
        """Whether HAProxy itself answers all requests."""
        return self.location is not None or self.reply is not None

    @property
    def guard(self) -> tuple[object, ...]:
        """Return the access controls; empty if there are none."""
        found = (self.allow, self.deny, self.login, self.limit, self.external_auth)
        return found if any(found) else ()


PLAIN: Final = Policy()


def replace_protocol(policy: Policy, protocol: BackendProtocol) -> Policy:
    return policy if policy.protocol is protocol else replace(policy, protocol=protocol)


def replace_client_certificate(policy: Policy, certificate: str) -> Policy:
    return policy if policy.client_certificate == certificate else replace(policy, client_certificate=certificate)


def inherit_policy(own: Policy, main: Policy) -> Policy:
    """Complete a canary's policy by that of the path it splits, so that the canary does not bypass its guards.

    ingress-nginx ignores most settings of a canary itself; vipwire applies them.
    """
    set_here = {each.name: getattr(own, each.name) for each in fields(Policy)}
    return replace(main, **{name: value for name, value in set_here.items() if value != getattr(PLAIN, name)})


@dataclass(frozen=True, slots=True)
class Canary:
    """The requests that an Ingress takes from another with the same host and path. `weight` is in percent."""

    weight: int = 0
    header: str = ""
    value: str = ""
    cookie: str = ""
