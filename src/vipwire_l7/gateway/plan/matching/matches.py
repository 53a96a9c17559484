"""Turns the matches of a route's rules into the plan's conditions. Pure.

A match that HAProxy cannot evaluate safely raises `Unsupported`, and the route's status tells the reason.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from vipwire_l7.gateway.plan.matching.expressions import Unsupported, check_expression
from vipwire_l7.gateway.watch import rule_wire
from vipwire_l7.plan.sites import Aspect, Comparison, Match
from vipwire_l7.watch.convert import LONGEST_PATH, PATH

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
"""The names of headers and parameters that a configuration can have unquoted."""
_PRINTABLE: Final = re.compile(r"[ -~]{1,4096}")
_GRPC_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")


@dataclass(frozen=True, slots=True)
class PathMatch:
    """How to compare a path. A prefix has no slash at its end."""

    match: Match
    path: str


@dataclass(frozen=True, slots=True)
class RequestMatch:
    """One match: a path, and conditions that must all hold. `rank` puts the more specific match first."""

    path: PathMatch
    conditions: tuple[Comparison, ...]
    rank: tuple[bool, int, int]


ALL = RequestMatch(PathMatch(Match.PREFIX, ""), (), (True, 0, 0))
"""Matches any request."""


def read_http_matches(matches: Iterable[rule_wire.HttpMatch]) -> Iterator[RequestMatch]:
    for each in tuple(matches) or (rule_wire.HttpMatch(),):
        if each.is_plain:
            yield _match_path(each.path)
            continue
        if each.method is not None and each.method not in _METHODS:
            raise Unsupported(f"{each.method[:20]!r} is no method")
        method = (Comparison(Aspect.METHOD, each.method),) if each.method else ()
        headers = tuple(_read_named_matches(Aspect.HEADER, each.headers))
        queries = tuple(_read_named_matches(Aspect.QUERY, each.query_params))
        rank = (not method, -len(headers), -len(queries))
        yield RequestMatch(_read_path(each.path), (*method, *headers, *queries), rank)


@lru_cache(maxsize=1024)
def _match_path(path: rule_wire.HttpPathMatch) -> RequestMatch:
    return RequestMatch(_read_path(path), (), ALL.rank)


def read_grpc_matches(matches: Iterable[rule_wire.GrpcMatch]) -> Iterator[RequestMatch]:
    """Read the matches of a GRPCRoute's rule: a method is a path, /service/method (gRPC over HTTP2)."""
    for each in tuple(matches) or (rule_wire.GrpcMatch(),):
        headers = tuple(_read_named_matches(Aspect.HEADER, each.headers))
        yield RequestMatch(_read_grpc_path(each.method), headers, (True, -len(headers), 0))


def _read_grpc_path(method: rule_wire.GrpcMethodMatch | None) -> PathMatch:
    if method is None or not (method.service or method.method):
        return PathMatch(Match.PREFIX, "")
    if method.type == "RegularExpression":
        service, name = (check_expression(text) if text else "[^/]+" for text in (method.service, method.method))
        return PathMatch(Match.EXPRESSION, f"/(?:{service})/(?:{name})")
    for text in filter(None, (method.service, method.method)):
        if not _GRPC_NAME.fullmatch(text):
            raise Unsupported(f"{text[:80]!r} is no name of a gRPC service or method")
    if method.service and method.method:
        return PathMatch(Match.EXACT, f"/{method.service}/{method.method}")
    if method.service:
        return PathMatch(Match.PREFIX, f"/{method.service}")
    return PathMatch(Match.EXPRESSION, f"/[^/]+/{re.escape(method.method or '')}")


def _read_path(path: rule_wire.HttpPathMatch) -> PathMatch:
    if path.type == "RegularExpression":
        return PathMatch(Match.EXPRESSION, check_expression(path.value))
    if len(path.value) > LONGEST_PATH or not PATH.fullmatch(path.value):
        raise Unsupported(f"{path.value[:80]!r} is no path (allowed: / and the characters of RFC 3986)")
    if path.type == "Exact":
        return PathMatch(Match.EXACT, path.value)
    if path.type != "PathPrefix":
        raise Unsupported(f"a path match of type {path.type[:40]!r} is not known")
    elements = path.value.strip("/")
    return PathMatch(Match.PREFIX, f"/{elements}" if elements else "")


def _read_named_matches(aspect: Aspect, matches: Iterable[rule_wire.NamedMatch]) -> Iterator[Comparison]:
    seen = set[str]()
    for each in matches:
        name = each.name.lower() if aspect is Aspect.HEADER else each.name
        if not _NAME.fullmatch(name):
            raise Unsupported(f"{each.name[:80]!r} is no name that HAProxy can compare")
        if name in seen:  # the first of several counts (HTTPRouteMatch)
            continue
        seen.add(name)
        if each.type == "RegularExpression":
            yield Comparison(aspect, f"^(?:{check_expression(each.value)})$", name, expression=True)
        elif each.type != "Exact":
            raise Unsupported(f"a match of type {each.type[:40]!r} is not known")
        elif not _PRINTABLE.fullmatch(each.value):
            raise Unsupported(f"the value of {name} has characters that are not printable ASCII")
        else:
            yield Comparison(aspect, each.value, name)
