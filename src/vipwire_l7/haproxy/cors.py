"""Writes the rules of a backend for cross-origin requests (Fetch, "CORS protocol"). Pure.

HAProxy answers a preflight before anything asks for a password. HAProxy adds the headers to all responses, also to
generated ones: otherwise a script could not tell a 503 from a network failure.
"""

import re
from collections.abc import Iterator
from typing import Final

from vipwire_l7.haproxy.choices import write_limited_expression
from vipwire_l7.haproxy.words import Word, write_line, write_literal, write_plain, write_plain_words, write_quoted
from vipwire_l7.plan.policy import Cors

_PORTS: Final = {"http": "80", "https": "443"}
_ALLOWED: Final = "{{ var(txn.origin) -m found }}"
_ASKED: Final = "{{ req.hdr(access-control-request-method) -m found }}"


def write_cors_request_rules(cors: Cors) -> Iterator[str]:
    yield write_line("acl preflight method OPTIONS")
    for origin in cors.origins:
        yield _write_origin_acl(origin)
    any_origin = "*" in cors.origins and not cors.credentials and not cors.echoes
    yield write_line(
        f"http-request set-var(txn.origin) {'str(*)' if any_origin else 'req.fhdr(origin)'} if origin_allowed"
    )
    asked = f" {_ASKED}" if cors.echoes else ""
    names = "{{ req.hdr(access-control-request-headers) -m found }}"
    if _is_echoed(cors.headers, cors):
        echoed = Word(" hdr Access-Control-Allow-Headers %[req.fhdr(access-control-request-headers)]")
        yield _write_preflight(cors, echoed, f"{asked} {names}")
        yield _write_preflight(cors, Word(""), asked)
    else:
        yield _write_preflight(cors, _write_allow_header("Headers", cors.headers), asked)
    if cors.echoes:
        others = f"preflight {_ASKED} {{{{ req.hdr(origin) -m found }}}}"
        yield write_line(f"http-request return status {{}} if {others}", write_plain(cors.code))


def write_cors_response_rules(cors: Cors) -> Iterator[str]:
    found = f"if {_ALLOWED}"
    yield write_line(f"http-after-response set-header Access-Control-Allow-Origin %[var(txn.origin)] {found}")
    yield write_line("http-after-response add-header Vary Origin")
    if cors.credentials:
        yield write_line(f"http-after-response set-header Access-Control-Allow-Credentials true {found}")
    elif cors.echoes:
        yield write_line(f"http-after-response del-header Access-Control-Allow-Credentials {found}")
    if cors.expose:
        # With credentials, browsers read `*` as a name.
        all_names = "*" in cors.expose and cors.credentials
        names = Word("%[res.hdr_names]") if all_names else write_literal(", ".join(cors.expose))
        yield write_line(f"http-after-response set-header Access-Control-Expose-Headers {{}} {found}", names)


def _write_preflight(cors: Cors, headers: Word, more: str) -> str:
    echoed = Word(" hdr Access-Control-Allow-Methods %[req.fhdr(access-control-request-method)]")
    return write_line(
        f"http-request return status {{}} hdr Access-Control-Max-Age {{}}{{}}{{}} if preflight {_ALLOWED}{more}",
        write_plain(cors.code),
        write_plain(cors.max_age),
        echoed if _is_echoed(cors.methods, cors) else _write_allow_header("Methods", cors.methods),
        headers,
    )


def _write_allow_header(what: str, values: tuple[str, ...]) -> Word:
    return Word(f" hdr Access-Control-Allow-{what} {write_literal(', '.join(values))}" if values else "")


def _is_echoed(values: tuple[str, ...], cors: Cors) -> bool:
    """Report whether the response repeats the requested values. With credentials, browsers read `*` as a name."""
    return "*" in values and (cors.credentials or cors.echoes)


def _write_origin_acl(origin: str) -> str:
    """Write the ACL for an origin. The default port of its scheme is optional."""
    if origin == "*":
        return write_line("acl origin_allowed req.fhdr(origin,1) -m found")
    scheme, _, place = origin.partition("://")
    host, _, port = place.partition(":")
    own = _PORTS.get(scheme.lower(), "")
    bare = f"{scheme}://{host}"
    if "*" not in host:
        forms = (bare, f"{bare}:{own}") if own and port in ("", own) else (origin,)
        return write_line("acl origin_allowed req.fhdr(origin,1) -m str -i {}", write_plain_words(forms))
    end = f"(:{own})?" if own and port in ("", own) else f":{port}" if port else ""
    # `*.` is one label or more. Any other `*` is any part of a host, also an empty one.
    escaped = re.escape(bare).replace(r"\*\.", r"[a-z0-9.-]+\.").replace(r"\*", "[a-z0-9.-]*")
    return write_line(
        "acl origin_allowed req.fhdr(origin,1) -m reg -i {}",
        write_quoted(write_limited_expression("^", f"{escaped}{end}$")),
    )
