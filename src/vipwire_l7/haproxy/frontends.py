"""Writes the frontends beside the operator's own: one for each address and port that a plan names. Pure.

A frontend's hosts end with its mark (`a.example.com:8080/path/`), so that no frontend finds a route of another,
though all look up the same maps. Only prefixes have a map for each frontend: where a frontend has no other routes,
its hosts need no mark, and HAProxy looks them up as clients send them (`plain_search`). A wildcard covers one label
or more, and the longest one wins:

    host ─▶ sites.map[host + mark] ─▶ sites.map[last 3 labels + "*" + mark] ─▶ … 2 labels ─▶ "*" + mark
         ─▶ exact.map[site + path + "/"] ─▶ prefixes.map[longest of site + path + "/"] ─▶ choices ─▶ pool

As in the operator's own frontend, HAProxy denies paths that servers read differently where they would lead elsewhere,
and a frontend has only the steps that some route needs.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from vipwire_l7.haproxy.choices import SHARES, choice_lines, expressions_of, longest_path, share_lines
from vipwire_l7.haproxy.frontend import HOST, NOTE_PATH, header_lines, log_lines, plain_search
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.readings import APART, READ, doubt_lines, path_lines, skip_lines
from vipwire_l7.haproxy.words import line, write_plain, write_quoted
from vipwire_l7.plan.sites import (
    EVERY_HOST,
    NOWHERE,
    REFUSED,
    Aspect,
    Choice,
    Compared,
    Frontend,
    Match,
    Mode,
    PathSensitive,
    Route,
)

SHARED = ("sites", "exact", APART)
"""The maps that all frontends share."""
_PLAIN_SEARCH = frozenset({"prefixes"})
_RULES = {Mode.HTTP: "http-request", Mode.HTTPS: "http-request"}
_NAMES = {Mode.TLS: "req.ssl_sni,lower", Mode.TLS_ENDED: "ssl_fc_sni,lower"}


@dataclass(frozen=True, slots=True)
class Lookups:
    """The maps in which a frontend looks a request up, and how.

    `depths` are the label counts of the hosts' wildcards, the highest count first. `prefixes` is the name of the
    frontend's map of path prefixes. `maps` names this map "prefixes".
    """

    prefixes: str = "prefixes"
    maps: frozenset[str] = frozenset()
    depths: tuple[int, ...] = ()
    hostless: bool = False
    apart: bool = False
    """Whether paths of one host lead to different places."""
    deciding: tuple[tuple[str, tuple[Compared, ...]], ...] = ()
    """The choices whose conditions decide which access controls a request meets, with these conditions."""
    shares: bool = False
    """Whether some choices have weights only."""
    plain: bool = False
    """Whether one search for prefixes of exact hosts suffices."""

    def kept(self, before: "Lookups") -> "Lookups":
        """Return these searches, or `before` if it finds the same and more: a removed search would need a reload."""
        same = self.prefixes == before.prefixes and set(self.deciding) <= set(before.deciding)
        some = (self.hostless, self.apart, self.shares, before.plain)
        more = (before.hostless, before.apart, before.shares, self.plain)
        covered = self.maps <= before.maps and set(self.depths) <= set(before.depths)
        return before if same and covered and all(a <= b for a, b in zip(some, more, strict=True)) else self

    @property
    def asked(self) -> frozenset[str]:
        """Return the maps that the frontend looks up."""
        more = {name for name, asked in ((APART, self.apart), (SHARES, self.shares)) if asked}
        return frozenset(self.prefixes if name == "prefixes" else name for name in self.maps | more)

    def key(self, site: str, path: str) -> str:
        return f"{split_site(site)[0] if self.plain else site}{path}/"

    @property
    def expressions(self) -> tuple[str, ...]:
        """Return the choices where a regular expression of a path decides which access controls a request meets."""
        return tuple(
            name for name, conditions in self.deciding if any(each.aspect is Aspect.PATH for each in conditions)
        )


def is_of_frontend(key: str) -> bool:
    """Report whether a map's key belongs to one of these frontends, not to the operator's own."""
    return ":" in key.partition("/")[0]


def site_key(site: str) -> str:
    """Write the key of a site in the map `sites`: that of a wildcard with a mark ends with its star."""
    host, mark = split_site(site)
    return f"{host[2:]}*{mark}" if mark and host.startswith("*.") else site


def split_site(site: str) -> tuple[str, str]:
    """Split a site into its host and its frontend's mark."""
    host, colon, rest = site.partition(":")
    return host, colon + rest


