"""Writes HAProxy's frontends: the operator's own one, and one for each address and port that a plan names. Pure.

Hosts and paths are map entries, not rules, so that a command can add them. Keys of paths end with a slash:

    host ─▶ sites.map ─▶ site ┬─ exact.map[site + path + "/"]         a rule of type Exact
                              ├─ expressions.map[site + path]         regular expressions, the longest first
                              ├─ prefixes.map[longest of site + path + "/"]   whole elements: /foo/ covers /foo/bar/
                              └─ default.map                          a default backend

A host with rules never falls back to the rules of a wildcard. In the operator's frontend, a wildcard covers one
label (networking.k8s.io/v1 IngressRule.host). Elsewhere a wildcard covers one label or more, and the longest wins:

    host ─▶ sites.map[host + mark] ─▶ sites.map[last 3 labels + "*" + mark] ─▶ … 2 labels ─▶ "*" + mark

The hosts of a frontend end with its mark (`a.example.com:8080/path/`), so that no frontend finds a route of another,
though all look up the same maps. Only prefixes have a map for each frontend: where a frontend has no other routes,
its hosts need no mark, and HAProxy looks them up as clients send them (`write_plain_search`).

Each step costs every request time, so a frontend has only the steps that some route needs (`Lookups`), and usual
requests skip those that they can (`write_usual_rules`). The first route that needs another step needs a reload.
HAProxy denies a path that servers read differently if another reading leads elsewhere (`readings`). Where a regular
expression guards, HAProxy denies long paths (414), for an expression that exceeds PCRE's limits counts as no match.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from vipwire_l7.haproxy.choices import (
    SHARES,
    find_longest_path,
    list_guarding_expressions,
    write_choice,
    write_share_rules,
)
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.readings import APART, READ, write_doubt_rules, write_path_rules, write_skip_rules
from vipwire_l7.haproxy.request_rules import (
    HOST,
    NOTE_PATH,
    USE_TARGET,
    write_answer_backends,
    write_denial_rules,
    write_header_rules,
    write_log_rules,
    write_plain_search,
    write_session_rules,
    write_usual_rules,
)
from vipwire_l7.haproxy.words import write_line, write_plain, write_plain_words, write_quoted
from vipwire_l7.plan.expressions import is_costly
from vipwire_l7.plan.sites import (
    EVERY_HOST,
    NOWHERE,
    REFUSED,
    Aspect,
    Choice,
    Comparison,
    Frontend,
    Match,
    Mode,
    PathSensitive,
    SitePlan,
    find_sites_with_guarding_expressions,
)

DEFAULT_KEY = "default"
_PLAIN_SEARCH = frozenset({"prefixes"})
_RULES = {Mode.HTTP: "http-request", Mode.HTTPS: "http-request"}
_NAMES = {Mode.TLS: "req.ssl_sni,lower", Mode.TLS_ENDED: "ssl_fc_sni,lower"}
_SITES_IN_A_LINE = 20
_ONE_LABEL = 0
"""Stands for a wildcard in place of the first label of a host."""
_MISSING = "unless {{ var(txn.target) -m found }}"
Bounded = tuple[str, int]
"""A site where regular expressions guard, and the maximum length of its paths: PCRE gives up on longer paths."""


def make_own_frontend(choices: tuple[Choice, ...] = ()) -> Frontend:
    """Return the frontend at the operator's own addresses (`Layout`). Its mark is empty."""
    return Frontend("ingress", "", "", choices=choices)


