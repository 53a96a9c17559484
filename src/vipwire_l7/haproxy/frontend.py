"""Writes the operator's own frontend of HAProxy: the steps by which a request finds its backend.

Hosts and paths are map entries, not rules, so that a runtime command can add one. Keys end with a slash:

    host ─▶ sites.map ─▶ site ┬─ exact.map[site + path + "/"]         a rule of type Exact
                              ├─ expressions.map[site + path]         regular expressions, the longest first
                              ├─ prefixes.map[longest of site + path + "/"]   whole elements: /foo/ covers /foo/bar/
                              └─ default.map                          a default backend

A host with rules never falls back to the rules of a wildcard, nor a wildcard to rules without a host
(networking.k8s.io/v1 IngressRule.host): there, the default backend takes the request. A wildcard covers one label.

Each step costs every request time, so the frontend has only the steps that some rule needs (`Stage`): if all rules
are prefixes of exact hosts, one search suffices (`plain_search`). The first rule that needs another step needs a
reload.

HAProxy compares a path as sent, and Pods get the same path. If a server could read the path differently and another
route would match then, HAProxy denies the request (`readings`). An expression that exceeds PCRE's limits counts as no
match; where one guards, HAProxy denies long paths (414).
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vipwire_l7.haproxy.choices import SHARES, choice_lines, share_lines
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.readings import APART, READ, doubt_lines, path_lines, skip_lines
from vipwire_l7.haproxy.words import line, plains, write_plain, write_quoted
from vipwire_l7.plan.sites import BROKEN, CLOSED, EVERY_HOST, NOWHERE, REFUSED, UNAVAILABLE, Choice, Compared

DEFAULT_KEY = "default"


class Stage(enum.Enum):
    """A step that only some sets of rules need. The value is the reason for the reload, for the log."""

    EXACT = "a first path of type Exact"
    EXPRESSIONS = "a first regular expression"
    WILDCARDS = "a first host with a wildcard"
    HOSTLESS = "a first rule without a host"
    DEFAULT = "a first default backend"
    APART = "a first host whose paths lead to different places"
    SHARES = "a first split by weight"


_NEED_SITE = frozenset({Stage.EXPRESSIONS, Stage.WILDCARDS, Stage.HOSTLESS})
HOST = "req.hdr(host,1),host_only,lower,rtrim(.)"
_MISSING = "unless {{ var(txn.target) -m found }}"
NOTE_PATH = line("http-request set-var(txn.path) path")
Bounded = tuple[str, int]
"""A site where regular expressions guard, and the maximum length of its paths: PCRE gives up on longer ones."""
_SITES_IN_A_LINE = 20
_NO_HOST = "[^A-Za-z0-9._:*%[\\]-]"
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


def find_needed_stages(maps: Mapping[str, Mapping[str, str]]) -> frozenset[Stage]:
    """Return the steps that the entries of maps need."""
    needed = {
        Stage.EXACT: bool(maps["exact"]),
        Stage.EXPRESSIONS: bool(maps["expressions"]),
        Stage.WILDCARDS: any(site.startswith("*.") for site in maps["sites"]),
        Stage.HOSTLESS: EVERY_HOST in maps["sites"],
        Stage.DEFAULT: bool(maps["default"]),
        Stage.APART: bool(maps["apart"]),
        Stage.SHARES: bool(maps[SHARES]),
    }
    return frozenset(stage for stage, is_needed in needed.items() if is_needed)


def maps_of(stages: Collection[Stage]) -> Iterator[str]:
    """Return the maps that the steps look up. HAProxy loads no others."""
    yield "prefixes"
    if not _NEED_SITE.isdisjoint(stages):
        yield "sites"
    for stage in (Stage.EXACT, Stage.EXPRESSIONS, Stage.DEFAULT, Stage.APART, Stage.SHARES):
        if stage in stages:
            yield stage.name.lower()


def frontend_text(
    layout: Layout,
    stages: Collection[Stage],
    choices: tuple[Choice, ...],
    bounded: Sequence[Bounded] = (),
    deciding: Mapping[str, tuple[Compared, ...]] | None = None,
) -> str:
    """Write the one frontend, and the backends with generated responses.

    Paths of `bounded` sites have a maximum length.

    `deciding` has the conditions of choices that decide which access controls a request meets.
    """
    lines = ["frontend ingress", *_binds(layout), *log_lines(layout), *header_lines(layout, _scheme(layout))]
    searches = choices or set(stages) - {Stage.APART}
    if searches or layout.access_log:
        lines.append(NOTE_PATH)
    if searches:
        lines += [*_key(layout, stages), *_deny_long_paths(bounded), *_target(layout, stages)]
        for index, choice in enumerate(choices):
            lines += skip_lines(index)
            lines += [*doubt_lines(choice.name, (deciding or {}).get(choice.name, ())), *choice_lines(choice)]
        if Stage.SHARES in stages:
            lines += share_lines(layout.map_file(SHARES))
    if Stage.APART in stages:
        lines += path_lines(
            _site(stages), layout.map_file(APART), lambda written: _target(layout, stages, READ, written)
        )
    if searches:
        lines.append(line("use_backend %[var(txn.target)] if {{ var(txn.target) -m found }}"))
    else:
        lines += plain_search(layout.map_file("prefixes"))
    lines.append(line("default_backend {}", write_plain(NOWHERE)))
    own = "\n".join(lines) + "\n" if layout.http or layout.https else ""
    return own + _answers()


def plain_search(file: str) -> Iterator[str]:
    """Look up host and path in one map.

    HAProxy first looks them up as the client sent them, which suffices for most requests: to write the host in lower
    case without a port takes twice the time. An unknown or empty name goes to the default backend.
    """
    sent = f"base,concat(/),map_beg({file}),set-var(txn.target)"
    yield line(f"use_backend %[var(txn.target)] if {{{{ {sent} -m found }}}}")
    # The condition is always true: it stores the path, where there is one.
    always = "{{ path,set-var(txn.path) -m found }} or TRUE"
    yield line(f"use_backend %[{HOST},concat(,txn.path,/),map_beg({file})] if {always}")


def _answers() -> str:
    """Write the backends with generated responses."""
    refused = f"backend {REFUSED}\n" + line("mode tcp") + "\n" + line("tcp-request content reject") + "\n"
    answers = (
        (NOWHERE, 404, "no rule for this host and path"),
        (UNAVAILABLE, 503, "the Service of this path does not exist"),
        (CLOSED, 503, "vipwire denies requests for this path: see the Events of its object"),
        (BROKEN, 500, "this route has no valid backend: see its status"),
    )
    return "".join(_answer(*each) for each in answers) + refused


def _answer(name: str, status: int, text: str) -> str:
    answer = line(f'http-request return status {{}} content-type text/plain string "{text}\\n"', write_plain(status))
    return f"backend {name}\n{answer}\n"


def _binds(layout: Layout) -> Iterator[str]:
    words = " accept-proxy" if layout.accept_proxy else ""
    if layout.http:
        yield line(f"bind {{}}{words}", write_quoted(layout.http))
    if layout.https:
        where = write_quoted(layout.certificate_list)
        yield line(f"bind {{}}{words} ssl crt-list {{}} alpn h2,http/1.1", write_quoted(layout.https), where)


def log_lines(layout: Layout) -> Iterator[str]:
    if layout.access_log:
        yield from (line("option httplog"), line("log global"), line("log-format {}", write_quoted(_LOG_FORMAT)))
        yield line(f"http-request set-var(txn.host) {HOST}")
        yield line("http-request set-var(txn.method) method")


def _scheme(layout: Layout) -> str:
    if layout.http and layout.https:
        return "%[ssl_fc,iif(https,http)]"
    return "https" if layout.https else "http"


def header_lines(layout: Layout, scheme: str) -> Iterator[str]:
    """Deny requests without a path or a valid host, and send Pods the client's address and scheme.

    HAProxy removes such headers that clients sent, unless it trusts them (`trust_forwarded`).
    """
    # A tunnel (CONNECT) would bypass all access controls. Of an absolute URL, only host and path are compared.
    yield line("http-request deny deny_status 400 if {{ req.fhdr(host) -m reg {} }}", write_quoted(_NO_HOST))
    star = "{{ method OPTIONS }} {{ url -m str * }}"
    yield line(
        f"http-request deny deny_status 400 unless {{{{ url -m beg / }}}} or {{{{ path -m beg / }}}} or {star}"
    )
    yield line("http-request set-uri %[pathq] if !{{ url -m beg / }} {{ path -m beg / }}")
    said = {"For": "%[var(sess.client)]", "Proto": scheme, "Host": "%[req.fhdr(host)]"}
    if layout.trust_forwarded:
        said["For"] = "%[src]"
        yield line("http-request set-src req.hdr_ip(x-forwarded-for,-1)")
    else:
        # Writing an address as text is a third of the cost of its header, so it is done once for each connection.
        yield line("tcp-request session set-var(sess.client) src,concat()")
    form = f"^(?!{_WITH_DASHES}$)(?:{_TOLD})$" if layout.trust_forwarded else f"^(?:{_TOLD})$"
    yield line("http-request del-header {} -m reg", write_quoted(form))
    for name, value in said.items():
        kept = f" unless {{{{ req.hdr(x-forwarded-{name.lower()}) -m found }}}}" if layout.trust_forwarded else ""
        yield line(f"http-request set-header X-Forwarded-{name} {value}{kept}")
    # HTTP/2 by Upgrade (h2c) is a tunnel to the Pod that bypasses all access controls; RFC 9113 removed it.
    yield line("http-request del-header Upgrade if {{ req.hdr(upgrade) -m sub -i h2c }}")
    # A proxy in a Pod removes the headers that `Connection` names (RFC 9110 7.6.1), such as those above.
    upgrades = "{{ req.hdr(connection) -m sub -i upgrade }}"
    yield line(f"http-request set-header Connection Upgrade if {upgrades}")
    yield line(f"http-request del-header Connection if {{{{ req.hdr(connection) -m found }}}} !{upgrades}")
    yield line("http-request disable-l7-retry unless {{ method GET HEAD OPTIONS }}")


def _deny_long_paths(bounded: Sequence[Bounded]) -> Iterator[str]:
    """Deny long paths where an expression guards."""
    for start in range(0, len(bounded), _SITES_IN_A_LINE):
        chosen = bounded[start : start + _SITES_IN_A_LINE]
        for longest in sorted({length for _, length in chosen}):
            yield _deny_paths_longer_than(longest, [site for site, length in chosen if length == longest])


def _deny_paths_longer_than(longest: int, sites: Iterable[str]) -> str:
    chosen, long = plains(sites), f"{{{{ path,length gt {longest} }}}}"
    return line(f"http-request return status 414 if {long} {{{{ var(txn.site) -m str {{}} }}}}", chosen)


def _site(stages: Collection[Stage]) -> str:
    """Write the fetch of a request's site, after the rules of `_key`."""
    return HOST if _NEED_SITE.isdisjoint(stages) else "var(txn.site)"


