"""Writes the rules that all frontends of HTTP have, and the backends with generated responses. Pure."""

from collections.abc import Iterator

from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.words import write_line, write_plain, write_quoted
from vipwire_l7.plan.sites import BROKEN, CLOSED, NOWHERE, REFUSED, UNAVAILABLE

HOST = "req.hdr(host,1),host_only,lower,rtrim(.)"
NOTE_PATH = write_line("http-request set-var(txn.path) path")
USE_TARGET = write_line("use_backend %[var(txn.target)] if {{ var(txn.target) -m found }}")
_SET_PATH = write_line("http-request set-uri %[pathq] if !{{ url -m beg / }} {{ path -m beg / }}")
_NO_HOST = "[^A-Za-z0-9._:*%[\\]-]"
_UNUSUAL_HOST = r"[^a-z0-9.-]|\.$"
_USUAL_URL = r"^(?=/)(?:/(?!\.{1,2}(?:[/?]|$))[A-Za-z0-9._~-]+)*+/?(?:\?|$)"
_TOLD = (
    r"forwarded|proxy|front\Wend\Whttps|(?:x\W)?(?:real|client|cluster\Wclient)\Wip"
    r"|x\W(?:(?:forwarded|original|envoy)(?:\W.*)?|rewrite\Wurl|(?:url\W)?scheme|(?:http\W)?host(?:\Woverride)?)"
).replace(r"\W", "[^a-z0-9]")
"""The headers by which proxies tell servers about clients and the original request.

CGI and WSGI servers also read other characters for a dash, as in `X_Forwarded_For`.
"""
_WITH_DASHES = "[a-z0-9-]+"
_LOG_FORMAT = (
    '{"time":"%[date,ltime(%Y-%m-%dT%H:%M:%S%z)]","client":"%[src]","host":"%[var(txn.host),json(utf8s)]",'
    '"method":"%[var(txn.method),json(utf8s)]","path":"%[var(txn.path),json(utf8s)]","status":%ST,'
    '"backend":"%[be_name,concat(,txn.spare),regsub(^spare[.][0-9]+,)]","server":"%[srv_name]","ms":%Ta,"bytes":%B,"tls":"%sslv"}'
)


def write_plain_search(file: str) -> Iterator[str]:
    """Look up host and path in one map: as the client sent them, unless `write_usual_rules` found more to do.

    To write the host in lower case without a port takes twice the time. An unknown or empty name goes to the default
    backend.
    """
    yield USE_TARGET
    yield write_line(f"use_backend %[base,concat(/),map_beg({file})]")


def write_usual_rules() -> Iterator[str]:
    """Skip the further rules for a usual request: its path has one reading, and its host is written as in maps.

    That is most requests of HTTP/1.1. Requests of HTTP/2 have an absolute URL in HAProxy, which the second rule makes
    a path.
    """
    usual = write_line(
        "http-request allow if {{ url -m reg {} }} !{{ req.fhdr(host) -m reg {} }}",
        write_quoted(_USUAL_URL),
        write_quoted(_UNUSUAL_HOST),
    )
    yield from (usual, _SET_PATH, usual)


def write_denial_rules() -> Iterator[str]:
    """Deny requests without a path or a valid host."""
    # A tunnel (CONNECT) would bypass all access controls. Of an absolute URL, only host and path are compared.
    yield write_line("http-request deny deny_status 400 if {{ req.fhdr(host) -m reg {} }}", write_quoted(_NO_HOST))
    star = "{{ method OPTIONS }} {{ url -m str * }}"
    yield write_line(
        f"http-request deny deny_status 400 unless {{{{ url -m beg / }}}} or {{{{ path -m beg / }}}} or {star}"
    )
    yield _SET_PATH


def write_answer_backends() -> str:
    refused = f"backend {REFUSED}\n" + write_line("mode tcp") + "\n" + write_line("tcp-request content reject") + "\n"
    answers = (
        (NOWHERE, 404, "no rule for this host and path"),
        (UNAVAILABLE, 503, "the Service of this path does not exist"),
        (CLOSED, 503, "vipwire denies requests for this path: see the Events of its object"),
        (BROKEN, 500, "this route has no valid backend: see its status"),
    )
    return "".join(_write_answer_backend(*each) for each in answers) + refused


def _write_answer_backend(name: str, status: int, text: str) -> str:
    answer = write_line(
        f'http-request return status {{}} content-type text/plain string "{text}\\n"', write_plain(status)
    )
    return f"backend {name}\n{answer}\n"


def write_log_rules(layout: Layout) -> Iterator[str]:
    if layout.access_log:
        yield from (
            write_line("option httplog"),
            write_line("log global"),
            write_line("log-format {}", write_quoted(_LOG_FORMAT)),
        )
        yield write_line(f"http-request set-var(txn.host) {HOST}")
        yield write_line("http-request set-var(txn.method) method")
        yield NOTE_PATH


def write_session_rules(layout: Layout) -> Iterator[str]:
    """Write the rules for connections. HAProxy runs them before those for requests."""
    if not layout.trust_forwarded:
        # Writing an address as text is a third of the cost of its header, so it is done once for each connection.
        yield write_line("tcp-request session set-var(sess.client) src,concat()")


def write_header_rules(layout: Layout, scheme: str) -> Iterator[str]:
    """Send Pods the client's address and scheme.

    HAProxy removes such headers that clients sent, unless it trusts them (`trust_forwarded`).
    """
    said = {"For": "%[var(sess.client)]", "Proto": scheme, "Host": "%[req.fhdr(host,1)]"}
    if layout.trust_forwarded:
        said["For"] = "%[src]"
        yield write_line("http-request set-src req.hdr_ip(x-forwarded-for,-1)")
    # HTTP/2 by Upgrade (h2c) is a tunnel to the Pod that bypasses all access controls; RFC 9113 removed it.
    upgrades = "{{ req.fhdr(connection) -m sub -i upgrade }} !{{ req.fhdr(upgrade) -m sub -i h2c }}"
    yield write_line(f"http-request del-header Upgrade unless {upgrades}")
    # A proxy in a Pod removes the headers that `Connection` names (RFC 9110 7.6.1), such as those below.
    told = f"(?!{_WITH_DASHES}$)(?:{_TOLD})" if layout.trust_forwarded else _TOLD
    yield write_line("http-request del-header {} -m reg", write_quoted(f"^(?:connection|{told})$"))
    yield write_line("http-request add-header Connection Upgrade if {{ req.fhdr(upgrade) -m found }}")
    for name, value in said.items():
        kept = f" unless {{{{ req.hdr(x-forwarded-{name.lower()}) -m found }}}}" if layout.trust_forwarded else ""
        yield write_line(f"http-request add-header X-Forwarded-{name} {value}{kept}")
    yield write_line("http-request disable-l7-retry unless {{ method GET HEAD OPTIONS }}")
