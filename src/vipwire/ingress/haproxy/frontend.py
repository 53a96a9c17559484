"""Writes HAProxy's one frontend: the steps by which a request finds its backend.

Hosts and paths are data in maps, not rules, so that a new one is a runtime command. Keys end with a slash:

    host ─▶ sites.map ─▶ site ┬─ exact.map[site + path + "/"]         a rule of type Exact
                              ├─ expressions.map[site + path]         regular expressions, the longest first
                              ├─ prefixes.map[longest of site + path + "/"]   whole elements: /foo/ is in /foo/bar/
                              └─ default.map                          a default backend

A host that has rules of its own never falls to those of a wildcard, and a wildcard's never to those without a host
(networking.k8s.io/v1 IngressRule.host): there only the default backend is left. A wildcard stands for one label.

Each step takes time of every request, so only those are written that some rule needs (`Stage`): where all rules are
prefixes of hosts in full, one search is all there is (`plain_search`). The first rule that needs another step is a
reload.

A path is compared as it was sent. Where some paths of a host are guarded and others are not, it is compared in the
form that servers take it for (RFC 3986 6.2.2), or /public/../admin would pass the guard of /admin. Pods get it as it
was sent. Some servers also take %2F and a backslash for a slash, decode twice, or leave out what follows a
semicolon: a path that would lead elsewhere if it were read so is refused with 400, for nobody knows how a Pod reads
it. A regular expression that meets PCRE's limits counts as no match; where one guards, long paths are refused (414).
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vipwire.ingress.haproxy.choices import choice_lines
from vipwire.ingress.haproxy.layout import Layout
from vipwire.ingress.haproxy.words import line, plain, plains, quoted
from vipwire.ingress.plan.sites import BROKEN, CLOSED, EVERY_HOST, NOWHERE, REFUSED, UNAVAILABLE, Choice

DEFAULT_KEY = "default"


class Stage(enum.Enum):
    """A step that not every set of rules needs. The value is why it is taken, in words for a log."""

    EXACT = "a first path of type Exact"
    EXPRESSIONS = "a first regular expression"
    WILDCARDS = "a first host with a wildcard"
    HOSTLESS = "a first rule without a host"
    DEFAULT = "a first default backend"
    GUARDS = "a first path that is guarded otherwise than others of its host"


_NEED_SITE = frozenset({Stage.EXPRESSIONS, Stage.WILDCARDS, Stage.HOSTLESS})
HOST = "req.hdr(host,1),host_only,lower"
NORMALIZE = "http-request normalize-uri "
_NORMAL_FORM = ("percent-decode-unreserved", "path-merge-slashes", "path-strip-dot", "path-strip-dotdot full")
_MISSING = "unless {{ var(txn.target) -m found }}"
_AMBIGUOUS = r"%(?:25|2f|5c|3b|00|0a|0d)|\\|;"
_READ_OTHERWISE = (("%25", "%"), (r"%(?:2f|5c)|\\\\", "/"), ("%3b", ";"), ("(?:;|%0[0ad])[^/]*", ""))
"""What some servers make of a path, in order."""
IF_AMBIGUOUS = "if {{ var(txn.ambiguous) -m bool }}"
NOTE_PATH = line("http-request set-var(txn.path) path")
Bounded = tuple[str, int]
"""A site where regular expressions guard, and how long its paths may be: PCRE gives up on long ones: no match."""
_SITES_IN_A_LINE = 20
_LOG_FORMAT = (
    '{"time":"%[date,ltime(%Y-%m-%dT%H:%M:%S%z)]","client":"%[src]","host":"%[var(txn.host),json(utf8s)]",'
    '"method":"%[var(txn.method),json(utf8s)]","path":"%[var(txn.path),json(utf8s)]","status":%ST,'
    '"backend":"%b","server":"%[srv_name]","ms":%Ta,"bytes":%B,"tls":"%sslv"}'
)


def stages_of(maps: Mapping[str, Mapping[str, str]]) -> frozenset[Stage]:
    """Return which steps the entries of maps need."""
    needed = {
        Stage.EXACT: bool(maps["exact"]),
        Stage.EXPRESSIONS: bool(maps["expressions"]),
        Stage.WILDCARDS: any(site.startswith("*.") for site in maps["sites"]),
        Stage.HOSTLESS: EVERY_HOST in maps["sites"],
        Stage.DEFAULT: bool(maps["default"]),
    }
    return frozenset(stage for stage, is_needed in needed.items() if is_needed)


def maps_of(stages: Collection[Stage]) -> Iterator[str]:
    """Name the maps that are asked; HAProxy knows no others."""
    yield "prefixes"
    if not _NEED_SITE.isdisjoint(stages):
        yield "sites"
    for stage, name in ((Stage.EXACT, "exact"), (Stage.EXPRESSIONS, "expressions"), (Stage.DEFAULT, "default")):
        if stage in stages:
            yield name


def frontend_text(
    layout: Layout, stages: Collection[Stage], choices: tuple[Choice, ...], bounded: Sequence[Bounded] = ()
) -> str:
    """Write the one frontend, and the backends that answer themselves. Paths of `bounded` sites must be short."""
    lines = ["frontend ingress", *_binds(layout), *log_lines(layout), *header_lines(layout, _scheme(layout))]
    if stages or choices or layout.access_log:
        lines.append(NOTE_PATH)
    if Stage.GUARDS in stages:
        lines += normal_form_lines()
    if stages or choices:
        lines += [*_key(layout, stages), *_bounds(bounded), *_target(layout, stages)]
        if Stage.GUARDS in stages:
            keys = (f"{each} {IF_AMBIGUOUS.format()}" for each in _key(layout, stages) if "txn.key" in each)
            lines += ambiguous_lines((*keys, *_target(layout, stages, IF_AMBIGUOUS)))
        for choice in choices:
            lines += choice_lines(choice)
        lines.append(line("use_backend %[var(txn.target)] if {{ var(txn.target) -m found }}"))
    else:
        lines += plain_search(layout.map_file("prefixes"))
    lines.append(line("default_backend {}", plain(NOWHERE)))
    own = "\n".join(lines) + "\n" if layout.http or layout.https else ""
    return own + _answers()


def plain_search(file: str) -> Iterator[str]:
    """Look up host and path in one map.

    First as they were sent, which is all that most requests need: to write the host as keys have it, in lower case
    and without a port, takes twice the time. A name that is no backend's, such as an empty one, is the default's.
    """
    sent = f"base,concat(/),map_beg({file}),set-var(txn.target)"
    yield line(f"use_backend %[var(txn.target)] if {{{{ {sent} -m found }}}}")
    # The condition always holds: it notes the path, where there is one.
    always = "{{ path,set-var(txn.path) -m found }} or TRUE"
    yield line(f"use_backend %[{HOST},concat(,txn.path,/),map_beg({file})] if {always}")


def _answers() -> str:
    """Write the backends that answer themselves."""
    refused = f"backend {REFUSED}\n" + line("mode tcp") + "\n" + line("tcp-request content reject") + "\n"
    nowhere = _answer(NOWHERE, 404, "no rule for this host and path")
    broken = _answer(BROKEN, 500, "this route leads nowhere, as its status tells")
    return nowhere + _unavailable() + _closed() + broken + refused


def _answer(name: str, status: int, text: str) -> str:
    answer = line(f'http-request return status {{}} content-type text/plain string "{text}\\n"', plain(status))
    return f"backend {name}\n{answer}\n"


def _unavailable() -> str:
    return _answer(UNAVAILABLE, 503, "the Service of this path is not there")


def _closed() -> str:
    return _answer(CLOSED, 503, "this path is closed, as Events tell")


def _binds(layout: Layout) -> Iterator[str]:
    words = " accept-proxy" if layout.accept_proxy else ""
    if layout.http:
        yield line(f"bind {{}}{words}", quoted(layout.http))
    if layout.https:
        where = quoted(layout.certificate_list)
        yield line(f"bind {{}}{words} ssl crt-list {{}} alpn h2,http/1.1", quoted(layout.https), where)


def log_lines(layout: Layout) -> Iterator[str]:
    """Write what logs requests, if anything does."""
    if layout.access_log:
        yield from (line("option httplog"), line("log global"), line("log-format {}", quoted(_LOG_FORMAT)))
        yield line(f"http-request set-var(txn.host) {HOST}")
        yield line("http-request set-var(txn.method) method")


def _scheme(layout: Layout) -> str:
    if layout.http and layout.https:
        return "%[ssl_fc,iif(https,http)]"
    return "https" if layout.https else "http"


def header_lines(layout: Layout, scheme: str) -> Iterator[str]:
    """Tell Pods the client's address and scheme. Headers of clients count only if they are balancers of ours."""
    said = {"For": "%[var(sess.client)]", "Proto": scheme, "Host": "%[req.fhdr(host)]"}
    if layout.trust_forwarded:
        said["For"] = "%[src]"
        yield line("http-request set-src req.hdr_ip(x-forwarded-for,-1)")
    else:
        # To write an address as text is a third of what its header costs: once for a connection is enough.
        yield line("tcp-request session set-var(sess.client) src,concat()")
    for name, value in said.items():
        kept = f" unless {{{{ req.hdr(x-forwarded-{name.lower()}) -m found }}}}" if layout.trust_forwarded else ""
        yield line(f"http-request set-header X-Forwarded-{name} {value}{kept}")
    # HTTP/2 that begins with a request is a tunnel to the Pod, past all guards; RFC 9113 has taken it out.
    yield line("http-request del-header Upgrade if {{ req.hdr(upgrade) -m sub -i h2c }}")
    yield line("http-request disable-l7-retry unless {{ method GET HEAD OPTIONS }}")


