"""HAProxy's complete configuration: text, maps, certificates, and the server in each slot.

Parts that commands can change (slots, maps, certificates) are separate from parts that need a reload (`Shape`).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vipwire_l7.haproxy.backends import (
    SPARE_SLOTS,
    SPARES,
    name_userlist,
    write_backend,
    write_servers,
    write_spare,
    write_userlist,
)
from vipwire_l7.haproxy.choices import (
    SHARES,
    find_shared_choices,
    write_guarding_expression,
    write_limited_expression,
)
from vipwire_l7.haproxy.frontends import (
    DEFAULT_KEY,
    Lookups,
    find_bounded_sites,
    find_needed_lookups,
    make_own_frontend,
    make_site_key,
    name_crt_list,
    split_site,
    tells_listeners_apart,
    write_frontend_parts,
    write_own_frontend_parts,
)
from vipwire_l7.haproxy.layout import FOLDER, MAPS, Layout
from vipwire_l7.haproxy.mirrors import MIRROR_FILE, write_lua, write_mirror_frontend
from vipwire_l7.haproxy.readings import APART, decode_path, is_plain
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.haproxy.words import write_line, write_plain, write_quoted
from vipwire_l7.plan.expressions import is_costly
from vipwire_l7.plan.sites import (
    NOWHERE,
    Certificate,
    Choice,
    Frontend,
    Match,
    PathSensitive,
    Pool,
    Route,
    SitePlan,
    find_path_sensitive,
)

DEFAULT_CERTIFICATE, OWN_LIST = "default.pem", "certificates.list"
_CONNECTIONS, _OTHER_FILES = 2000, 100
"""The connections for which HAProxy may open descriptors without a maximum by the operator; further descriptors."""
_OWN = Lookups()
"""The map with the prefixes of the operator's own frontend."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The part that mostly needs a reload to change. `backends` is text by pool.

    The operator's frontend has the mark "".
    """

    choices: Mapping[str, Mapping[str, Choice]]
    """The choices that are rules, by the frontend's mark and by name."""
    users: str
    backends: dict[str, str]
    lists: dict[str, dict[str, str]]
    """The crt-lists of frontends by file name: the line of each certificate. The first certificate is the default."""
    frontends: dict[str, Frontend]
    """The frontends beside the operator's own, by mark."""
    authorities: tuple[tuple[str, str], ...]
    """The CA files for endpoints' certificates: the name, which follows from the content, and the content."""
    lookups: Mapping[str, Lookups]
    """The searches of all frontends, by mark."""

    @property
    def asked(self) -> frozenset[str]:
        """The maps that any frontend looks up. HAProxy has loaded no others."""
        return frozenset[str]().union(*(each.asked for each in self.lookups.values()))


@dataclass(frozen=True, slots=True)
class Configuration:
    """A complete configuration, or a part of one, for one `Layout`. `certificates` is PEM by file name.

    The controller updates the live configuration after each command.
    """

    layout: Layout
    shape: Shape
    pools: dict[str, Pool]
    slots: dict[str, Slots]
    maps: dict[str, dict[str, str]]
    certificates: dict[str, str] = field(repr=False)
    spares: tuple[str, ...] = ()
    """The spare backends, for pools that come while HAProxy runs."""
    placed: dict[str, str] = field(default_factory=dict)
    """The spare backends in use, by pool."""

    @property
    def mirrors(self) -> bool:
        """Whether any pool mirrors requests or asks an authorization server."""
        return any(pool.policy.mirrors or pool.policy.external_auth for pool in self.pools.values())

    @property
    def descriptors(self) -> int:
        return self.server_descriptors + self.client_descriptors

    @property
    def server_descriptors(self) -> int:
        """Count HAProxy's descriptors for servers: one for each slot, used or not."""
        return sum(map(len, self.slots.values())) + len(self.spares) * SPARE_SLOTS

    @property
    def client_descriptors(self) -> int:
        """Count two descriptors for each connection, and HAProxy's others."""
        return 2 * (self.layout.connections or _CONNECTIONS) + _OTHER_FILES

    def write_text(self, mark: str) -> str:
        """Write haproxy.cfg. `mark` identifies the configuration in `show info`."""
        return "\n".join(part for _, part in self.write_parts(mark))

    def write_parts(self, mark: str) -> Iterator[tuple[str, str]]:
        """Write haproxy.cfg in parts, each with the name of its pool, or an empty text."""
        shape = self.shape
        yield "", write_process_sections(self.layout, mark, mirrors=self.mirrors)
        if shape.users:
            yield "", shape.users
        yield from write_own_frontend_parts(shape.lookups[""], shape.choices[""].values(), self.layout)
        if self.mirrors:
            yield "", write_mirror_frontend(self.layout, (each.policy for each in self.pools.values()), NOWHERE)
        for other, frontend in shape.frontends.items():
            yield from write_frontend_parts(
                frontend, shape.lookups[other], shape.choices[other].values(), self.layout
            )
        for name, text in shape.backends.items():
            yield name, text.replace(FOLDER, self.layout.folder) + write_servers(self.pools[name], self.slots[name])
        for name in self.spares:
            yield "", write_spare(name, self.layout)

    def list_files(self) -> Iterator[tuple[str, str]]:
        """Yield the files beside haproxy.cfg: name and content."""
        for name, entries in self.maps.items():
            yield f"{name}.map", "".join(f"{key} {value}\n" for key, value in entries.items())
        if self.layout.access_log:
            yield f"{SPARES}.map", ""
        yield from self.certificates.items()
        for name, lines in self.shape.lists.items():
            yield name, "".join(f"{each}\n" for each in lines.values()).replace(FOLDER, self.layout.folder)
        yield from self.shape.authorities
        if self.mirrors:
            yield MIRROR_FILE, write_lua(self.layout)