@dataclass(frozen=True, slots=True)
class Lookups:
    """The maps in which a frontend looks a request up, and how.

    `prefixes` is the name of the frontend's map of path prefixes. `maps` names this map "prefixes".
    """

    prefixes: str = "prefixes"
    maps: frozenset[str] = frozenset()
    depths: tuple[int, ...] = ()
    """The label counts of the hosts' wildcards, the highest count first; `_ONE_LABEL` in the operator's frontend."""
    hostless: bool = False
    deciding: tuple[tuple[str, tuple[Comparison, ...]], ...] = ()
    """The choices whose conditions decide which access controls a request meets, with these conditions."""
    plain: bool = False
    """Whether one search for prefixes of exact hosts suffices."""
    bounded: tuple[Bounded, ...] = ()

    @property
    def searches(self) -> frozenset[str]:
        """The maps, and the ways to look up a host besides its name."""
        ways = {"wildcards": bool(self.depths), "hostless": self.hostless}
        return self.maps.union(way for way, is_needed in ways.items() if is_needed)

    def covers(self, needed: "Lookups") -> bool:
        """Report whether these searches find all that `needed` finds."""
        same = self.prefixes == needed.prefixes and self.plain <= needed.plain
        pairs = ((needed.depths, self.depths), (needed.deciding, self.deciding), (needed.bounded, self.bounded))
        return same and needed.searches <= self.searches and all(set(few) <= set(many) for few, many in pairs)

    @property
    def asked(self) -> frozenset[str]:
        """The names of the maps that the frontend looks up. HAProxy loads no others."""
        return frozenset(self.prefixes if name == "prefixes" else name for name in self.maps)

    def make_key(self, site: str, path: str) -> str:
        return f"{split_site(site)[0] if self.plain else site}{path}/"

    @property
    def expressions(self) -> tuple[str, ...]:
        """The choices where a regular expression of a path decides which access controls a request meets."""
        return tuple(
            name for name, conditions in self.deciding if any(each.aspect is Aspect.PATH for each in conditions)
        )


def make_site_key(site: str) -> str:
    """Write the key of a site in the map `sites`: that of a wildcard with a mark ends with its star."""
    host, mark = split_site(site)
    return f"{host[2:]}*{mark}" if mark and host.startswith("*.") else site


def split_site(site: str) -> tuple[str, str]:
    host, colon, rest = site.partition(":")
    return host, colon + rest


def tells_listeners_apart(frontend: Frontend) -> bool:
    """Report whether one connection may carry requests for several listeners."""
    return frontend.mode is Mode.HTTPS and len(frontend.hosts) > 1


def list_wildcard_depths(hosts: Iterable[str]) -> tuple[int, ...]:
    """Return the label counts of wildcards, the longest first."""
    return tuple(sorted({host.count(".") for host in hosts if host.startswith("*.")}, reverse=True))


def find_bounded_sites(plan: SitePlan) -> tuple[Bounded, ...]:
    """Return the maximum length of paths at sites where expressions guard: the more expressions, the shorter."""
    able: dict[str, list[str]] = {site: [] for site in find_sites_with_guarding_expressions(plan)}
    for each in plan.routes:
        if each.match is Match.EXPRESSION and each.site in able and not is_costly(each.path):
            able[each.site].append(each.path)
    return tuple((site, find_longest_path(paths)) for site, paths in able.items())


def find_needed_lookups(
    frontend: Frontend, plan: SitePlan, apart: PathSensitive, shared: Collection[str] = ()
) -> Lookups:
    """Return the searches that a frontend's routes need. `shared` are the choices in a map."""
    prefixes = f"prefixes-{hash_frontend_name(frontend)}" if frontend.mark else "prefixes"
    hosts, kinds = set[str](), set[Match]()
    for route in plan.routes:
        host, mark = split_site(route.site)
        if mark == frontend.mark:
            hosts.add(host)
            kinds.add(route.match)
    maps = {"prefixes"} | ({SHARES} if any(each.name in shared for each in frontend.choices) else set())
    if frontend.mode is Mode.TCP:
        return Lookups(prefixes, frozenset(maps))
    hostless = EVERY_HOST in hosts
    wildcards = any(host.startswith("*.") for host in hosts)
    # Without a wildcard route, an unknown host matches no route, even if a listener has a wildcard.
    falls = hostless or wildcards
    depths = list_wildcard_depths(hosts | frontend.hosts) if falls else ()
    if not frontend.mark:
        depths = (_ONE_LABEL,) if wildcards else ()
    needed = {
        "exact": Match.EXACT in kinds,
        "expressions": Match.EXPRESSION in kinds,
        "sites": falls or frontend.mode in _NAMES or Match.EXPRESSION in kinds,
        "listeners": tells_listeners_apart(frontend),
        "default": bool(plan.default) and not frontend.mark,
        APART: any(split_site(site)[1] == frontend.mark for site in apart.sites),
    }
    maps |= {name for name, is_needed in needed.items() if is_needed}
    return Lookups(
        prefixes,
        frozenset(maps),
        depths,
        hostless,
        tuple((each.name, apart.choices[each.name]) for each in frontend.choices if each.name in apart.choices),
        maps - {APART} == _PLAIN_SEARCH and not frontend.choices,
        () if frontend.mark else find_bounded_sites(plan),
    )


