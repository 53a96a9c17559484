"""Writes a pool as a section `backend`, without its endpoints: these change while HAProxy runs."""

import hashlib
from collections.abc import Iterable, Iterator

from vipwire.model.names import ObjectName
from vipwire.model.net import Prefix, format_address
from vipwire_l7.haproxy.choices import REWRITING
from vipwire_l7.haproxy.cors import write_cors_request_rules, write_cors_response_rules
from vipwire_l7.haproxy.layout import FOLDER, Layout
from vipwire_l7.haproxy.mirrors import write_auth_rules, write_mirror_filters
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.haproxy.words import Word, write_line, write_literal, write_plain, write_plain_words, write_quoted
from vipwire_l7.plan.policy import (
    PLAIN,
    Affinity,
    Algorithm,
    BackendProtocol,
    Limit,
    Location,
    Policy,
    ProxyProtocol,
    Reply,
)
from vipwire_l7.plan.sites import Pool, Server
from vipwire_l7.watch.objects import BackendPort, Usability

_PROTOCOLS = {
    BackendProtocol.HTTP: "",
    BackendProtocol.HTTPS: " ssl verify none",
    BackendProtocol.H2: " proto h2",
    BackendProtocol.H2S: " ssl verify none alpn h2",
    BackendProtocol.TCP: "",
    BackendProtocol.PASSED: "",
}
_PROXY = {ProxyProtocol.NO: "", ProxyProtocol.V1: " send-proxy", ProxyProtocol.V2: " send-proxy-v2"}
_WORDS_IN_A_LINE = 20
_PASSIVE = (
    "check no-check-ssl no-check-send-proxy inter 24h fastinter 1s downinter 1s rise 1 fall 1"
    " observe layer4 error-limit 4 on-error mark-down"
)
"""HAProxy stops using a server after four failed connections in a row, until one of the checks succeeds.

HAProxy checks such a server every second. Readiness removes a server too. But if its machine is lost, that may take
40 seconds, in which each second request would wait. One request makes at most four connections: it cannot take a
server out before its last try.
"""
_UNANSWERED = "tcp-ut 15s"
"""HAProxy closes an established connection whose peer does not acknowledge data for this time.

This ends connections to a machine that was lost. The time is no shorter, since an upload to a slow server also
counts. HAProxy 2.6 reads the option from a server's line only.
"""


SPARES, SPARE_SLOTS = "spares", 8
"""The map from a spare backend, and its servers, to the pool that uses it."""
Pairs = Iterable[tuple[str, str]]


def write_backend(pool: Pool, layout: Layout) -> str:
    """Write a backend without its endpoints: the part that only a reload can change."""
    policy = pool.policy
    lines = [write_line("backend {}", write_plain(pool.name), indent=0)]
    if policy.protocol in (BackendProtocol.TCP, BackendProtocol.PASSED):
        lines.append(write_line("mode tcp"))
        lines.append(write_line("retry-on conn-failure"))
    lines += _write_balance(policy, layout)
    lines += [write_line(f"timeout {name} {{}}", write_plain(f"{value}ms")) for name, value in policy.timeouts]
    if policy.retries is not None:
        lines.append(write_line("retries {}", write_plain(policy.retries)))
    if policy.retry_on:
        lines.append(write_line("retry-on {}", write_plain_words(policy.retry_on)))
    if not _may_go_elsewhere(policy):
        lines.append(write_line("no option redispatch"))
    lines += [
        *_write_health_check(policy),
        *_write_access_controls(policy, layout),
        *_write_request_rules(policy),
        *_write_response_rules(policy, layout),
    ]
    lines.append(write_line("default-server " + _write_server_options(policy, several=not pool.external)))
    return "\n".join(lines) + "\n"


def write_servers(pool: Pool, slots: Slots) -> str:
    """Write the slots of a backend. A server of weight 0 drains: only clients with its session get it."""
    return _write_slots(slots) if pool.service.name else ""