def tells_listeners_apart(frontend: Frontend) -> bool:
    """Report whether one connection may carry requests for several listeners."""
    return frontend.mode is Mode.HTTPS and len(frontend.hosts) > 1


def wildcard_depths(hosts: Iterable[str]) -> tuple[int, ...]:
    """Return the label counts of wildcards, the longest first."""
    return tuple(sorted({host.count(".") for host in hosts if host.startswith("*.")}, reverse=True))


def lookups_of(
    frontend: Frontend, routes: Iterable[Route], apart: PathSensitive, prefixes: str, shared: Collection[str] = ()
) -> Lookups:
    """Return the searches that a frontend's routes need. `prefixes` is its own map; `shared` are choices in a map."""
    hosts, kinds = set[str](), set[Match]()
    for route in routes:
        host, mark = split_site(route.site)
        if mark == frontend.mark:
            hosts.add(host)
            kinds.add(route.match)
    shares = any(each.name in shared for each in frontend.choices)
    if frontend.mode is Mode.TCP:
        return Lookups(prefixes, _PLAIN_SEARCH, shares=shares)
    hostless = EVERY_HOST in hosts
    # Without a wildcard route, an unknown host matches no route, even if a listener has a wildcard.
    falls = hostless or any(host.startswith("*.") for host in hosts)
    depths = wildcard_depths(hosts | frontend.hosts) if falls else ()
    maps = {"prefixes"} | ({"exact"} if Match.EXACT in kinds else set())
    maps |= {"sites"} if falls or frontend.mode in _NAMES else set()
    maps |= {"listeners"} if tells_listeners_apart(frontend) else set()
    return Lookups(
        prefixes,
        frozenset(maps),
        depths,
        hostless,
        any(split_site(site)[1] == frontend.mark for site in apart.sites),
        tuple((each.name, apart.choices[each.name]) for each in frontend.choices if each.name in apart.choices),
        shares,
        maps == _PLAIN_SEARCH and not frontend.choices,
    )


def frontend_parts(
    frontend: Frontend, lookups: Lookups, choices: Iterable[Choice], layout: Layout
) -> Iterator[tuple[str, str]]:
    """Write a frontend in parts, each with the name of its choice, or an empty text. `choices` are rules."""
    certificates = layout.certificate_file(list_of(frontend))
    writing = _http if frontend.mode in _RULES else _tcp
    head, tail = writing(frontend, lookups, layout, certificates)
    yield "", "\n".join([line("frontend {}", write_plain(frontend.name), indent=0), *head]) + "\n"
    rule = _RULES.get(frontend.mode, "tcp-request content")
    deciding = dict(lookups.deciding)
    for index, choice in enumerate(choices):
        guards = choice.name in lookups.expressions
        doubts = doubt_lines(choice.name, deciding.get(choice.name, ()))
        skips = skip_lines(index) if rule in _RULES.values() else ()
        yield choice.name, "\n".join((*skips, *doubts, *choice_lines(choice, rule, guards=guards))) + "\n"
    drawing = share_lines(layout.map_file(SHARES), rule) if lookups.shares else ()
    yield "", "\n".join([*drawing, *tail, *_way_in(frontend, layout)]) + "\n"


