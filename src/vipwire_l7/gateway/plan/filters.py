"""Turns a rule's filters, timeouts, retries and session persistence into the policy of its pools. Pure."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from vipwire_l7.gateway.plan.listeners import Listener
from vipwire_l7.gateway.plan.matching.expressions import Unsupported
from vipwire_l7.gateway.plan.matching.matches import PathMatch
from vipwire_l7.gateway.watch import rule_wire
from vipwire_l7.plan.policy import PLAIN, Affinity, Cors, ExternalAuth, Location, Policy, Reply, Rewrite
from vipwire_l7.plan.sites import Match, Mode
from vipwire_l7.watch.convert import PATH, is_host

T = TypeVar("T")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
_TEXT: Final = re.compile(r"[ -~]{1,4096}")
_ORIGIN: Final = re.compile(r"\*|[a-z][a-z0-9+.-]*://[A-Za-z0-9.*-]+(?::\d{1,5})?")
_DURATION: Final = re.compile(r"([0-9]{1,5}(?:h|m|s|ms)){1,4}")
_PART: Final = re.compile(r"(\d+)(ms|h|m|s)")
_UNITS: Final = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_FORBIDDEN: Final = frozenset({"content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"})
_PORTS: Final = {"http": 80, "https": 443}
_LOST: Final = ("conn-failure", "empty-response")
"""The connection failures that HAProxy retries for every rule with `retry`."""
_RETRIED: Final = frozenset({401, 403, 404, 408, 421, 425, 429, 500, 501, 502, 503, 504})
_LONGEST: Final = 4096
_MOST_ENTRIES: Final = 64
"""The maximum of headers or origins in one list: HAProxy compares them one after another."""
_WITHOUT_BODY: Final = (204, 205, 304)
"""Status codes without a body (RFC 9110)."""
_ENDLESS: Final = 86_400_000


@dataclass(slots=True)
class Filters:
    """The policy that filters ask for, and mirrors that are not resolved yet.

    `path` and `listener` belong to the rule: filters of single backends need both.
    """

    policy: Policy
    mirrors: tuple[rule_wire.Mirror, ...] = ()
    auth: rule_wire.ExternalAuthFilter | None = None
    body: str = ""
    """The content of the file named by the policy's reply."""
    path: PathMatch | None = None
    listener: Listener | None = None


def read_mirrored_share(mirror: rule_wire.Mirror) -> tuple[int, int]:
    """Return the mirrored share of requests as a reduced fraction (numerator, denominator)."""
    if mirror.fraction is not None:
        part, whole = mirror.fraction.numerator, mirror.fraction.denominator
    else:
        part, whole = 100 if mirror.percent is None else mirror.percent, 100
    if not 0 <= part <= whole or not 0 < whole < 2**31:
        raise Unsupported(f"{part} of {whole} is no fraction of the requests")
    common = math.gcd(part, whole)
    return part // common, whole // common


def read_filters(
    filters: Iterable[rule_wire.Filter], path: PathMatch, listener: Listener, policy: Policy | None = None
) -> Filters:
    """Add the filters of a rule or a backend to `policy`, for one match of the rule at one listener."""
    policy, mirrors, auth, body = policy or PLAIN, [], None, ""
    for each in filters:
        if each.type in _OF_RULES:
            policy = _OF_RULES[each.type](policy, each)
        elif each.type == "RequestRedirect" and each.request_redirect is not None:
            policy = _apply_redirect(policy, each.request_redirect, path, listener)
        elif each.type == "URLRewrite" and each.url_rewrite is not None:
            policy = _apply_rewrite(policy, each.url_rewrite, path)
        elif each.type == "RequestMirror" and each.request_mirror is not None:
            mirrors.append(each.request_mirror)
        elif each.type == "DirectResponse" and each.direct_response is not None:
            policy, body = _apply_reply(policy, each.direct_response)
        elif each.type == "ExternalAuth" and each.external_auth is not None and auth is None:
            auth = each.external_auth
        else:
            raise Unsupported(f"the filter {each.type[:40]!r} is not supported, or has no content")
    if policy.answers and (mirrors or policy.mirrors):
        raise Unsupported("RequestMirror excludes RequestRedirect and DirectResponse: HAProxy itself answers")
    if policy.location is not None and policy.reply is not None:
        raise Unsupported("RequestRedirect and DirectResponse exclude each other")
    return Filters(policy, tuple(mirrors), auth=auth, body=body, path=path, listener=listener)


