"""Which searches a Gateway's frontend makes: no more than its routes need, and all that they need."""

import pytest

from vipwire.ingress.haproxy.frontends import lookups_of
from vipwire.ingress.plan.sites import Frontend, GuardedApart, Match, Mode, Route
from vipwire.model.names import ObjectName

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
    found = lookups_of(frontend, made, GuardedApart())
    assert (set(found.maps), found.depths, found.hostless) == (maps, depths, hostless)