def _bind(frontend: Frontend, layout: Layout, certificates: str, protocols: str) -> str:
    words = " accept-proxy" if layout.accept_proxy or not frontend.bind else ""
    if frontend.mode in (Mode.HTTPS, Mode.TLS_ENDED):
        words += (
            f" ssl crt-list {write_quoted(certificates)}{_write_client_verification(frontend, layout)}{protocols}"
        )
    where = write_quoted(frontend.bind) if frontend.bind else layout.inner_bind(file_part(frontend))
    return f"    bind {where}{words}"


def file_part(frontend: Frontend) -> str:
    """Return the frontend's part of file names, and of the name of its socket for another frontend."""
    return hashlib.sha256(frontend.name.encode()).hexdigest()[:8]


def list_of(frontend: Frontend) -> str:
    """Return the file name of a frontend's crt-list."""
    return f"certificates-{file_part(frontend)}.list"


def _way_in(frontend: Frontend, layout: Layout) -> Iterator[str]:
    """Write the backend by which another frontend connects to this one, with the client's address (PROXY protocol).

    Only this frontend closes idle connections.
    """
    if frontend.bind:
        return
    yield line("backend {}", write_plain(frontend.inner_target), indent=0)
    yield from (line("mode tcp"), line("timeout server 24h"), line("timeout tunnel 24h"))
    yield line("server inner {} send-proxy-v2", write_quoted(layout.inner_address(file_part(frontend))))


def _write_client_verification(frontend: Frontend, layout: Layout) -> str:
    """Write the `bind` options for client certificates."""
    if not frontend.clients:
        return ""
    words = f" ca-file {write_quoted(layout.certificate_file(frontend.clients))} verify "
    return words + ("optional ca-ignore-err all crt-ignore-err all" if frontend.lets_strangers_in else "required")


def _http(frontend: Frontend, lookups: Lookups, layout: Layout, certificates: str) -> tuple[list[str], list[str]]:
    scheme = "https" if frontend.mode is Mode.HTTPS else "http"
    head = [_bind(frontend, layout, certificates, " alpn h2,http/1.1"), *log_lines(layout)]
    head += header_lines(layout, scheme)
    if not lookups.plain or layout.access_log:
        head.append(NOTE_PATH)
    tail: list[str] = []
    if lookups.apart:
        site = _site(frontend, lookups)
        tail += path_lines(
            site,
            layout.map_file(APART),
            lambda _: _target(site, lookups, layout, READ),
            lookups.expressions,
        )
    if lookups.plain:
        tail += plain_search(layout.map_file(lookups.prefixes))
    elif lookups.maps:
        head += _search(frontend, lookups, layout)
        tail.append(line("use_backend %[var(txn.target)] if {{ var(txn.target) -m found }}"))
    tail.append(line("default_backend {}", write_plain(NOWHERE)))
    return head, tail


