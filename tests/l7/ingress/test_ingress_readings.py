"""What servers read otherwise than HAProxy never leads past a guard: paths, and the conditions of canaries."""

import asyncio
from pathlib import Path

import pytest
from tests.fakes import http2
from tests.fakes.frameworks import FRAMEWORKS, framework
from tests.fakes.spellings import Exchange, exchanged, passed, refused, spellings
from tests.l7.ingress.site import Site, backend, endpoint, endpoint_slice, in_site, ingress, rule, service

pytestmark = pytest.mark.attack

POD = "127.0.0.11"
GUARD = {"vipwire.io/deny-source-range": "127.0.0.0/8"}


in_each_version = pytest.mark.parametrize("exchange", [exchanged, http2.exchanged], ids=["HTTP/1.1", "HTTP/2"])


@in_each_version
@pytest.mark.parametrize("name", FRAMEWORKS)
@in_site()
async def test_no_spelling_of_a_path_passes_a_guard(
    here: Site, tmp_path: Path, name: str, exchange: Exchange
) -> None:
    with framework(name, tmp_path, POD, here.pod_port):
        here.put(service("web"), endpoint_slice("web", here.pod_port, [endpoint(POD)]))
        here.put(ingress("web", rule("a.example.com", "/", "/admin/public")))
        here.put(ingress("admin", rule("a.example.com", "/admin", "/@team", "/caf%C3%A9"), annotations=GUARD))
        await here.settled()
        assert await refused(here.http, "a.example.com", exchange) == []
        assert len(spellings()) > 1000
        assert await passed(here.http, "a.example.com", exchange) == []
        status, _ = await exchange(
            here.http, "GET /admin/x HTTP/1.1\r\nHost: a.example.com\r\nConnection: close\r\n\r\n"
        )
        assert status == 403


@pytest.mark.parametrize("name", FRAMEWORKS)
@in_site()
async def test_no_spelling_of_a_path_passes_an_expression_or_another_kind_of_rule(
    here: Site, tmp_path: Path, name: str
) -> None:
    with framework(name, tmp_path, POD, here.pod_port):
        here.put(service("web"), endpoint_slice("web", here.pod_port, [endpoint(POD)]))
        hosts = ("*.w.example.com", "")
        here.put(ingress("web", *(rule(host, "/", "/admin/public") for host in hosts), rule("r.example.com", "/")))
        here.put(ingress("exact", rule("r.example.com", "/x", kind="Exact"), rule("d.example.com", "/x")))
        here.put(ingress("default", defaultBackend=backend("web")))
        guarded = ("/admin", "/@team", "/caf%C3%A9")
        here.put(ingress("admin", *(rule(host, *guarded) for host in (*hosts, "d.example.com")), annotations=GUARD))
        expressions = rule("r.example.com", "/admin", "/@[a-z]+", "/caf%C3%A9", kind="ImplementationSpecific")
        here.put(ingress("some", expressions, annotations=GUARD | {"vipwire.io/use-regex": "true"}))
        await here.settled()
        for host in ("x.w.example.com", "unknown.org", "r.example.com", "d.example.com"):
            assert await passed(here.http, host) == [], host
        assert await refused(here.http, "x.w.example.com") == []
        status, told = await exchanged(
            here.http, "GET /a+b:c/x=y HTTP/1.1\r\nHost: r.example.com\r\nConnection: close\r\n\r\n"
        )
        assert (status, told["raw"]) == (200, "/a+b:c/x=y")


OWN = {
    "/a;b": "read it as /a, which leads elsewhere",
    "/a//b": "read it as /a/b, which leads elsewhere",
    "/a%2Fb": "read it as /a/b, which leads elsewhere",
    "/a/../b": "read it in several ways",
    "/a;b/c": "read it in several ways",
    "/%7a": "read it in several ways",
    "/api;v=1": "",
    "/caf%C3%A9": "",
    "/.well-known": "",
    "/@team": "",
}


@in_site()
async def test_a_rule_whose_own_path_is_refused_says_so(here: Site) -> None:
    await here.pods("web", "127.0.0.11")
    await here.pods("other", "127.0.0.12")
    here.put(ingress("root", rule("a.example.com", "/")))
    here.put(ingress("odd", rule("a.example.com", *OWN, "/api", service="other")))
    here.put(ingress("alike", rule("b.example.com", "/", *OWN)))
    await here.settled()
    for path, text in OWN.items():
        line = f"GET {path} HTTP/1.1\r\nHost: {{}}.example.com\r\nConnection: close\r\n\r\n"
        assert (await code(here, line.format("a"))) == (400 if text else 200), path
        assert (await code(here, line.format("b"))) == 200, path
        line = f".path: HAProxy answers 400 to requests for {path}: some servers {text}"
        assert (line in here.problems) == bool(text), path
    assert here.problems.count("Ingress default/odd") == sum(map(bool, OWN.values()))
    assert "default/alike" not in here.problems


async def code(here: Site, request: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", here.http)
    writer.write(request.encode())
    head = await reader.read()
    writer.close()
    return int(head.split(None, 2)[1])


async def status(here: Site, headers: str, exchange: Exchange) -> int:
    lines = ("GET / HTTP/1.1", "Host: a.example.com", headers, "Connection: close", "", "")
    return (await exchange(here.http, "\r\n".join(lines)))[0]


@in_each_version
@pytest.mark.parametrize(
    ("chosen", "sent"),
    [
        (
            {"canary-by-header": "X-New"},
            {
                "X-New: always": 200,
                "X_New: always": 400,
                "X-New: never\r\nX-New: always": 400,
                "X-Newer: always": 403,
            },
        ),
        (
            {"canary-by-cookie": "new"},
            {"Cookie: new=always": 200, "Cookie: new=never; new=always": 400, 'Cookie: new="always"': 400}
            | {
                "Cookie: new=never\r\nCookie: new=always": 400,
                'Cookie: x="; new=always; y="': 400,
                "Cookie: x=1": 403,
            },
        ),
    ],
    ids=["header", "cookie"],
)
@in_site()
async def test_a_canary_that_is_guarded_otherwise_is_chosen_by_what_all_read_alike(
    here: Site, chosen: dict[str, str], sent: dict[str, int], exchange: Exchange
) -> None:
    await here.pods("web", POD)
    here.put(ingress("main", rule("a.example.com", "/"), annotations=GUARD))
    asked = {"canary": "true", "allow-source-range": "127.0.0.0/8", "deny-source-range": "192.0.2.1"} | chosen
    asked = {f"vipwire.io/{name}": value for name, value in asked.items()}
    here.put(ingress("canary", rule("a.example.com", "/"), annotations=asked))
    await here.settled()
    assert {headers: await status(here, headers, exchange) for headers in sent} == sent