def write_frontend_parts(
    frontend: Frontend, lookups: Lookups, choices: Iterable[Choice], layout: Layout
) -> Iterator[tuple[str, str]]:
    """Write a frontend in parts, each with the name of its choice, or an empty text. `choices` are rules."""
    writing = _write_http if frontend.mode in _RULES else _write_tcp
    head, tail = writing(frontend, lookups, layout)
    yield "", "\n".join([write_line("frontend {}", write_plain(frontend.name), indent=0), *head]) + "\n"
    rule = _RULES.get(frontend.mode, "tcp-request content")
    deciding = dict(lookups.deciding)
    for index, choice in enumerate(choices):
        guards = choice.name in lookups.expressions
        doubts = write_doubt_rules(choice.name, deciding.get(choice.name, ()))
        skips = write_skip_rules(index) if rule in _RULES.values() else ()
        yield choice.name, "\n".join((*skips, *doubts, *write_choice(choice, rule, guards=guards))) + "\n"
    drawing = write_share_rules(layout.get_map_path(SHARES), rule) if SHARES in lookups.maps else ()
    yield "", "\n".join([*drawing, *tail, *_write_inner_backend(frontend, layout)]) + "\n"


def write_own_frontend_parts(
    lookups: Lookups, choices: Iterable[Choice], layout: Layout
) -> Iterator[tuple[str, str]]:
    """Write the operator's own frontend, if it has an address, and the backends with generated responses."""
    if layout.http or layout.https:
        yield from write_frontend_parts(make_own_frontend(), lookups, choices, layout)
    yield "", write_answer_backends()


def _write_binds(frontend: Frontend, layout: Layout, protocols: str = "") -> Iterator[str]:
    if not frontend.mark:
        words = " accept-proxy" if layout.accept_proxy else ""
        tls = f" ssl crt-list {write_quoted(layout.certificate_list)}{protocols}"
        for bind, more in ((layout.http, ""), (layout.https, tls)):
            if bind:
                yield f"    bind {write_quoted(bind)}{words}{more}"
        return
    words = " accept-proxy" if layout.accept_proxy or not frontend.bind else ""
    if frontend.mode in (Mode.HTTPS, Mode.TLS_ENDED):
        file = write_quoted(layout.get_path(name_crt_list(frontend)))
        words += f" ssl crt-list {file}{_write_client_verification(frontend, layout)}{protocols}"
    where = write_quoted(frontend.bind) if frontend.bind else layout.write_inner_bind(hash_frontend_name(frontend))
    yield f"    bind {where}{words}"


def _write_scheme(frontend: Frontend, layout: Layout) -> str:
    if not frontend.mark and layout.http and layout.https:
        return "%[ssl_fc,iif(https,http)]"
    return "https" if frontend.mode is Mode.HTTPS or (not frontend.mark and layout.https) else "http"


def hash_frontend_name(frontend: Frontend) -> str:
    """Return the frontend's part of file names, and of the name of its socket for another frontend."""
    return hashlib.sha256(frontend.name.encode()).hexdigest()[:8]


def name_crt_list(frontend: Frontend) -> str:
    return f"certificates-{hash_frontend_name(frontend)}.list"


def _write_inner_backend(frontend: Frontend, layout: Layout) -> Iterator[str]:
    """Write the backend by which another frontend connects to this one, with the client's address (PROXY protocol).

    Only this frontend closes idle connections.
    """
    if frontend.bind or not frontend.mark:
        return
    yield write_line("backend {}", write_plain(frontend.inner_target), indent=0)
    yield from (write_line("mode tcp"), write_line("timeout server 24h"), write_line("timeout tunnel 24h"))
    yield write_line(
        "server inner {} send-proxy-v2", write_quoted(layout.get_inner_address(hash_frontend_name(frontend)))
    )