def _search(frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    if not lookups.maps.isdisjoint(("sites", "listeners")):
        yield line(f"http-request set-var(txn.host) {HOST}")
    if "listeners" in lookups.maps:
        yield from _answer_misdirected(frontend, layout)
    if "sites" in lookups.maps:
        yield from _sites("http-request", frontend, lookups, layout)
    yield from _target(_site(frontend, lookups), lookups, layout)
    for choice in (each for each in frontend.choices if each.name in lookups.expressions):
        found = f"{{{{ var(txn.target) -m str {write_plain(choice.name)} }}}}"
        longest = longest_path(expressions_of(choice))
        yield line(f"http-request return status 414 if {found} {{{{ path,length gt {longest} }}}}")


def _site(frontend: Frontend, lookups: Lookups) -> str:
    """Write the fetch of a request's site, after the rules that look it up."""
    return "var(txn.site)" if "sites" in lookups.maps else f"{HOST},concat({frontend.mark})"


def _target(site: str, lookups: Lookups, layout: Layout, path: str = "txn.path") -> Iterator[str]:
    """Look up the target of the path in a variable."""
    host = HOST if lookups.plain else site
    yield line(f"http-request set-var(txn.key) {host},concat(,{path},/)")
    missing = ""
    for name, search in (("exact", "map_str"), (lookups.prefixes, "map_beg")):
        if name in lookups.asked:
            found = f"var(txn.key),{search}({layout.map_file(name)})"
            yield line(f"http-request set-var(txn.target) {found} {missing}").rstrip()
            missing = "if !{{ var(txn.target) -m found }}"


def _sites(rule: str, frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    """Look up the site of the host in `txn.host`."""
    default = f"{EVERY_HOST}{frontend.mark}" if lookups.hostless else ""
    yield from _look_up_host(
        rule, "txn.site", "txn.host", frontend, (layout.map_file("sites"), lookups.depths, default)
    )


def _look_up_host(
    rule: str, into: str, name: str, frontend: Frontend, search: tuple[str, tuple[int, ...], str]
) -> Iterator[str]:
    """Look up the host in the variable `name`: in a map, then its wildcards of some label counts, then a default."""
    file, depths, default = search
    missing = f"!{{{{ var({into}) -m found }}}}"
    yield line(f"{rule} set-var({into}) var({name}),concat({frontend.mark}),map_str({file})")
    for depth in depths:
        end = f"var({name}),field(-1,.,{depth}),concat(*{frontend.mark}),map_str({file})"
        longer = f"{{{{ var({name}),field(-{depth + 1},.),length gt 0 }}}}"
        yield line(f"{rule} set-var({into}) {end} if {missing} {longer}")
    if default:
        yield line(f"{rule} set-var({into}) str({default}) if {missing}")


def _answer_misdirected(frontend: Frontend, layout: Layout) -> Iterator[str]:
    """Answer 421 to a request for a listener that is not the one of the connection's SNI.

    Browsers send requests for all hosts of a certificate over one connection.
    """
    default = EVERY_HOST if EVERY_HOST in frontend.hosts else ""
    search = (layout.map_file("listeners"), wildcard_depths(frontend.hosts), default)
    yield line("tcp-request session set-var(sess.name) ssl_fc_sni,lower")
    yield from _look_up_host("tcp-request session", "sess.listener", "sess.name", frontend, search)
    yield from _look_up_host("http-request", "txn.listener", "txn.host", frontend, search)
    same = "!{{ var(txn.listener),strcmp(sess.listener) eq 0 }}"
    yield line(
        f"http-request return status 421 if {{{{ ssl_fc_has_sni }}}} {{{{ var(txn.listener) -m found }}}} {same}"
    )


def _tcp(frontend: Frontend, lookups: Lookups, layout: Layout, certificates: str) -> tuple[list[str], list[str]]:
    head = [line("mode tcp"), _bind(frontend, layout, certificates, ""), line("option tcplog")]
    tail = []
    if frontend.mode is Mode.TCP:
        key = write_plain(lookups.key(EVERY_HOST + frontend.mark, ""))
        found = f"str({key}),map_str({layout.map_file(lookups.prefixes)})"
        head.append(line("tcp-request content set-var(txn.target) {}", write_quoted(found)))
    elif lookups.maps:
        head += _choose_by_sni(frontend, lookups, layout)
    if lookups.maps:
        tail.append(line("use_backend %[var(txn.target)] if {{ var(txn.target) -m found }}"))
    tail.append(line("default_backend {}", write_plain(REFUSED)))
    return head, tail


def _choose_by_sni(frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    """Choose the target by SNI."""
    if frontend.mode is Mode.TLS:
        yield line("tcp-request inspect-delay 5s")
        yield line("tcp-request content reject unless {{ req.ssl_hello_type 1 }}")
    rule = "tcp-request content"
    yield line(f"{rule} set-var(txn.host) {_NAMES[frontend.mode]}")
    yield from _sites(rule, frontend, lookups, layout)
    yield line(f"{rule} set-var(txn.target) var(txn.site),concat(,,/),map_str({layout.map_file(lookups.prefixes)})")
