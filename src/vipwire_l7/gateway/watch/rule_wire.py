"""The wire structs of routes' rules: matches, filters, backends. See `wire`."""

from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from vipwire_l7.watch.compact import share_equal

_SHORT: Final = 64
"""The longest path of which equal ones are stored once."""


class Wire(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A part of an object."""


class ObjectRef(Wire, frozen=True):
    """A reference to an object that holds data: a Secret, a ConfigMap, an extension."""

    name: str
    group: str = ""
    kind: str = "Secret"
    namespace: str | None = None


class Header(Wire, frozen=True):
    """A header and its value."""

    name: str
    value: str


class HeaderModifier(Wire, frozen=True):
    set_: tuple[Header, ...] = field(default=(), name="set")
    add: tuple[Header, ...] = ()
    remove: tuple[str, ...] = ()


class PathModifier(Wire, frozen=True):
    type: str
    replace_full_path: str | None = None
    replace_prefix_match: str | None = None


class RequestRedirect(Wire, frozen=True):
    scheme: str | None = None
    hostname: str | None = None
    path: PathModifier | None = None
    port: int | None = None
    status_code: int = 302


class UrlRewrite(Wire, frozen=True):
    hostname: str | None = None
    path: PathModifier | None = None


class Fraction(Wire, frozen=True):
    """`fraction`: a share of requests."""

    numerator: int
    denominator: int = 100


class Mirror(Wire, frozen=True):
    backend_ref: "BackendRef"
    percent: int | None = None
    fraction: Fraction | None = None


class CorsFilter(Wire, frozen=True):
    allow_origins: tuple[str, ...] = ()
    allow_credentials: bool = False
    allow_methods: tuple[str, ...] = ()
    allow_headers: tuple[str, ...] = ()
    expose_headers: tuple[str, ...] = ()
    max_age: int = 5


class HttpAuth(Wire, frozen=True):
    path: str = ""
    allowed_headers: tuple[str, ...] = ()
    allowed_response_headers: tuple[str, ...] = ()


class GrpcAuth(Wire, frozen=True):
    allowed_headers: tuple[str, ...] = ()


class ForwardBody(Wire, frozen=True):
    max_size: int = 0


class ExternalAuthFilter(Wire, frozen=True):
    backend_ref: "BackendRef"
    protocol: str = ""
    http: HttpAuth = HttpAuth()
    grpc: GrpcAuth = GrpcAuth()
    forward_body: ForwardBody = ForwardBody()


class ReplyBody(Wire, frozen=True):
    string: str = ""


class DirectResponse(Wire, frozen=True):
    """`directResponse` (GEP-2826)."""

    status_code: int
    body: ReplyBody = ReplyBody()


class Filter(Wire, frozen=True):
    type: str
    request_header_modifier: HeaderModifier | None = None
    response_header_modifier: HeaderModifier | None = None
    request_redirect: RequestRedirect | None = None
    url_rewrite: UrlRewrite | None = None
    request_mirror: Mirror | None = None
    cors: CorsFilter | None = None
    external_auth: ExternalAuthFilter | None = None
    direct_response: DirectResponse | None = None


class BackendRef(Wire, frozen=True):
    name: str
    group: str = ""
    kind: str = "Service"
    namespace: str | None = None
    port: int | None = None
    weight: int = 1
    filters: tuple[Filter, ...] = ()


class HttpPathMatch(Wire, frozen=True):
    type: str = "PathPrefix"
    value: str = "/"


class NamedMatch(Wire, frozen=True):
    name: str
    value: str
    type: str = "Exact"


class HttpMatch(Wire, frozen=True):
    path: HttpPathMatch = HttpPathMatch()
    headers: tuple[NamedMatch, ...] = ()
    query_params: tuple[NamedMatch, ...] = ()
    method: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether only the path counts."""
        return self.method is None and not self.headers and not self.query_params


class GrpcMethodMatch(Wire, frozen=True):
    type: str = "Exact"
    service: str | None = None
    method: str | None = None


class GrpcMatch(Wire, frozen=True):
    method: GrpcMethodMatch | None = None
    headers: tuple[NamedMatch, ...] = ()


class Timeouts(Wire, frozen=True):
    """`timeouts`, as durations such as 500ms."""

    request: str | None = None
    backend_request: str | None = None


class Retry(Wire, frozen=True):
    codes: tuple[int, ...] = ()
    attempts: int | None = None


class CookieConfig(Wire, frozen=True):
    lifetime_type: str = "Session"


class SessionPersistence(Wire, frozen=True):
    session_name: str | None = None
    absolute_timeout: str | None = None
    idle_timeout: str | None = None
    type: str = "Cookie"
    cookie_config: CookieConfig | None = None


class RouteRule(Wire, frozen=True):
    """The fields that the rules of all routes have."""

    name: str | None = None
    backend_refs: tuple[BackendRef, ...] = ()


class HttpRule(RouteRule, frozen=True):
    matches: tuple[HttpMatch, ...] = (HttpMatch(),)
    filters: tuple[Filter, ...] = ()
    timeouts: Timeouts | None = None
    retry: Retry | None = None
    session_persistence: SessionPersistence | None = None

    def __post_init__(self) -> None:
        if len(self.matches) == 1 and self.matches[0].is_plain and len(self.matches[0].path.value) <= _SHORT:
            force_setattr(self, "matches", share_equal(self.matches))


class GrpcRule(RouteRule, frozen=True):
    matches: tuple[GrpcMatch, ...] = ()
    filters: tuple[Filter, ...] = ()
    session_persistence: SessionPersistence | None = None