def _write_client_verification(frontend: Frontend, layout: Layout) -> str:
    if not frontend.clients:
        return ""
    words = f" ca-file {write_quoted(layout.get_path(frontend.clients))} verify "
    return words + ("optional ca-ignore-err all crt-ignore-err all" if frontend.lets_strangers_in else "required")


def _write_http(frontend: Frontend, lookups: Lookups, layout: Layout) -> tuple[list[str], list[str]]:
    head = [*_write_binds(frontend, layout, " alpn h2,http/1.1"), *_write_session_rules(frontend, lookups, layout)]
    head += [*write_log_rules(layout), *write_header_rules(layout, _write_scheme(frontend, layout))]
    if lookups.plain:
        head += write_usual_rules()
    head += [*write_denial_rules(), *_write_search(frontend, lookups, layout)]
    tail: list[str] = []
    if APART in lookups.maps:
        site = _write_site_fetch(frontend, lookups)
        tail += write_path_rules(
            site,
            layout.get_map_path(APART),
            lambda written: _write_target_search(site, lookups, layout, READ, written),
            lookups.expressions,
        )
    tail += write_plain_search(layout.get_map_path(lookups.prefixes)) if lookups.plain else (USE_TARGET,)
    tail.append(write_line("default_backend {}", write_plain(NOWHERE)))
    return head, tail