def name_spares(pools: int) -> tuple[str, ...]:
    """Return the names of the spare backends beside so many pools.

    No pool has such a name: a namespace has no dot.
    """
    return tuple(f"spare.{number}" for number in range(min(64, max(16, pools // 10))))


def fits_spare(pool: Pool) -> bool:
    return pool.policy == PLAIN and bool(pool.service.name) and not pool.external


def write_spare(name: str, layout: Layout) -> str:
    """Write a backend for a pool that comes while HAProxy runs. The access log gets the pool's name from a map."""
    pool = Pool(name, ObjectName("", ""), BackendPort("", 0), PLAIN)
    note = f"http-request set-var(txn.spare) be_name,map_str({layout.get_map_path(SPARES)})"
    noted = write_line(note) + "\n" if layout.access_log else ""
    return write_backend(pool, layout) + noted + _write_slots((None,) * SPARE_SLOTS)


def _write_slots(slots: Slots) -> str:
    return "".join(f"    server s{number} {_write_slot(slot)}\n" for number, slot in enumerate(slots, 1))


def get_current_weight(server: Server) -> int:
    return server.weight if server.endpoint.use is Usability.READY else 0


def _write_slot(slot: Server | None) -> str:
    if slot is None:
        return f"127.0.0.1:1 weight 16 {_UNANSWERED} disabled"
    address = format_address(slot.endpoint.address)
    return f"{address}:{slot.port} weight {get_current_weight(slot)} {_UNANSWERED}"


def _may_go_elsewhere(policy: Policy) -> bool:
    """Report whether HAProxy may send a request to another server if the first does not answer."""
    return policy.redispatch and (policy.affinity is None or policy.affinity.change_on_failure)


def _write_server_options(policy: Policy, *, several: bool) -> str:
    words = "inter 2s"
    if several and _may_go_elsewhere(policy):
        words = _PASSIVE
    if policy.check:
        check = policy.check
        words = f"check inter {check.interval}ms rise {check.rise} fall {check.fall}"
        if policy.protocol is BackendProtocol.H2:
            words += " check-proto h2"
    if policy.pod_connections is not None:
        words += f" maxconn {policy.pod_connections}"
    own = f" crt {write_quoted(f'{FOLDER}/{policy.client_certificate}')}" if policy.client_certificate else ""
    return words + _write_protocol_options(policy) + own + _PROXY[policy.proxy_protocol]


def _write_protocol_options(policy: Policy) -> str:
    verify = policy.verify
    if verify is None:
        return _PROTOCOLS[policy.protocol]
    file = write_quoted(f"{FOLDER}/{verify.authorities}") if verify.authorities else "@system-ca"
    host = write_plain(verify.hostname)
    words = f" ssl verify required ca-file {file} sni str({host}) verifyhost {host}"
    return words + (" alpn h2" if policy.protocol in (BackendProtocol.H2, BackendProtocol.H2S) else "")


def _write_balance(policy: Policy, layout: Layout) -> Iterator[str]:
    balance = policy.balance
    if balance.algorithm is Algorithm.HEADER:
        yield write_line("balance hdr({})", write_plain(balance.header))
    else:
        yield write_line("balance {}", write_plain(balance.algorithm.value))
    if balance.algorithm not in (Algorithm.ROUND_ROBIN, Algorithm.LEAST_CONNECTIONS):
        yield write_line("hash-type consistent")
    if policy.affinity:
        yield from _write_cookie(policy.affinity, layout)


def _write_cookie(affinity: Affinity, layout: Layout) -> Iterator[str]:
    """Write a dynamic cookie: its value is a hash of the endpoint's address, so reloads and replicas agree."""
    words = " secure" if affinity.secure else ""
    bounds = (("maxidle", affinity.max_idle), ("maxlife", affinity.max_life))
    words += "".join(f" {name} {write_plain(seconds)}" for name, seconds in bounds if seconds is not None)
    attributes = [] if affinity.path == "/" else [f"Path={affinity.path}"]  # the last path counts (RFC 6265 5.3)
    if affinity.max_age is not None:
        attributes.append(f"Max-Age={affinity.max_age}")
    if affinity.same_site is not None:
        attributes.append(f"SameSite={affinity.same_site.value}")
    attached = Word("".join(f" attr {write_quoted(each)}" for each in attributes))
    form = f"cookie {{}} insert indirect nocache httponly dynamic{words}{{}}"
    yield write_line(form, write_plain(affinity.name), attached)
    yield write_line("dynamic-cookie-key {}", write_plain(layout.cookie_key))
    if affinity.mark:
        yield from _write_cookie_mark(affinity)


def _write_cookie_mark(affinity: Affinity) -> Iterator[str]:
    """Add the mark before the cookie value that HAProxy writes, and remove it before HAProxy reads the value."""
    name, mark = write_plain(affinity.name), write_plain(affinity.mark)
    sent, given = write_quoted(f"^(.*; *)?{name}={mark}[.](.*)$"), write_quoted(f"^{name}=(.*)$")
    yield write_line("http-request replace-header Cookie {} {}", sent, write_literal(f"\\1{name}=\\2"))
    yield write_line(
        "http-after-response replace-header Set-Cookie {} {}", given, write_literal(f"{name}={mark}.\\1")
    )


def _write_health_check(policy: Policy) -> Iterator[str]:
    if policy.check:
        yield write_line("option httpchk")
        yield write_line("http-check send meth GET uri {}", write_quoted(policy.check.path))


def _write_source_acls(name: str, prefixes: tuple[Prefix, ...]) -> Iterator[str]:
    for start in range(0, len(prefixes), _WORDS_IN_A_LINE):
        chosen = prefixes[start : start + _WORDS_IN_A_LINE]
        yield write_line(f"acl {name} src {{}}", write_plain_words(str(prefix) for prefix in chosen))


def _write_access_controls(policy: Policy, layout: Layout) -> Iterator[str]:
    """Write the access controls, the cheapest first."""
    if policy.deny:
        yield from _write_source_acls("denied", policy.deny)
        # A request without a client address cannot match a range, so it is denied.
        yield write_line("http-request deny deny_status 403 if denied or !{{ src -m found }}")
    if policy.allow:
        yield from _write_source_acls("allowed", policy.allow)
        yield write_line("http-request deny deny_status 403 unless allowed")
    if policy.limit:
        yield from _write_limits(policy.limit)
    yield from _write_redirects(policy, layout)
    if policy.body_size is not None:
        size = write_plain(policy.body_size)
        yield write_line("http-request deny deny_status 413 if {{ req.body_size gt {} }}", size)
    if policy.cors:
        yield from write_cors_request_rules(policy.cors)
    if policy.login:
        users = write_plain(name_userlist(policy))
        yield write_line(
            "http-request auth realm {} unless {{ http_auth({}) }}", write_quoted(policy.login.realm or "-"), users
        )
        yield write_line("http-request del-header Authorization")
    if policy.external_auth:
        yield from write_auth_rules(policy.external_auth)


def _write_redirects(policy: Policy, layout: Layout) -> Iterator[str]:
    if policy.https:
        where = Word(f"https://%[req.hdr(host),host_only,lower]{layout.https_suffix}%[pathq]")
        by_tls = "{{ req.hdr(x-forwarded-proto) https }}" if layout.trust_forwarded else "{{ ssl_fc }}"
        yield write_line(f"http-request redirect location {{}} code 308 unless {by_tls}", where)
    if policy.redirect:
        where = write_quoted(policy.redirect.location.replace("%", "%%") + "%[pathq]" * policy.redirect.keep_path)
        yield write_line("http-request redirect location {} code {}", where, write_plain(policy.redirect.code))
    if policy.root:
        yield write_line("http-request redirect location {} code 302 if {{ path / }}", write_literal(policy.root))


def _write_location(location: Location) -> str:
    scheme = write_plain(location.scheme) if location.scheme else "%[ssl_fc,iif(https,http)]"
    host = write_plain(location.host) if location.host else "%[req.hdr(host),host_only]"
    where = Word(f"{scheme}://{host}{write_plain(location.port) if location.port else ''}%[pathq]")
    return write_line("http-request redirect location {} code {}", where, write_plain(location.code))


def _write_reply(reply: Reply) -> str:
    file = write_quoted(f"{FOLDER}/{reply.body}") if reply.body else Word("")
    body = Word(f" content-type 'text/plain; charset=utf-8' file {file}" if reply.body else "")
    return write_line("http-request return status {}{}", write_plain(reply.code), body)


def _write_limits(limit: Limit) -> Iterator[str]:
    # A stick table counts over one period only; the requests per minute have a table of their own.
    kept = write_plain("2m" if limit.per_minute else "10s")
    yield write_line(
        "stick-table type ipv6 size 100k expire {} store conn_cur,http_req_rate(1s),gpc0_rate(60s)", kept
    )
    yield write_line("http-request track-sc0 src")
    if limit.per_second is not None:
        yield write_line(
            "http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {} }}", write_plain(limit.per_second)
        )
    if limit.per_minute is not None:
        yield write_line("http-request sc-inc-gpc0(0)")
        yield write_line(
            "http-request deny deny_status 429 if {{ sc_gpc0_rate(0) gt {} }}", write_plain(limit.per_minute)
        )
    if limit.connections is not None:
        yield write_line(
            "http-request deny deny_status 429 if {{ sc_conn_cur(0) gt {} }}", write_plain(limit.connections)
        )


def name_userlist(policy: Policy) -> str:
    text = repr(policy.login and policy.login.users)
    return f"users-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def write_userlist(policy: Policy) -> str:
    users = policy.login.users if policy.login else ()
    lines = [write_line("userlist {}", write_plain(name_userlist(policy)), indent=0)]
    lines += [write_line("user {} password {}", write_plain(name), write_quoted(digest)) for name, digest in users]
    return "\n".join(lines) + "\n"


def _write_request_rules(policy: Policy) -> Iterator[str]:
    yield from _write_header_changes("http-request", policy.remove_request, policy.set_request, policy.add_request)
    yield from _write_rewrite(policy)
    yield from write_mirror_filters(policy)
    if policy.location:
        yield _write_location(policy.location)
    if policy.reply:
        yield _write_reply(policy.reply)


def _write_rewrite(policy: Policy) -> Iterator[str]:
    if policy.rewrite:
        pattern, target = policy.rewrite.pattern, policy.rewrite.target
        yield write_line(
            "http-request replace-path {} {}", write_quoted(f"{REWRITING}{pattern}"), write_literal(target)
        )


def _write_response_rules(policy: Policy, layout: Layout) -> Iterator[str]:
    # HAProxy applies `http-response` to responses of endpoints only, not to generated responses.
    phase = "http-after-response" if policy.answers else "http-response"
    if policy.cors:
        yield from write_cors_response_rules(policy.cors)
    if policy.hsts:
        value = write_literal(policy.hsts.header)
        # Browsers ignore the header over HTTP (RFC 6797 8.1), so HAProxy may send it where it cannot tell the scheme.
        condition = "" if layout.trust_forwarded else " if {{ ssl_fc }}"
        yield write_line(f"{phase} set-header Strict-Transport-Security {{}}{condition}", value)
    yield from _write_header_changes(phase, policy.remove_response, policy.set_response, policy.add_response)


def _write_header_changes(phase: str, remove: Iterable[str], changed: Pairs, added: Pairs) -> Iterator[str]:
    for name in remove:
        yield write_line(f"{phase} del-header {{}}", write_plain(name))
    for rule, pairs in (("set-header", changed), ("add-header", added)):
        for name, value in pairs:
            yield write_line(f"{phase} {rule} {{}} {{}}", write_plain(name), write_literal(value))