def build_configuration(
    plan: SitePlan,
    slots: Mapping[str, Slots],
    layout: Layout,
    default_pem: str,
    live: Configuration | None = None,
    *,
    anew: bool = True,
) -> Configuration:
    """Build a configuration. `slots` has its pools; HAProxy serves `default_pem` for names without a certificate.

    Unchanged texts of pools are taken from `live`. Without `anew`, the result is to be compared with `live`: the
    searches of its frontends are those of `live`, if these suffice.
    """
    apart, shared = find_path_sensitive(plan), find_shared_choices(plan.all_choices)
    known = live.shape.lookups if live is not None and not anew else {}
    frontends = (make_own_frontend(plan.choices), *plan.frontends)
    lookups = {each.mark: _find_lookups(each, plan, apart, shared, known) for each in frontends}
    maps = make_maps(plan, lookups, apart.sites, shared)
    pools = {pool.name: pool for pool in plan.pools}
    users = {name_userlist(pool.policy): write_userlist(pool.policy) for pool in plan.pools if pool.policy.login}
    shape = Shape(
        {each.mark: {one.name: one for one in each.choices if one.name not in shared} for each in frontends},
        "\n".join(users[name] for name in sorted(users)),
        {name: _find_known_text(pool, live) or _write_backend_of(pool, layout) for name, pool in pools.items()},
        _write_crt_lists(plan, None if anew else live),
        {each.mark: each for each in plan.frontends},
        plan.authorities,
        lookups,
    )
    certificates = (Certificate(DEFAULT_CERTIFICATE, default_pem), *plan.certificates)
    pems = {each.name: each.pem for each in certificates}
    return Configuration(layout, shape, pools, {name: slots[name] for name in pools}, maps, pems)


def _find_lookups(
    frontend: Frontend, plan: SitePlan, apart: PathSensitive, shared: Collection[str], known: Mapping[str, Lookups]
) -> Lookups:
    found = find_needed_lookups(frontend, plan, apart, shared)
    before = known.get(frontend.mark, found)
    return before if before.covers(found) else found


def _write_crt_lists(plan: SitePlan, live: Configuration | None) -> dict[str, dict[str, str]]:
    own = ((each.name, each.hosts) for each in plan.certificates if each.listed)
    lists = {OWN_LIST: _write_crt_list(((DEFAULT_CERTIFICATE, ()), *own))}
    for each in plan.frontends:
        known, file = live.shape.frontends.get(each.mark) if live is not None else None, name_crt_list(each)
        default = () if each.has_default else ((DEFAULT_CERTIFICATE, ()),)
        if live is not None and known is not None and known.certificates is each.certificates:
            lists[file] = live.shape.lists[file]
        else:
            lists[file] = _write_crt_list((*default, *each.certificates))
    return lists