def _key(layout: Layout, stages: Collection[Stage]) -> Iterator[str]:
    """Find the site of a host, where this needs more than the host's name."""
    if _NEED_SITE.isdisjoint(stages):
        return
    sites, missing = layout.map_file("sites"), "unless {{ var(txn.site) -m found }}"
    yield line(f"http-request set-var(txn.site) {HOST},map_str({sites})")
    if Stage.WILDCARDS in stages:
        yield line(f"http-request set-var(txn.site) '{HOST},regsub(^[^.]*,*),map_str({sites})' {missing}")
    if Stage.HOSTLESS in stages:
        yield line(f"http-request set-var(txn.site) str({EVERY_HOST}) {missing}")


def _target(layout: Layout, stages: Collection[Stage], path: str = "txn.path", written: str = "") -> Iterator[str]:
    """Look up the target of the path in a variable. `written` is a converter for regular expressions."""
    yield line(f"http-request set-var(txn.key) {_site(stages)},concat(,{path},/)")
    lookups = {
        "exact": "var(txn.key),map_str({})",
        "expressions": f"var(txn.site),concat(,{path}){written},map_reg({{}})",
        "prefixes": "var(txn.key),map_beg({})",
        "default": f"str({DEFAULT_KEY}),map_str({{}})",
    }
    asked, missing = set(maps_of(stages)), ""
    for name in (name for name in lookups if name in asked):
        found = lookups[name].format(layout.map_file(name))
        yield line(f"http-request set-var(txn.target) {{}} {missing}", write_quoted(found)).rstrip()
        missing = _MISSING