def read_external_auth(of: rule_wire.ExternalAuthFilter, pool: str) -> ExternalAuth:
    """Read `externalAuth`. `pool` is the pool of the authorization server."""
    if of.protocol not in ("HTTP", "GRPC"):
        raise Unsupported(f"ExternalAuth by {of.protocol[:20]!r} is not supported (allowed: HTTP, GRPC)")
    if not PATH.fullmatch(f"/{of.http.path.strip('/')}"):
        raise Unsupported(f"{of.http.path[:80]!r} is no path")
    names = (*of.http.allowed_headers, *of.http.allowed_response_headers, *of.grpc.allowed_headers)
    if strange := [name for name in names if not _TOKEN.fullmatch(name)]:
        raise Unsupported(f"{strange[0][:80]!r} is no name of a header")
    if not 0 <= of.forward_body.max_size < 65536:
        raise Unsupported(f"forwardBody.maxSize {of.forward_body.max_size} is out of range (allowed: 0 to 65535)")
    if of.protocol == "GRPC":
        return ExternalAuth(pool, "", of.grpc.allowed_headers, (), of.forward_body.max_size, grpc=True)
    prefix = f"/{stripped}" if (stripped := of.http.path.strip("/")) else ""
    return ExternalAuth(
        pool, prefix, of.http.allowed_headers, of.http.allowed_response_headers, of.forward_body.max_size
    )


def _check_header(name: str, value: str = "-") -> tuple[str, str]:
    if not _TOKEN.fullmatch(name) or name.lower() in _FORBIDDEN:
        raise Unsupported(f"the header {name[:80]!r} cannot be changed")
    if not _TEXT.fullmatch(value):
        raise Unsupported(f"the value for {name} is empty or has characters that are not printable ASCII")
    return name, value


def _check_length(values: Sequence[T]) -> Sequence[T]:
    if len(values) > _MOST_ENTRIES:
        raise Unsupported(f"a list has {len(values)} entries (allowed: {_MOST_ENTRIES})")
    return values


def _read_headers(headers: Sequence[rule_wire.Header]) -> tuple[tuple[str, str], ...]:
    return tuple(_check_header(each.name, each.value) for each in _check_length(headers))


