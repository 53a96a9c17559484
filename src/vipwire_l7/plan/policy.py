"""The policy that annotations, or a route's filters, ask for a pool beyond its Service, as types.

Two who ask the same of the same Service port share a pool, so a policy is a value that can be compared.
Times are in milliseconds, sizes in bytes.
"""

import enum
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from vipwire.model.net import Prefix


class SameSite(enum.Enum):
    """A cookie's attribute (RFC 6265bis)."""

    NONE = "None"
    LAX = "Lax"
    STRICT = "Strict"


class Algorithm(enum.Enum):
    """The algorithm that chooses a server."""

    ROUND_ROBIN = "roundrobin"
    LEAST_CONNECTIONS = "leastconn"
    SOURCE = "source"
    URI = "uri"
    HEADER = "header"


class BackendProtocol(enum.Enum):
    """The protocol of the endpoints."""

    HTTP = "http"
    HTTPS = "https"
    H2 = "h2"
    """HTTP/2 without TLS, which gRPC servers speak."""
    H2S = "h2s"
    TCP = "tcp"
    """Whatever comes: HAProxy reads none of it."""
    PASSED = "passed"
    """The same, of TLS that the client and the endpoint speak with each other."""


class ProxyProtocol(enum.Enum):
    """The version of the header that tells endpoints the client's address (haproxy.org, proxy-protocol.txt)."""

    NO = "no"
    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class Affinity:
    """A cookie that binds a client to a Pod. `max_age` in seconds, None for a session cookie.

    HAProxy itself ends a session after `max_idle` seconds without a request, and after `max_life` seconds. The
    cookie's value begins with `mark`, if there is one: it tells several pools apart that clients are shared among.
    """

    name: str = ""
    """Empty until the Service is known: it gives the name then."""
    max_age: int | None = None
    same_site: SameSite | None = None
    secure: bool = False
    change_on_failure: bool = True
    max_idle: int | None = None
    max_life: int | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """The algorithm, and the header that is hashed with `HEADER`."""

    algorithm: Algorithm = Algorithm.ROUND_ROBIN
    header: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Health checks of HAProxy's own, beside readiness. `interval` in milliseconds."""

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
        """The header's value."""
        parts = (f"max-age={self.max_age}", "includeSubDomains" * self.subdomains, "preload" * self.preload)
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Cors:
    """Cross-origin requests. An origin is `*`, or `https://host` with a `*` in it for any labels.

    `echoes` is the Gateway API's way: where `*` allows everything, the answer is what was asked for; and a preflight
    is only what asks for a method, from anywhere: to strangers it is answered with nothing.
    """

    origins: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
    headers: tuple[str, ...] = ("Authorization", "Content-Type", "X-Requested-With")
    expose: tuple[str, ...] = ()
    credentials: bool = False
    max_age: int = 1_728_000
    code: int = 204
    """The answer to a preflight."""
    echoes: bool = False


@dataclass(frozen=True, slots=True)
class Login:
    """Basic authentication: a realm, and (user, crypt(3) hash) pairs."""

    realm: str
    users: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rewrite:
    r"""Replace what matches `pattern` in the path by `target`, in which \\1 to \\9 are the pattern's groups."""

    pattern: str
    target: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send clients elsewhere: to `location`, with the path and query they asked for behind it if `keep_path`."""

    location: str
    code: int
    keep_path: bool = False


@dataclass(frozen=True, slots=True)
class Location:
    """Send clients to a URL that is made of theirs: an empty part is as they asked for it. `port` has its colon.

    The path is the one that the policy's `rewrite` makes of theirs.
    """

    scheme: str = ""
    host: str = ""
    port: str = ""
    code: int = 302


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer with a status code and, if `body` names a file, with what is in that."""

    code: int
    body: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """How endpoints' certificates are checked: the name that they must have, and who may sign them."""

    hostname: str
    authorities: str = ""
    """The file of those, beside the configuration; the system's own if empty."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Copies of `part` of each `whole` requests go to a pool, by its name; its answers are thrown away."""

    pool: str
    part: int = 1
    whole: int = 1


@dataclass(frozen=True, slots=True)
class ExternalAuth:
    """A server, by its pool, that is asked about each request: it is let through after a 200.

    The server gets the path with `prefix` before it, and `headers` beside Host and Authorization. What it answers of
    `response_headers` the endpoint gets as well: all, if there are none. Up to `body` bytes are sent to it.

    By `grpc` it gets all headers, or `headers` alone, and says itself what the endpoint gets.
    """

    pool: str
    prefix: str = ""
    headers: tuple[str, ...] = ()
    response_headers: tuple[str, ...] = ()
    body: int = 0
    grpc: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds for one client address: requests in a second and in a minute, connections at once. None is no bound."""

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
    """By HAProxy's word: connect, server, queue, tunnel."""
    retries: int | None = None
    redispatch: bool = True
    check: Check | None = None
    pod_connections: int | None = None
    """Most requests at a Pod at once; further ones wait, as long as `timeouts` say for the queue."""
    limit: Limit | None = None
    allow: tuple[Prefix, ...] = ()
    deny: tuple[Prefix, ...] = ()
    https: bool = False
    """Whether plain HTTP is redirected."""
    redirect: Redirect | None = None
    root: str = ""
    """Where `/` is sent, if anywhere."""
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
    """HAProxy's words for what a request is sent again after: status codes, `conn-failure`, `response-timeout`."""
    verify: Verification | None = None
    mirrors: tuple[Mirrored, ...] = ()
    external_auth: ExternalAuth | None = None
    client_certificate: str = ""
    """The file of the certificate that endpoints are shown."""

    @property
    def answers(self) -> bool:
        """Whether requests end here: no endpoint sees them."""
        return self.location is not None or self.reply is not None

    @property
    def guard(self) -> tuple[object, ...]:
        """Return what keeps some requests away; empty where nothing does."""
        found = (self.allow, self.deny, self.login, self.limit, self.external_auth)
        return found if any(found) else ()


@lru_cache(maxsize=4096)
def spoken(policy: Policy, protocol: BackendProtocol) -> Policy:
    """Return the policy with another protocol: one object for all pools, made once."""
    return replace(policy, protocol=protocol)


@lru_cache(maxsize=4096)
def shown(policy: Policy, certificate: str) -> Policy:
    """Return the policy with another client certificate: one object for all pools, made once."""
    return replace(policy, client_certificate=certificate)


@lru_cache(maxsize=4096)
def interned(policy: Policy) -> Policy:
    """Return the one object of all equal policies."""
    return policy


def inherited(own: Policy, main: Policy) -> Policy:
    """Complete a canary's policy by that of the path it shares, so that it does not lead past a guard.

    ingress-nginx leaves a canary's own wishes out but for a few; here they count.
    """
    default = Policy()
    set_here = {each.name: getattr(own, each.name) for each in fields(Policy)}
    return replace(main, **{name: value for name, value in set_here.items() if value != getattr(default, name)})


@dataclass(frozen=True, slots=True)
class Canary:
    """The requests that an Ingress takes from another with the same host and path. `weight` in percent."""

    weight: int = 0
    header: str = ""
    value: str = ""
    cookie: str = ""