def normal_form_lines() -> Iterator[str]:
    """Note a path in the form in which it is compared, and put the one that was sent back."""
    yield line("http-request set-var(txn.sent) pathq")
    yield from (line(f"{NORMALIZE}{form}") for form in _NORMAL_FORM)
    yield line("http-request set-var(txn.normal) path")
    yield line("http-request set-pathq %[var(txn.sent)] if {{ var(txn.sent) -m found }}")


def _bounds(bounded: Sequence[Bounded]) -> Iterator[str]:
    """Refuse long paths where an expression guards."""
    for start in range(0, len(bounded), _SITES_IN_A_LINE):
        chosen = bounded[start : start + _SITES_IN_A_LINE]
        for longest in sorted({length for _, length in chosen}):
            yield _bound(longest, [site for site, length in chosen if length == longest])


def _bound(longest: int, sites: Iterable[str]) -> str:
    chosen, long = plains(sites), f"{{{{ path,length gt {longest} }}}}"
    return line(f"http-request return status 414 if {long} {{{{ var(txn.site) -m str {{}} }}}}", chosen)


def ambiguous_lines(search: Iterable[str]) -> Iterator[str]:
    """Refuse a path that leads elsewhere if it is read as some servers do. `search` looks it up again."""
    none = "!{{ var(txn.target) -m found }}"
    found = f"if {{{{ path -m reg -i {quoted(_AMBIGUOUS)} }}}}"
    yield line(f"http-request set-var(txn.ambiguous) bool(true) {found}")
    yield line(f"http-request set-var(txn.target) str(-) {IF_AMBIGUOUS} {none}")
    yield line(f"http-request set-var(txn.first) var(txn.target) {IF_AMBIGUOUS}")
    for pattern, text in _READ_OTHERWISE:
        form = quoted(f'%[path,regsub("{pattern}","{text}",gi)]')
        yield line(f"http-request set-path {{}} {IF_AMBIGUOUS}", form)
    # HAProxy 2.6 takes this one with a condition and then never does it; what was sent is put back for all.
    yield line(f"{NORMALIZE}{_NORMAL_FORM[0]}")
    yield from (line(f"{NORMALIZE}{form} {IF_AMBIGUOUS}") for form in _NORMAL_FORM[1:])
    yield line(f"http-request set-var(txn.normal) path {IF_AMBIGUOUS}")
    yield line("http-request set-pathq %[var(txn.sent)] if {{ var(txn.sent) -m found }}")
    yield line(f"http-request unset-var(txn.target) {IF_AMBIGUOUS}")
    yield from search
    yield line(f"http-request set-var(txn.target) str(-) {IF_AMBIGUOUS} {none}")
    same = "!{{ var(txn.target),strcmp(txn.first) eq 0 }}"
    yield line(f"http-request deny deny_status 400 {IF_AMBIGUOUS} {same}")


