"""Which searches a Gateway's frontend makes: no more than its routes need, and all that they need."""

import pytest

from vipwire.model.names import ObjectName
from vipwire_l7.haproxy.configuration import Configuration, build_configuration
from vipwire_l7.haproxy.frontends import find_needed_lookups, hash_frontend_name
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.slots import fill_slots
from vipwire_l7.haproxy.state import compare_configurations
from vipwire_l7.plan.policy import Policy
from vipwire_l7.plan.sites import Frontend, Match, Mode, PathSensitive, Pool, Route, SitePlan
from vipwire_l7.watch.objects import BackendPort

OWNER = ObjectName("infra", "web")


@pytest.mark.parametrize(
    ("mode", "listeners", "routes", "maps", "depths", "hostless"),
    [
        (Mode.HTTP, {"*"}, ("a.org",), {"prefixes"}, (), False),
        (Mode.HTTP, {"*", "*.b.org"}, ("a.org",), {"prefixes"}, (), False),
        (Mode.HTTP, {"*"}, ("a.org", "*"), {"prefixes", "sites"}, (), True),
        (Mode.HTTP, {"*", "*.b.org"}, ("a.org", "*"), {"prefixes", "sites"}, (2,), True),
        (Mode.HTTP, {"*"}, ("*.c.b.org", "*.org"), {"prefixes", "sites"}, (3, 1), False),
        (Mode.HTTP, {"*"}, (), {"prefixes"}, (), False),
        (Mode.HTTPS, {"*", "b.org"}, ("a.org",), {"prefixes", "listeners"}, (), False),
        (Mode.TLS, {"*"}, ("a.org",), {"prefixes", "sites"}, (), False),
        (Mode.TLS_ENDED, {"a.org"}, ("a.org",), {"prefixes", "sites"}, (), False),
    ],
)
def test_only_what_routes_need_is_searched(
    mode: Mode,
    listeners: set[str],
    routes: tuple[str, ...],
    maps: set[str],
    depths: tuple[int, ...],
    *,
    hostless: bool,
) -> None:
    frontend = Frontend("gateway:80", "*:80", ":80", mode, hosts=frozenset(listeners))
    made = [Route(f"{host}:80", Match.PREFIX, "", "pool", OWNER) for host in routes]
    found = find_needed_lookups(frontend, SitePlan(tuple(made)), PathSensitive())
    assert (set(found.maps), found.depths, found.hostless) == (maps, depths, hostless)
    assert found.plain == (maps == {"prefixes"})
    assert found.asked == {FIRST if each == "prefixes" else each for each in maps}


FIRST, SECOND = (f"prefixes-{hash_frontend_name(Frontend(f'gateway:{port}', '', ''))}" for port in (80, 443))


def two_frontends(*routes: Route, access_log: str = "") -> Configuration:
    pool = Pool("pool", OWNER, BackendPort("http", 80), Policy())
    frontends = tuple(
        Frontend(f"gateway:{port}", f"*:{port}", f":{port}", mode, hosts=frozenset({"*"}))
        for port, mode in ((80, Mode.HTTP), (443, Mode.HTTPS))
    )
    nowhere = Layout("/run/x", "/run/x/sock", http="", https="", access_log=access_log)
    return build_configuration(
        SitePlan(routes, (pool,), frontends=frontends), {"pool": fill_slots((), ())}, nowhere, "PEM"
    )


def route(site: str, path: str) -> Route:
    return Route(site, Match.PREFIX, path, "pool", OWNER)


def test_a_frontend_of_prefixes_finds_hosts_as_clients_send_them_in_a_map_of_its_own() -> None:
    """So a client's port cannot lead to another frontend's routes, and a new route is a command."""
    live = two_frontends(route("a.org:80", "/x"), route("a.org:443", ""))
    assert (live.maps[FIRST], live.maps[SECOND]) == ({"a.org/x/": "pool"}, {"a.org/": "pool"})
    assert live.maps["prefixes"] == {}
    text = live.write_text("mark")
    assert f"use_backend %[base,concat(/),map_beg(/run/x/{FIRST}.map)]" in text
    more = two_frontends(route("a.org:80", "/x"), route("a.org:443", ""), route("b.org:443", ""))
    assert compare_configurations(live, more).commands == (f"add map /run/x/{SECOND}.map <<\nb.org/ pool\n",)


def test_a_frontend_that_looks_for_more_marks_the_keys_of_its_map() -> None:
    made = two_frontends(route("*:80", "/x"), route("a.org:443", ""))
    assert (made.maps[FIRST], made.maps[SECOND]) == ({"*:80/x/": "pool"}, {"a.org/": "pool"})


def test_a_log_has_the_path_where_the_search_needs_no_variable() -> None:
    text = two_frontends(route("a.org:80", "/x"), access_log="stdout").write_text("mark")
    assert text.count("http-request set-var(txn.path) path") == 2


def test_a_scheme_that_is_known_is_not_asked_for() -> None:
    text = two_frontends().write_text("mark")
    assert "X-Forwarded-Proto http\n" in text
    assert "X-Forwarded-Proto https\n" in text
    assert "iif" not in text