def _write_crt_list(lines: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    return {name: " ".join((f"{FOLDER}/{name}", *to)) for name, to in lines}


class PoolError(Exception):
    """Raised when writing a pool fails unexpectedly. The caller leaves the pool out. `pool` is its name."""

    def __init__(self, pool: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.pool = pool


def _write_backend_of(pool: Pool, layout: Layout) -> str:
    try:
        return write_backend(pool, layout)
    except Exception as error:
        raise PoolError(pool.name, error) from error


def _find_known_text(pool: Pool, live: Configuration | None) -> str:
    return live.shape.backends[pool.name] if live and live.pools.get(pool.name) is pool else ""


def make_maps(
    plan: SitePlan,
    own: Mapping[str, Lookups],
    apart: Collection[str] = (),
    shared: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> dict[str, dict[str, str]]:
    """Build the maps that lead a request to its backend. `own` has the searches of each frontend, by its mark.

    `apart` are the sites whose paths lead to different places: the maps have their paths in a second spelling too.
    `shared` are entries of choices.
    """
    *first, last = MAPS
    maps: dict[str, dict[str, str]] = {
        name: {} for name in (*first, *(found.prefixes for found in own.values()), last)
    }
    for entries in shared.values():
        maps[SHARES] |= entries
    more = {f"{host}{each.mark}" for each in plan.frontends for host in each.hosts}
    maps["sites"] = {make_site_key(site): site for site in sorted(plan.sites | more)}
    for each in filter(tells_listeners_apart, plan.frontends):
        maps["listeners"] |= {make_site_key(f"{host}{each.mark}"): host for host in sorted(each.hosts)}
    bounded = dict(find_bounded_sites(plan))
    for route in sorted(plan.routes, key=lambda each: (-len(each.path), each.site, each.path)):
        if route.match is Match.EXPRESSION:
            maps["expressions"][write_route_expression(route, bounded.get(route.site, 0))] = route.target
        elif route.match is Match.EXACT:
            maps["exact"][f"{route.site}{route.path}/"] = route.target
        else:
            of = own.get(split_site(route.site)[1], _OWN)
            maps[of.prefixes][of.make_key(route.site, route.path)] = route.target
    for route in plan.routes:
        if route.site in apart and route.match is not Match.EXPRESSION and not is_plain(route.path):
            path = decode_path(route.path)
            of = own.get(split_site(route.site)[1], _OWN)
            exact = route.match is Match.EXACT
            found = maps["exact" if exact else of.prefixes]
            found.setdefault(f"{route.site}{path}/" if exact else of.make_key(route.site, path), route.target)
    maps[APART] = dict.fromkeys(sorted(apart), "1")
    if plan.default:
        maps["default"][DEFAULT_KEY] = plan.default
    return maps


def write_route_expression(route: Route, longest: int = 0) -> str:
    """Write the regular expression of a site and path. As in nginx, it need not match to the end of the path.

    `longest` is the maximum length of paths where expressions guard, 0 elsewhere.
    """
    begin, path = f"^{re.escape(route.site)}", route.path.removeprefix("^")
    return (
        write_guarding_expression(begin, path, longest)
        if longest and not is_costly(path)
        else write_limited_expression(begin, path)
    )


def write_process_sections(layout: Layout, mark: str, *, mirrors: bool = False) -> str:
    """Write `global` and `defaults`. `mark` identifies the configuration in `show info`."""
    lua = _write_lua_loading(layout) if mirrors else ()
    return "\n".join([*_write_global(layout, mark), *lua, *_write_defaults()]) + "\n"


def _write_lua_loading(layout: Layout) -> Iterator[str]:
    # HAProxy 3.1 and newer warn unless this option is set.
    yield ".if version_atleast(3.1)"
    yield write_line("tune.lua.bool-sample-conversion normal")
    yield ".endif"
    # HAProxy 2.6 crashes when filters of several threads share one Lua state, as with `lua-load`.
    yield write_line("lua-load-per-thread {}", write_quoted(layout.get_path(MIRROR_FILE)))


def _write_global(layout: Layout, mark: str) -> Iterator[str]:
    yield "global"
    yield write_line("description {}", write_plain(mark))
    yield write_line("stats socket {} mode 600 level admin expose-fd listeners", write_quoted(layout.socket))
    yield write_line("stats timeout 1m")
    yield write_line("hard-stop-after 30m")
    yield write_line("ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets")
    yield write_line("ssl-server-verify none")
    yield write_line("tune.ssl.default-dh-param 2048")
    yield write_line("tune.http.logurilen 4096")
    if layout.user:
        yield write_line("user {}", write_plain(layout.user))
        yield write_line("group {}", write_plain(layout.group))
    if layout.chroot:
        yield write_line("chroot {}", write_quoted(layout.chroot))
    if layout.threads:
        yield write_line("nbthread {}", write_plain(layout.threads))
    if layout.connections:
        yield write_line("maxconn {}", write_plain(layout.connections))
    if layout.access_log == "stdout":
        yield write_line("log stdout format raw local0 info")
    elif layout.access_log:
        yield write_line("log {} format raw local0 info", write_plain(layout.access_log))


def _write_defaults() -> Iterator[str]:
    yield "defaults"
    yield write_line("mode http")
    # HAProxy repeats an idempotent request if its server is gone.
    yield write_line("retries 3")
    yield write_line("option redispatch 1")
    yield write_line("retry-on conn-failure empty-response")
    # When a worker is replaced, it must not close a client's idle connection while a request is on its way.
    yield write_line("option idle-close-on-response")
    yield write_line("option http-keep-alive")
    # Two seconds allow for one SYN retransmission. Then HAProxy tries another server.
    for name, value in (("connect", "2s"), ("client", "60s"), ("server", "60s"), ("queue", "30s")):
        yield write_line(f"timeout {name} {value}")
    for name, value in (("http-request", "10s"), ("http-keep-alive", "60s"), ("tunnel", "1h"), ("check", "5s")):
        yield write_line(f"timeout {name} {value}")