def _host(stages: Collection[Stage]) -> str:
    """Cut a host at a slash: behind one a client could write another path into a map's key."""
    return HOST.replace("(host,1)", "(host,1),field(1,/)") if Stage.GUARDS in stages else HOST


def _path(stages: Collection[Stage]) -> str:
    return "txn.normal" if Stage.GUARDS in stages else "txn.path"


def _key(layout: Layout, stages: Collection[Stage]) -> Iterator[str]:
    """Find the site that a host is of, and make the key that maps are asked for."""
    site = host = _host(stages)
    if not _NEED_SITE.isdisjoint(stages):
        sites, missing = layout.map_file("sites"), "unless {{ var(txn.site) -m found }}"
        yield line(f"http-request set-var(txn.site) {host},map_str({sites})")
        if Stage.WILDCARDS in stages:
            yield line(f"http-request set-var(txn.site) '{host},regsub(^[^.]*,*),map_str({sites})' {missing}")
        if Stage.HOSTLESS in stages:
            yield line(f"http-request set-var(txn.site) str({EVERY_HOST}) {missing}")
        site = "var(txn.site)"
    yield line(f"http-request set-var(txn.key) {site},concat(,{_path(stages)},/)")


def _target(layout: Layout, stages: Collection[Stage], where: str = "") -> Iterator[str]:
    lookups = {
        "exact": "var(txn.key),map_str({})",
        "expressions": f"var(txn.site),concat(,{_path(stages)}),map_reg({{}})",
        "prefixes": "var(txn.key),map_beg({})",
        "default": f"str({DEFAULT_KEY}),map_str({{}})",
    }
    asked, missing = set(maps_of(stages)), where
    for name in (name for name in lookups if name in asked):
        yield line(
            f"http-request set-var(txn.target) {lookups[name].format(layout.map_file(name))} {missing}"
        ).rstrip()
        missing = f"{where} !{{{{ var(txn.target) -m found }}}}" if where else _MISSING