def _read_header_names(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(_check_header(name)[0] for name in _check_length(names))


def _add_request_headers(policy: Policy, of: rule_wire.Filter) -> Policy:
    change = of.request_header_modifier or rule_wire.HeaderModifier()
    return replace(
        policy,
        set_request=(*policy.set_request, *_read_headers(change.set_)),
        add_request=(*policy.add_request, *_read_headers(change.add)),
        remove_request=(*policy.remove_request, *_read_header_names(change.remove)),
    )


def _add_response_headers(policy: Policy, of: rule_wire.Filter) -> Policy:
    change = of.response_header_modifier or rule_wire.HeaderModifier()
    return replace(
        policy,
        set_response=(*policy.set_response, *_read_headers(change.set_)),
        add_response=(*policy.add_response, *_read_headers(change.add)),
        remove_response=(*policy.remove_response, *_read_header_names(change.remove)),
    )


def _apply_redirect(policy: Policy, of: rule_wire.RequestRedirect, path: PathMatch, listener: Listener) -> Policy:
    if of.scheme not in (None, *_PORTS) or of.status_code not in (301, 302, 303, 307, 308):
        raise Unsupported(f"a redirect to {of.scheme or 'the same scheme'} with {of.status_code} is not possible")
    if of.hostname is not None and (not is_host(of.hostname) or of.hostname.startswith("*")):
        raise Unsupported(f"{of.hostname[:80]!r} is no host")
    own = "https" if listener.mode is Mode.HTTPS else "http"
    port = of.port or (_PORTS[of.scheme] if of.scheme else listener.port)
    text = "" if port == _PORTS[of.scheme or own] else f":{port}"
    location = Location(of.scheme or own, of.hostname or "", text, of.status_code)
    return replace(policy, location=location, rewrite=_read_path_rewrite(of.path, path))


def _apply_reply(policy: Policy, of: rule_wire.DirectResponse) -> tuple[Policy, str]:
    if not 200 <= of.status_code <= 599:
        raise Unsupported(f"HAProxy cannot answer {of.status_code} (allowed: 200 to 599)")
    body = "" if of.status_code in _WITHOUT_BODY else of.body.string
    content = body.encode("utf-8", "replace")
    if len(content) > _LONGEST:
        raise Unsupported(f"a body has {len(content)} bytes (allowed: at most {_LONGEST})")
    file = f"reply-{hashlib.sha256(content).hexdigest()[:32]}.txt" if body else ""
    return replace(policy, reply=Reply(of.status_code, file)), content.decode()


def _apply_rewrite(policy: Policy, of: rule_wire.UrlRewrite, path: PathMatch) -> Policy:
    if of.hostname is not None:
        if not is_host(of.hostname) or of.hostname.startswith("*"):
            raise Unsupported(f"{of.hostname[:80]!r} is no host")
        policy = replace(policy, set_request=(*policy.set_request, ("Host", of.hostname)))
    return replace(policy, rewrite=_read_path_rewrite(of.path, path))


def _read_path_rewrite(of: rule_wire.PathModifier | None, path: PathMatch) -> Rewrite | None:
    if of is None:
        return None
    if of.type == "ReplaceFullPath":
        return Rewrite("^.*$", _check_replacement(of.replace_full_path or "/") or "/")
    if of.type != "ReplacePrefixMatch":
        raise Unsupported(f"a path modifier of type {of.type[:40]!r} is not known")
    if path.match is not Match.PREFIX:
        raise Unsupported("ReplacePrefixMatch needs a match of type PathPrefix")
    prefix = re.escape(path.path)
    target = _check_replacement(of.replace_prefix_match or "").rstrip("/")
    return Rewrite(f"^{prefix}(/.*)?$", f"{target}\\1") if target else Rewrite(f"^{prefix}/?(.*)$", "/\\1")


def _check_replacement(text: str) -> str:
    if text and not PATH.fullmatch(text):
        raise Unsupported(f"{text[:80]!r} is no path")
    return text


def _add_cors(policy: Policy, each: rule_wire.Filter) -> Policy:
    of = each.cors or rule_wire.CorsFilter()
    _check_length(of.allow_origins)
    for origin in of.allow_origins:
        if not _ORIGIN.fullmatch(origin):
            raise Unsupported(f"{origin[:80]!r} is no origin")
    for name in (*of.allow_methods, *of.allow_headers, *of.expose_headers):
        if name != "*" and not _TOKEN.fullmatch(name):
            raise Unsupported(f"{name[:80]!r} is no name of a method or header")
    cors = Cors(
        of.allow_origins or ("*",),
        of.allow_methods,
        of.allow_headers,
        of.expose_headers,
        of.allow_credentials,
        max(1, of.max_age),
        200,
        echoes=True,
    )
    return replace(policy, cors=cors)


_OF_RULES: Final[Mapping[str, Callable[[Policy, rule_wire.Filter], Policy]]] = {
    "RequestHeaderModifier": _add_request_headers,
    "ResponseHeaderModifier": _add_response_headers,
    "CORS": _add_cors,
}


def add_timeouts(policy: Policy, timeouts: rule_wire.Timeouts | None, retry: rule_wire.Retry | None) -> Policy:
    """Add timeouts and retries.

    HAProxy limits the time of each try, here by the shorter of both timeouts, but not of all tries together. So
    vipwire limits the number of tries to as many as fit into the request timeout.
    """
    whole, one = (
        (read_milliseconds(text) if text else 0) or _ENDLESS
        for text in (timeouts and timeouts.request, timeouts and timeouts.backend_request)
    )
    least = min(whole, one)
    if timeouts is not None and (timeouts.request or timeouts.backend_request):
        policy = replace(policy, timeouts=(("connect", min(least, 5000)), ("server", least)))
    if retry is None:
        return policy
    if retry.attempts is not None and not 0 <= retry.attempts <= 100:
        raise Unsupported(f"{retry.attempts} attempts are not possible (allowed: 0 to 100)")
    codes = tuple(sorted(set(retry.codes)))
    if strange := [code for code in codes if code not in _RETRIED]:
        raise Unsupported(
            f"HAProxy cannot retry after {strange[0]} (allowed: {', '.join(map(str, sorted(_RETRIED)))})"
        )
    attempts = 1 if retry.attempts is None else retry.attempts
    errors = (*_LOST, *(("response-timeout",) if one < _ENDLESS else ()))
    fitting = whole // one - 1 if one < whole < _ENDLESS else attempts
    return replace(policy, retries=min(attempts, fitting), retry_on=(*errors, *map(str, codes)))


def add_session_persistence(policy: Policy, of: rule_wire.SessionPersistence | None) -> Policy:
    if of is None:
        return policy
    if of.type != "Cookie":
        raise Unsupported("session persistence is supported by cookie only")
    name = of.session_name or ""
    if name and not _TOKEN.fullmatch(name):
        raise Unsupported(f"{name[:80]!r} is no name of a cookie")
    permanent = of.cookie_config is not None and of.cookie_config.lifetime_type == "Permanent"
    if permanent and not of.absolute_timeout:
        raise Unsupported("a permanent cookie needs absoluteTimeout")
    texts = (of.absolute_timeout, of.idle_timeout)
    life, idle = (max(1, read_milliseconds(text) // 1000) if text else None for text in texts)
    age = life if permanent else None
    return replace(policy, affinity=Affinity(name, age, max_idle=idle, max_life=life))


def read_milliseconds(text: str) -> int:
    """Read a duration of the Gateway API in milliseconds (GEP-2257): up to four numbers with h, m, s or ms."""
    if not _DURATION.fullmatch(text):
        raise Unsupported(f"{text[:40]!r} is no duration (such as 1m30s or 500ms)")
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))
