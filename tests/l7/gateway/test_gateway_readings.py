"""What servers read otherwise than HAProxy never leads past a TrafficPolicy: paths, queries, headers, methods."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.fakes import http2
from tests.fakes.frameworks import FRAMEWORKS, framework
from tests.fakes.spellings import Exchange, exchanged, passed, refused
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service
from tests.l7.gateway.test_gateway_policies import policy
from tests.l7.gateway.test_gateway_policies_served import GATEWAY, PLAIN, REDIRECT, route

pytestmark = pytest.mark.attack

GUARDED = {
    "query": "queryParams: [{name: debug, value: '1'}]",
    "pattern": "queryParams: [{name: de-bug, value: '[1-3]+', type: RegularExpression}]",
    "header": "headers: [{name: X-Debug, value: '1'}]",
    "method": "method: GET",
}
PATHS = ("/admin", "/@team", "/caf%C3%A9")
in_each_version = pytest.mark.parametrize("exchange", [exchanged, http2.exchanged], ids=["HTTP/1.1", "HTTP/2"])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    folder = tmp_path_factory.mktemp("readings")
    with ExitStack() as pods, gateways(folder) as made:
        made.put(GATEWAY)
        made.pods("v1")
        for number, name in enumerate(FRAMEWORKS):
            address = f"127.0.0.{201 + number}"
            pods.enter_context(framework(name, folder, address, made.pod_port))
            made.put(service(name, address, made.pod_port))
            to = f"backendRefs: [{{name: {name}, port: 8080}}]"
            guarded = ", ".join(f"{{path: {{value: '{path}'}}}}" for path in PATHS)
            made.put(route(name, f"{{{to}}}", f"{{matches: [{{path: {{value: /admin/public}}}}], {to}}}"))
            made.put(
                route(f"{name}-guarded", f"{{matches: [{guarded}], {to}}}").replace(
                    f"{name}-guarded.org", f"{name}.org"
                )
            )
            made.put(policy("TrafficPolicy", name, "denySources: [127.0.0.0/8]", f"HTTPRoute/{name}-guarded"))
        for name, match in GUARDED.items():
            rule = f"{{name: guard, matches: [{{{match}}}], backendRefs: [{{name: v1, port: 8080}}]}}"
            made.put(route(name, rule, PLAIN))
            made.put(policy("TrafficPolicy", name, "denySources: [127.0.0.0/8]", f"HTTPRoute/{name}/guard"))
        made.put(route("routed", "{matches: [{queryParams: [{name: v, value: 'a b'}]}], " + REDIRECT + "}", PLAIN))
        list_all(made)
        made.settle()
        yield made


@in_each_version
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_spelling_of_a_path_passes_a_policy(here: GatewaySite, name: str, exchange: Exchange) -> None:
    assert here.run(refused(here.port("edge"), f"{name}.org", exchange)) == []
    assert here.run(passed(here.port("edge"), f"{name}.org", exchange)) == []


ADMIN = ":path", "/admin/x"
MALFORMED = {
    "another host": (*http2.pseudo("/admin/x", "node.org"), ("host", "else.org")),
    "two authorities": (*http2.pseudo("/admin/x", "node.org"), (":authority", "else.org")),
    "two paths": (*http2.pseudo("/", "node.org"), ADMIN),
    "two paths, guarded first": (*http2.pseudo("/admin/x", "node.org"), (":path", "/")),
    "a path behind the headers": (*http2.pseudo("/", "node.org")[:3], ("x", "y"), ADMIN),
    "a path without a slash": http2.pseudo("admin/x", "node.org"),
    "an absolute path of another host": http2.pseudo("http://else.org/admin/x", "node.org"),
    "an absolute path": http2.pseudo("http://node.org/admin/x", "node.org"),
    "a path in the authority": http2.pseudo("/", "node.org/admin/x?"),
    "a line in the path": http2.pseudo("/ HTTP/1.1\r\nX: y\r\n\r\nGET /admin/x", "node.org"),
    "a line in a header": (*http2.pseudo("/", "node.org"), ("x", "y\r\n\r\nGET /admin/x HTTP/1.1\r\nHost: node.org")),
    "a space in the method": http2.pseudo("/", "node.org", "GET /admin/x HTTP/1.1\r\nX: "),
    "a fragment": http2.pseudo("/#/../admin/x", "node.org"),
    "a tunnel": ((":method", "CONNECT"), (":authority", "node.org:80")),
    "a tunnel to a path": (
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        *http2.pseudo("/admin/x", "node.org")[1:],
    ),
    "chunks": (*http2.pseudo("/", "node.org", "POST"), ("transfer-encoding", "chunked")),
    "a hop": (*http2.pseudo("/admin/x", "node.org"), ("connection", "x-forwarded-for"), ("upgrade", "h2c")),
    "no path": http2.pseudo("/", "node.org")[:3],
}


@pytest.mark.parametrize("case", MALFORMED)
def test_no_malformed_request_of_http_2_passes_a_policy(here: GatewaySite, case: str) -> None:
    code, told = here.run(http2.asked(here.port("edge"), MALFORMED[case]))
    assert code in (400, 403, 404), told


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_path_is_not_too_long_to_be_compared(here: GatewaySite, name: str) -> None:
    """What fits into no buffer of HAProxy any more, once it is decoded, is compared with nothing."""
    for path in ("/%40team/", "/%40team;", "/x;", "/%2F", "/x%2f../admin"):
        for more in ("@", ";", "%2f", "%40", "/", "x/", "%C3%BC", "&", "a"):
            for length in (3900, 6000, 9000, 12000, 14000):
                code, told = here.run(answered(here, name, path + more * (length // len(more))))
                assert code in (400, 403, 404, 414) or not any(
                    each.startswith("guarded") for each in told["handlers"]
                )


async def answered(here: GatewaySite, host: str, path: str) -> tuple[int, dict[str, list[str]]]:
    head = f"GET {path} HTTP/1.1\r\nHost: {host}.org\r\nConnection: close\r\n\r\n"
    return await exchanged(here.port("edge"), head)


def status(
    here: GatewaySite,
    host: str,
    target: str = "/",
    *headers: str,
    method: str = "GET",
    exchange: Exchange = exchanged,
) -> int:
    lines = (f"{method} {target} HTTP/1.1", f"Host: {host}.org", *headers, "Connection: close")
    found: tuple[int, object] = here.run(exchange(here.port("edge"), "".join(f"{each}\r\n" for each in (*lines, ""))))
    return found[0]


QUERIES = {
    **dict.fromkeys(("debug=1", "%64ebug=1", "debug=%31", "x=1&debug=1", "d%65bu%67=%31&x", "debug=1&x=2"), 403),
    **dict.fromkeys(("x=2;debug=1", "x=2;%64ebug=1", "next=/p?debug=1", "debug=2&debug=1", "debug=1&debug=2"), 400),
    **dict.fromkeys(
        ("debug[]=1", "debug%5B0%5D=1", "+debug=1", "%20debug=1", "debug&x&%64ebug=1", "debug=1%zz"), 400
    ),
    **dict.fromkeys(("debug=1%00", "?debug=1"), 400),
    **dict.fromkeys(
        ("", "debug=2", "debugger=1", "x=debug=1", "debug=1;x", "debug=1?x", "debug=1+", "xdebug=1"), 200
    ),
}


@in_each_version
@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_a_query_is_read_as_pods_read_it(here: GatewaySite, query: str, exchange: Exchange) -> None:
    assert status(here, "query", f"/?{query}", exchange=exchange) == QUERIES[query]


def test_an_expression_reads_the_decoded_first_value(here: GatewaySite) -> None:
    queries = {"de-bug=1": 403, "de%2Dbug=%31%32": 403, "x=1&de-bug=3": 403, "de-bug=4": 200, "x=1;de-bug=1": 400}
    assert {query: status(here, "pattern", f"/?{query}") for query in queries} == queries


def test_a_plus_is_a_space_and_the_first_value_counts(here: GatewaySite) -> None:
    queries = {"v=a+b": 301, "v=a%20b": 301, "%76=a+b": 301, "v=a%2Bb": 200, "v=x&v=a+b": 200, "v=a+b&v=x": 301}
    queries |= dict.fromkeys(("next=/p?v=a+b", "a=b;v=a+b", "v=a+b;x", "v=a+b?x"), 200)
    assert {query: status(here, "routed", f"/?{query}") for query in queries} == queries


@in_each_version
def test_headers_that_pods_read_otherwise_are_refused(here: GatewaySite, exchange: Exchange) -> None:
    sent = {
        ("X-Debug: 1",): 403,
        ("x-dEBUG:   1  ",): 403,
        ("X_Debug: 1",): 400,
        ("X-Debug: 2", "X-Debug: 1"): 400,
        ("X-Debug: 2", "x_debug: 1"): 400,
        ("X.Debug: 1",): 400,
        ("X-Debug: 2",): 200,
        ("X-Debugger: 1",): 200,
        (): 200,
    }
    assert {headers: status(here, "header", "/", *headers, exchange=exchange) for headers in sent} == sent


@in_each_version
def test_methods_that_pods_read_otherwise_are_refused(here: GatewaySite, exchange: Exchange) -> None:
    methods = {"GET": 403, "HEAD": 400, "get": 400, "Get": 400, "G!T": 400, "OPTIONS": 200, "DELETE": 200}
    assert {method: status(here, "method", method=method, exchange=exchange) for method in methods} == methods