def _write_session_rules(frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    yield from write_session_rules(layout)
    if "listeners" in lookups.maps:
        yield write_line("tcp-request session set-var(sess.name) ssl_fc_sni,lower")
        yield from _write_listener_search("tcp-request session", "sess", "name", frontend, layout)


def _write_search(frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    if not layout.access_log:
        yield NOTE_PATH
    if not lookups.maps.isdisjoint(("sites", "listeners")):
        yield write_line(f"http-request set-var(txn.host) {HOST}")
    if "listeners" in lookups.maps:
        yield from _write_misdirected_answer(frontend, layout)
    if "sites" in lookups.maps:
        yield from _write_site_search("http-request", frontend, lookups, layout)
    for start in range(0, len(lookups.bounded), _SITES_IN_A_LINE):
        chosen = lookups.bounded[start : start + _SITES_IN_A_LINE]
        for longest in sorted({length for _, length in chosen}):
            sites = write_plain_words(site for site, length in chosen if length == longest)
            yield _write_long_path_denial(longest, f"{{{{ var(txn.site) -m str {sites} }}}}")
    yield from _write_target_search(_write_site_fetch(frontend, lookups), lookups, layout)
    for choice in (each for each in frontend.choices if each.name in lookups.expressions):
        found = f"{{{{ var(txn.target) -m str {write_plain(choice.name)} }}}}"
        yield _write_long_path_denial(find_longest_path(list_guarding_expressions(choice)), found)


def _write_long_path_denial(longest: int, where: str) -> str:
    return write_line(f"http-request return status 414 if {{{{ path,length gt {longest} }}}} {where}")


def _write_site_fetch(frontend: Frontend, lookups: Lookups) -> str:
    """Write the fetch of a request's site, after the rules that look it up."""
    if "sites" in lookups.maps:
        return "var(txn.site)"
    return f"{HOST},concat({frontend.mark})" if frontend.mark else HOST


def _write_target_search(
    site: str, lookups: Lookups, layout: Layout, path: str = "txn.path", written: str = ""
) -> Iterator[str]:
    """Look up the target of the path in a variable. `written` is a converter for regular expressions."""
    yield write_line(f"http-request set-var(txn.key) {HOST if lookups.plain else site},concat(,{path},/)")
    missing = ""
    for name, search in (
        ("exact", "var(txn.key),map_str({})"),
        ("expressions", f"{site},concat(,{path}){written},map_reg({{}})"),
        (lookups.prefixes, "var(txn.key),map_beg({})"),
        ("default", f"str({DEFAULT_KEY}),map_str({{}})"),
    ):
        if name in lookups.asked:
            found = write_quoted(search.format(layout.get_map_path(name)))
            yield write_line(f"http-request set-var(txn.target) {{}} {missing}", found).rstrip()
            missing = _MISSING


def _write_site_search(rule: str, frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    """Look up the site of the host in `txn.host`."""
    default = f"{EVERY_HOST}{frontend.mark}" if lookups.hostless else ""
    yield from _write_host_search(
        rule, "txn.site", "txn.host", frontend, (layout.get_map_path("sites"), lookups.depths, default)
    )


def _write_listener_search(rule: str, scope: str, name: str, frontend: Frontend, layout: Layout) -> Iterator[str]:
    default = EVERY_HOST if EVERY_HOST in frontend.hosts else ""
    search = (layout.get_map_path("listeners"), list_wildcard_depths(frontend.hosts), default)
    yield from _write_host_search(rule, f"{scope}.listener", f"{scope}.{name}", frontend, search)


def _write_host_search(
    rule: str, into: str, name: str, frontend: Frontend, search: tuple[str, tuple[int, ...], str]
) -> Iterator[str]:
    """Look up the host in the variable `name`: in a map, then its wildcards of some label counts, then a default."""
    file, depths, default = search
    missing = f"!{{{{ var({into}) -m found }}}}"
    marked = f",concat({frontend.mark})" if frontend.mark else ""
    yield write_line(f"{rule} set-var({into}) var({name}){marked},map_str({file})")
    if _ONE_LABEL in depths:
        yield write_line(f"{rule} set-var({into}) 'var({name}),regsub(^[^.]*,*),map_str({file})' if {missing}")
    for depth in filter(None, depths):
        end = f"var({name}),field(-1,.,{depth}),concat(*{frontend.mark}),map_str({file})"
        longer = f"{{{{ var({name}),field(-{depth + 1},.),length gt 0 }}}}"
        yield write_line(f"{rule} set-var({into}) {end} if {missing} {longer}")
    if default:
        yield write_line(f"{rule} set-var({into}) str({default}) if {missing}")


def _write_misdirected_answer(frontend: Frontend, layout: Layout) -> Iterator[str]:
    """Answer 421 to a request for a listener that is not the one of the connection's SNI.

    Browsers send requests for all hosts of a certificate over one connection.
    """
    yield from _write_listener_search("http-request", "txn", "host", frontend, layout)
    same = "!{{ var(txn.listener),strcmp(sess.listener) eq 0 }}"
    yield write_line(
        f"http-request return status 421 if {{{{ ssl_fc_has_sni }}}} {{{{ var(txn.listener) -m found }}}} {same}"
    )


def _write_tcp(frontend: Frontend, lookups: Lookups, layout: Layout) -> tuple[list[str], list[str]]:
    head = [write_line("mode tcp"), write_line("no option idle-close-on-response"), *_write_binds(frontend, layout)]
    if frontend.mode is Mode.TCP:
        key = write_plain(lookups.make_key(EVERY_HOST + frontend.mark, ""))
        found = f"str({key}),map_str({layout.get_map_path(lookups.prefixes)})"
        head.append(write_line("tcp-request content set-var(txn.target) {}", write_quoted(found)))
    else:
        head += _write_sni_search(frontend, lookups, layout)
    return head, [USE_TARGET, write_line("default_backend {}", write_plain(REFUSED))]


def _write_sni_search(frontend: Frontend, lookups: Lookups, layout: Layout) -> Iterator[str]:
    if frontend.mode is Mode.TLS:
        yield write_line("tcp-request inspect-delay 5s")
        yield write_line("tcp-request content reject unless {{ req.ssl_hello_type 1 }}")
    rule = "tcp-request content"
    yield write_line(f"{rule} set-var(txn.host) {_NAMES[frontend.mode]}")
    yield from _write_site_search(rule, frontend, lookups, layout)
    yield write_line(
        f"{rule} set-var(txn.target) var(txn.site),concat(,,/),map_str({layout.get_map_path(lookups.prefixes)})"
    )
