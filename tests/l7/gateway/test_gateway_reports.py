"""What people report of other Gateways: a replaced prefix never loses or doubles a slash, nor the query."""

import itertools
from collections.abc import Iterator

import pytest
from tests.l7.gateway.site import GatewaySite, gateways, list_all
from tests.l7.gateway.test_gateway_policies_served import BACKEND, GATEWAY, route

PREFIXES = {
    "/": {"/": "/", "/bar": "/bar", "/bar/": "/bar/", "/bar?q=/foo/": "/bar?q=/foo/"},
    "/foo": {"/foo": "", "/foo/": "/", "/foo/bar": "/bar", "/foo/foo": "/foo", "/foo?q=1": "?q=1"},
    "/foo/": {"/foo": "", "/foo/": "/", "/foo/bar": "/bar", "/foo/bar?q=1&r": "/bar?q=1&r"},
}
"""Paths by matched prefix, each with the part that stays. A slash at the prefix's end does not count."""
REPLACEMENTS = {"root": "/", "plain": "/xyz", "slash": "/xyz/", "deep": "/a/b"}
CASES = [
    (prefix, name, path, rest)
    for (prefix, paths), name in itertools.product(PREFIXES.items(), REPLACEMENTS)
    for path, rest in paths.items()
]


def host(prefix: str, name: str) -> str:
    return f"{name}{'-'.join(('', *map(str, map(ord, prefix))))}"


def expected(name: str, rest: str) -> str:
    begin = REPLACEMENTS[name].rstrip("/")
    return begin + rest if begin or rest.startswith("/") else f"/{rest}"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("reports")) as made:
        made.put(GATEWAY)
        made.pods("v1")
        for prefix, (name, to) in itertools.product(PREFIXES, REPLACEMENTS.items()):
            path = f"path: {{type: ReplacePrefixMatch, replacePrefixMatch: '{to}'}}"
            match = f"matches: [{{path: {{value: '{prefix}'}}}}]"
            rewrite = f"filters: [{{type: URLRewrite, urlRewrite: {{{path}}}}}]"
            redirect = f"filters: [{{type: RequestRedirect, requestRedirect: {{{path}, hostname: new.org}}}}]"
            made.put(route(host(prefix, name), f"{{{match}, {rewrite}, {BACKEND}}}"))
            made.put(route(f"{host(prefix, name)}-to", f"{{{match}, {redirect}}}"))
        list_all(made)
        made.settle()
        yield made


@pytest.mark.parametrize(("prefix", "name", "path", "rest"), CASES)
def test_a_replaced_prefix_keeps_slashes_and_query(
    here: GatewaySite, prefix: str, name: str, path: str, rest: str
) -> None:
    wanted = expected(name, rest)
    answer = here.ask("edge", f"{host(prefix, name)}.org", path)
    assert answer.seen["path"] == wanted
    moved = here.ask("edge", f"{host(prefix, name)}-to.org", path)
    assert moved.headers["location"] == f"http://new.org:{here.port('edge')}{wanted}"
