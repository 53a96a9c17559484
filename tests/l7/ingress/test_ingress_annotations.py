"""Annotations, each with curl: what it does to a request, and what is said of a bad one."""

import asyncio
import contextlib
import csv
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web
from tests.l7.ingress.site import Site, endpoint, endpoint_slice, in_site, ingress, rule, secret, service

from vipwire_l7.run.control import ask_haproxy

ONE, TWO, THREE = "127.0.0.11", "127.0.0.12", "127.0.0.13"
HASHES = {
    "anna": "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA",
    "bert": "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
    "cleo": "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
}
"""Of the word `secret`: SHA-256, SHA-512, bcrypt (crypt(5))."""


def ours(**values: str) -> dict[str, str]:
    """Write our annotations; underscores are hyphens."""
    return {f"vipwire.io/{name.replace('_', '-')}": value for name, value in values.items()}


async def serve(here: Site, *hosts: str, path: str = "/", kind: str = "Prefix", **values: str) -> None:
    """Serve hosts with annotations."""
    await here.pods("web", ONE)
    rules = (rule(f"{host}.example.com", path, kind=kind) for host in hosts)
    here.put(ingress(hosts[0], *rules, annotations=ours(**values)))
    await here.settled()


async def serve_each(here: Site, annotations: dict[str, dict[str, str]]) -> None:
    """Serve hosts, each by an Ingress with annotations of its own."""
    await here.pods("web", ONE)
    for host, asked in annotations.items():
        here.put(ingress(host, rule(f"{host}.example.com", "/"), annotations=asked))
    await here.settled()


@in_site()
async def test_headers_are_set_and_removed(here: Site) -> None:
    await serve(
        here,
        "a",
        set_request_headers='X-One: 100% "quoted" \\ $HOME %[src] # no comment\nX-Two: b',
        remove_request_headers="X-Bad, X-Worse",
        set_response_headers="X-Frame-Options: DENY",
        remove_response_headers="Server",
    )
    answer = await here.curl("http://a.example.com/", "-H", "X-Bad: 1", "-H", "X-Good: 2")
    seen = answer.seen["headers"]
    assert seen["x-one"] == '100% "quoted" \\ $HOME %[src] # no comment'
    assert (seen["x-two"], seen["x-good"], "x-bad" in seen) == ("b", "2", False)
    assert answer.headers["x-frame-options"] == "DENY"
    assert "server" not in answer.headers
    assert seen["x-forwarded-for"] == "127.0.0.1"


REWRITES: tuple[tuple[str, str, dict[str, str], str, str], ...] = (
    ("/app", "Prefix", ours(rewrite_target="/"), "/app/x?y=z", "/x?y=z"),
    ("/app", "Prefix", ours(rewrite_target="/"), "/app", "/"),
    ("/app", "Prefix", ours(rewrite_target="/v2/"), "/app/x", "/v2/x"),
    ("/app", "Exact", ours(rewrite_target="/v2"), "/app", "/v2"),
    ("/app", "Prefix", {"nginx.ingress.kubernetes.io/rewrite-target": "/"}, "/app/x", "/"),
    ("/app", "Prefix", {"haproxy-ingress.github.io/rewrite-target": "/v2"}, "/app/x", "/v2/x"),
    ("/a(/|$)(.*)", "ImplementationSpecific", ours(use_regex="true", rewrite_target="/$2"), "/a/x/y", "/x/y"),
    (
        "/b(/|$)(.*)",
        "ImplementationSpecific",
        {"nginx.ingress.kubernetes.io/rewrite-target": "/$2"},
        "/b/x/y",
        "/x/y",
    ),
    ("/v[0-9]+/(.*)", "ImplementationSpecific", ours(use_regex="true"), "/v12/x", "/v12/x"),
)
"""Path, kind, annotations; what is asked for, and what the Pod sees."""


@in_site()
async def test_rewrites(here: Site) -> None:
    await here.pods("web", ONE)
    for number, (path, kind, annotations, _, _) in enumerate(REWRITES):
        made = rule(f"h{number}.example.com", path, kind=kind)
        here.put(ingress(f"web-{number}", made, annotations=annotations))
    await here.settled()
    asked = [f"http://h{number}.example.com{row[3]}" for number, row in enumerate(REWRITES)]
    found = [(await here.curl(url)).seen["path"] for url in asked]
    assert found == [row[4] for row in REWRITES]


@in_site()
async def test_sources_are_allowed_and_denied(here: Site) -> None:
    await serve(here, "a", allow_source_range="10.0.0.0/8, 127.0.0.1")
    await serve(here, "b", allow_source_range="10.0.0.0/8")
    await serve(here, "c", deny_source_range="127.0.0.0/8")
    await serve(here, "d", allow_source_range="10.0.0.0/33")
    assert await here.codes_of(*"abcd") == {"a": 200, "b": 403, "c": 403, "d": 503}
    assert "the Ingress answers 503, since this annotation guards it" in here.problems


@in_site()
async def test_a_password_is_asked_for(here: Site) -> None:
    users = (f"{name}:{digest}\n" for name, digest in HASHES.items())
    here.put(secret("users", auth=f"{''.join(users)}bad line\n"))
    await serve(here, "a", auth_secret="users", auth_realm="My own site")  # noqa: S106  # a name
    await serve(here, "b", auth_secret="absent")  # noqa: S106  # a name
    answer = await here.curl("http://a.example.com/")
    assert (answer.code, answer.headers["www-authenticate"]) == (401, 'Basic realm="My own site"')
    assert (await here.curl("http://a.example.com/", "-u", "anna:wrong")).code == 401
    for name in HASHES:
        good = await here.curl("http://a.example.com/", "-u", f"{name}:secret")
        assert (good.code, "authorization" in good.seen["headers"]) == (200, False)
    assert (await here.curl("http://b.example.com/")).code == 503
    assert "Secret default/absent has no users in its key `auth`; the Ingress answers 503" in here.problems


@in_site()
async def test_rates_and_connections_are_limited(here: Site) -> None:
    await serve(here, "a", limit_rpm="5")
    await serve(here, "b", limit_connections="100")
    await serve(here, "c", limit_rpm="5", limit_rps="1000")
    for host in "ac":
        codes = [(await here.curl(f"http://{host}.example.com/")).code for _ in range(8)]
        assert codes == [200] * 5 + [429] * 3
    assert (await here.curl("http://b.example.com/")).code == 200


@in_site()
async def test_a_limit_holds_where_ingress_nginx_would_loosen_it(here: Site) -> None:
    """A limit that is too strict is named; one that is left out guards nothing."""
    nginx = "nginx.ingress.kubernetes.io/"
    loosened = {"limit-rpm": "5", "limit-burst-multiplier": "10", "limit-whitelist": "127.0.0.0/8"}
    await here.pods("web", ONE)
    asked = {f"{nginx}{name}": value for name, value in loosened.items()}
    here.put(ingress("a", rule("a.example.com", "/"), annotations=asked))
    await here.settled()
    assert [(await here.curl("http://a.example.com/")).code for _ in range(8)] == [200] * 5 + [429] * 3
    for name in ("limit-burst-multiplier", "limit-whitelist"):
        assert f"[{nginx}{name}]: is not supported; it is ignored" in here.problems


@in_site()
async def test_too_many_at_once_are_refused(here: Site) -> None:
    await serve(here, "a", limit_connections="1")
    await serve(here, "b", limit_rps="1")
    async with aiohttp.ClientSession() as session:
        url, host = f"http://127.0.0.1:{here.http}/", {"Host": "a.example.com"}
        async with session.ws_connect(url, headers=host):
            assert (await here.curl("http://a.example.com/")).code == 429

        async def released() -> bool:
            return (await here.curl("http://a.example.com/")).code == 200

        await until(released)
    codes = await asyncio.gather(*(here.curl("http://b.example.com/") for _ in range(6)))
    assert {answer.code for answer in codes} == {200, 429}


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a fact of another process."""
    async with asyncio.timeout(30):
        while not await fact():  # noqa: ASYNC110  # of another process nobody is told
            await asyncio.sleep(0.05)


@in_site()
async def test_times_that_run_out(here: Site) -> None:
    await serve(here, "server", timeout_server="200ms", retries="0")
    await serve(here, "tunnel", timeout_tunnel="1s")
    await serve(here, "nginx")
    nginx = {"nginx.ingress.kubernetes.io/proxy-read-timeout": "1"}
    here.put(ingress("nginx", rule("nginx.example.com", "/"), annotations=nginx))
    await here.settled()
    for host in ("server", "nginx"):
        assert (await here.curl(f"http://{host}.example.com/", "-H", "X-Slow: 50")).code == 504
    assert (await here.curl("http://tunnel.example.com/", "-H", "X-Slow: 1.2")).code == 200
    async with aiohttp.ClientSession() as session:
        url, host_header = f"http://127.0.0.1:{here.http}/", {"Host": "tunnel.example.com"}
        async with session.ws_connect(url, headers=host_header) as talk:
            await talk.send_str("hello")
            assert await talk.receive_str(timeout=60) == "echo hello"
            assert (await talk.receive(timeout=60)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)


@in_site()
async def test_requests_wait_for_a_pod_that_is_busy_but_not_for_ever(here: Site) -> None:
    await serve(here, "short", pod_connections="1", timeout_queue="200ms")
    await serve(here, "long", pod_connections="1", timeout_queue="60s")
    await serve(here, "free")
    theirs = {"haproxy-ingress.github.io/maxconn-server": "1", "haproxy-ingress.github.io/timeout-queue": "250ms"}
    here.put(ingress("theirs", rule("theirs.example.com", "/"), annotations=theirs))
    await here.settled()

    hosts, busy = ("short", "long", "free", "theirs"), ("-H", "X-Slow: until released")
    async with asyncio.TaskGroup() as tasks:
        slow = [tasks.create_task(here.curl(f"http://{host}.example.com/", *busy)) for host in hosts]
        async with asyncio.timeout(60):
            while len(here.served) < len(hosts):  # noqa: ASYNC110  # of a curl nobody is told
                await asyncio.sleep(0.02)
        waiting = tasks.create_task(here.curl("http://long.example.com/"))
        assert await here.codes_of("short", "free", "theirs") == {"short": 503, "free": 200, "theirs": 503}
        assert not waiting.done()
        assert not any(each.done() for each in slow)
        here.released.set()
    assert {each.result().code for each in (*slow, waiting)} == {200}


@in_site()
async def test_a_pod_that_takes_no_connection_is_given_up_in_time(here: Site) -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server((TWO, here.pod_port), backlog=0))
        for _ in range(2):  # what is beyond the backlog gets no answer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003  # the socket's own name for it
            waiting.connect_ex(full.getsockname())
        await here.pods("other", ONE)
        here.put(service("web"), endpoint_slice("web", here.pod_port, [endpoint(TWO)]))
        annotations = ours(timeout_connect="100ms", retries="1")
        here.put(ingress("web", rule("a.example.com", "/"), annotations=annotations))
        await here.settled()
        assert (await here.curl("http://a.example.com/")).code == 503  # curl waits for 60 s, HAProxy for 5 s


@in_site()
async def test_a_dead_pod_is_tried_again_elsewhere_unless_that_is_denied(here: Site) -> None:
    await serve(here, "default")
    await serve(here, "same", redispatch="false", retries="1")
    await serve(here, "once", redispatch="false", retries="0")  # else HAProxy might leave it out by now
    await here.pods("web", ONE, TWO)
    await here.settled()
    await here.end_pod(TWO)
    found = {}
    for host in ("default", "same", "once"):
        found[host] = {(await here.curl(f"http://{host}.example.com/")).code for _ in range(6)}
    assert found == {"default": {200}, "same": {200, 503}, "once": {200, 503}}


@in_site()
async def test_a_pod_that_does_not_answer_is_left_out_until_it_answers_again(here: Site, tmp_path: Path) -> None:
    async def redispatches() -> int:
        (text,) = await ask_haproxy(tmp_path / "run/haproxy.sock", ["show stat"])
        head, *rows = csv.reader(text.removeprefix("# ").splitlines())
        found = (dict(zip(head, row, strict=False)) for row in rows if row)
        return sum(int(row["wredis"] or 0) for row in found if row["svname"] == "BACKEND")

    await serve(here, "default")
    await here.pods("web", ONE, TWO)
    await here.settled()
    await here.end_pod(TWO)
    assert await here.pods_of("http://default.example.com/", times=12) == {ONE}
    assert await redispatches() <= 4  # the others did not try it
    await here.pod(TWO)
    while TWO not in await here.pods_of("http://default.example.com/"):
        pass  # until HAProxy has tried it: once a second


@in_site()
async def test_redirects_elsewhere(here: Site) -> None:
    new, nginx = "https://new.example.com", "nginx.ingress.kubernetes.io/"
    asked = {
        "moved": ours(permanent_redirect=f"{new}/x%20y"),
        "kept": {f"{nginx}permanent-redirect": f"{new}$request_uri", f"{nginx}permanent-redirect-code": "308"},
        "away": {"haproxy-ingress.github.io/redirect-to": new},
        "root": {f"{nginx}app-root": "/app"},
    }
    await serve_each(here, asked)
    found = {
        host: (answer.code, answer.headers.get("location"))
        for host in asked
        for answer in [await here.curl(f"http://{host}.example.com/{'' if host == 'root' else 'a?b=c'}")]
    }
    assert found == {
        "moved": (301, f"{new}/x%20y"),
        "kept": (308, f"{new}/a?b=c"),
        "away": (302, new),
        "root": (302, "/app"),
    }
    assert (await here.curl("http://root.example.com/app")).code == 200


@in_site()
async def test_guards_of_others_that_are_not_to_be_had_close_an_ingress(here: Site) -> None:
    nginx = "nginx.ingress.kubernetes.io/"
    asked = {
        "tls": {f"{nginx}auth-tls-secret": "default/ca"},
        "asked": {f"{nginx}auth-url": "https://sso.example.com/auth"},
        "off": {f"{nginx}enable-modsecurity": "false", f"{nginx}proxy-buffer-size": "8k"},
    }
    await serve_each(here, asked)
    assert await here.codes_of(*asked) == {"tls": 503, "asked": 503, "off": 200}
    assert "[nginx.ingress.kubernetes.io/auth-url]: is not supported; the Ingress answers 503" in here.problems
    assert "[nginx.ingress.kubernetes.io/proxy-buffer-size]: is not supported; it is ignored" in here.problems


@in_site()
async def test_bodies_are_limited(here: Site) -> None:
    await serve(here, "a", body_size="1k")
    answers = [await here.curl("http://a.example.com/", "-d", "x" * size) for size in (1000, 1025)]
    assert [answer.code for answer in answers] == [200, 413]


@in_site()
async def test_hsts_over_tls_only(here: Site) -> None:
    await serve(here, "a", hsts="true", hsts_max_age="60", hsts_include_subdomains="true", hsts_preload="true")
    answers = [await here.curl(f"{scheme}://a.example.com/") for scheme in ("http", "https")]
    found = [answer.headers.get("strict-transport-security") for answer in answers]
    assert found == [None, "max-age=60; includeSubDomains; preload"]


@in_site()
async def test_cross_origin_requests(here: Site) -> None:
    await serve(here, "any", cors="true", cors_allow_methods="GET", cors_allow_headers="X-A", cors_max_age="9")
    await serve(here, "told", cors="true", cors_expose_headers="X-Pod, X-B")
    origins = "https://app.example.org, https://*.example.net"
    await serve(here, "some", cors="true", cors_allow_origin=origins, cors_allow_credentials="true")
    flags = ("-X", "OPTIONS", "-H", "Origin: https://x.example.net")
    answer = await here.curl("http://some.example.com/", *flags)
    assert (answer.code, here.served) == (204, [])
    assert answer.headers["access-control-allow-origin"] == "https://x.example.net"
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert "PATCH" in answer.headers["access-control-allow-methods"]
    answer = await here.curl("http://any.example.com/", *flags)
    asked = [answer.headers[f"access-control-{what}"] for what in ("allow-methods", "allow-headers", "max-age")]
    assert asked == ["GET", "X-A", "9"]
    answer = await here.curl("http://told.example.com/", "-H", "Origin: https://x.org")
    assert answer.headers["access-control-expose-headers"] == "X-Pod, X-B"
    name = "access-control-allow-origin"
    found = [
        (await here.curl(f"http://{host}.example.com/", "-H", f"Origin: {origin}")).headers.get(name)
        for host, origin in (
            ("any", "https://evil.org"),
            ("some", "https://app.example.org"),
            ("some", "https://evil.org"),
            ("some", "https://example.net.evil.org"),
        )
    ]
    assert found == ["*", "https://app.example.org", None, None]


async def pods_by_header(here: Site, host: str, *headers: str) -> dict[str, set[str]]:
    """Ask a few times with each of some headers; tell which Pods answer."""
    return {header: await here.pods_of(f"http://{host}.example.com/", "-H", header, times=5) for header in headers}


@in_site()
async def test_a_canary_gets_its_part(here: Site) -> None:
    await here.pods("other", TWO)
    await serve(here, "a")
    prefix = "nginx.ingress.kubernetes.io/canary"
    asked = {
        prefix: "true",
        f"{prefix}-weight": "30",
        f"{prefix}-by-header": "X-Canary",
        f"{prefix}-by-cookie": "try",
    }
    here.put(ingress("canary", rule("a.example.com", "/", service="other"), annotations=asked))
    await here.settled()
    expected = {
        "X-Canary: always": {TWO},
        "X-Canary: never": {ONE},
        "Cookie: try=always": {TWO},
        "Cookie: try=never": {ONE},
    }
    assert await pods_by_header(here, "a", *expected) == expected
    here.served.clear()
    assert set(await here.codes("a.example.com", 100)) == {200}
    assert 10 <= here.served.count(TWO) <= 55
    asked[f"{prefix}-by-header-value"] = "beta"
    here.put(ingress("canary", rule("a.example.com", "/", service="other"), annotations=asked))
    await here.settled()
    assert await here.pods_of("http://a.example.com/", "-H", "X-Canary: beta") == {TWO}
    here.remove("Ingress", "canary")
    await here.settled()
    here.served.clear()
    assert set(await here.codes("a.example.com", 20)) == {200}
    assert set(here.served) == {ONE}


@in_site()
async def test_several_canaries_share_a_path(here: Site) -> None:
    await here.pods("second", TWO)
    await here.pods("third", THREE)
    await serve(here, "a", "b")
    for name, header, weight in (("second", "X-Two", "30"), ("third", "X-Three", "30"), ("z-absent", "X-No", "60")):
        asked = ours(canary="true", canary_by_header=header, canary_weight=weight)
        here.put(ingress(f"canary-{name}", rule("a.example.com", "/", service=name), annotations=asked))
    alone = ours(canary="true", canary_by_header="X-Three", canary_weight="0")
    here.put(ingress("canary-b", rule("b.example.com", "/", service="third"), annotations=alone))
    await here.settled()
    expected = {"X-Two: always": {TWO}, "X-Three: always": {THREE}, "X-Two: never": {ONE}}
    assert await pods_by_header(here, "a", *expected) == expected
    expected = {"X-Two: always": {ONE}, "X-Three: always": {THREE}}
    assert await pods_by_header(here, "b", *expected) == expected
    assert (await here.curl("http://a.example.com/", "-H", "X-No: always")).code == 503
    here.served.clear()
    codes = await here.codes("a.example.com", 100)
    assert 15 <= codes.count(503) <= 65  # 40 of 100: what the others leave
    assert 10 <= here.served.count(TWO) <= 55
    assert 10 <= here.served.count(THREE) <= 55
    told = "canary-z-absent: metadata.annotations[vipwire.io/canary-weight]: the weights of all canaries exceed 100"
    assert told in here.problems


@in_site()
async def test_algorithms_that_bind_bind(here: Site) -> None:
    asked = {
        "source": ours(balance="source"),
        "uri": ours(balance="uri"),
        "header": ours(balance_header="X-User"),
        "leastconn": {"haproxy-ingress.github.io/balance-algorithm": "leastconn"},
    }
    await serve_each(here, asked)
    await here.pods("web", ONE, TWO)
    await here.settled()
    for host in ("source", "uri", "header"):
        assert len(await here.pods_of(f"http://{host}.example.com/", "-H", "X-User: a")) == 1
    users = [await here.curl("http://header.example.com/", "-H", f"X-User: {number}") for number in range(20)]
    assert {answer.pod for answer in users} == {ONE, TWO}
    assert await here.pods_of("http://leastconn.example.com/") == {ONE, TWO}


class Checked:
    """A Pod that can be made to fail its health checks; it notes what it is asked."""

    def __init__(self) -> None:
        self.healthy, self.log = True, list[str]()

    async def answer(self, request: web.Request) -> web.Response:
        check = request.path == "/healthz"
        self.log.append(("good" if self.healthy else "bad") if check else "request")
        status = 503 if check and not self.healthy else 200
        return web.json_response({"pod": TWO}, status=status)

    async def until(self, here: Site, fact: Callable[[list[str]], bool]) -> list[str]:
        """Ask until what came since then is as wanted; give it."""
        self.log.clear()
        async with asyncio.timeout(60):
            while not fact(self.log):
                await here.codes("a.example.com", 4)
        return self.log.copy()


@in_site()
async def test_health_checks_rise_and_fall_after_as_many_as_asked_for(here: Site) -> None:
    checked, app = Checked(), web.Application()
    app.router.add_get("/{path:.*}", checked.answer)
    runner = here.runners[TWO] = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, TWO, here.pod_port, reuse_address=True).start()
    times = {"health_check_interval": "100ms", "health_check_fall": "8", "health_check_rise": "5"}
    await serve(here, "a", health_check_path="/healthz", **times)
    await here.pods("web", ONE, TWO)
    await here.settled()
    # At first one bad check is enough; a good one more makes it two, up to what is asked for.
    await checked.until(here, lambda log: "request" in log and log.count("good") > 8)
    checked.healthy = False
    out = await checked.until(here, lambda log: log.count("bad") >= 20)
    assert "request" in out[out.index("bad") :]  # the first bad check is not enough
    while out[-1] == "bad":
        out.pop()
    assert out.count("bad") <= 12  # and soon after the eighth no more come
    checked.healthy = True
    back = await checked.until(here, lambda log: "request" in log)
    assert back.index("request") >= 5
    assert set(back[: back.index("request")]) == {"good"}


@in_site()
async def test_health_checks_take_a_pod_out_that_is_ready_but_dead(here: Site) -> None:
    await serve(here, "a", health_check_path="/healthz", health_check_interval="100ms", health_check_fall="1")
    await here.pods("web", ONE, TWO)
    await here.settled()
    await here.end_pod(TWO)
    async with asyncio.timeout(30):
        while await here.pods_of("http://a.example.com/", times=4) != {ONE}:  # noqa: ASYNC110  # of another process nobody is told
            await asyncio.sleep(0.05)
    assert "/healthz" not in here.problems


@in_site()
async def test_the_rest_is_left_out_with_a_word_and_the_ingress_serves(here: Site) -> None:
    bad = ours(
        affinity="cookie",
        session_cookie_name="a b",
        balance="best",
        timeout_server="forever",
        set_response_headers="X-A: b\n    http-request deny",
        no_such_thing="1",
    )
    bad |= {"nginx.ingress.kubernetes.io/configuration-snippet": "deny all;", "kubectl.kubernetes.io/x": "y"}
    await here.pods("web", ONE)
    here.put(ingress("a", rule("a.example.com", "/"), annotations=bad))
    await here.settled()
    answer = await here.curl("http://a.example.com/")
    assert (answer.code, answer.headers["set-cookie"].partition("-")[0]) == (200, "VIPWIRE")
    for told in (
        "[vipwire.io/session-cookie-name]: 'a b': allowed: 1 to 64 letters",
        "[vipwire.io/balance]: 'best': allowed: roundrobin, leastconn",
        "[vipwire.io/timeout-server]: 'forever': allowed: 1ms to 24h",
        "[vipwire.io/set-response-headers]",
        "[vipwire.io/no-such-thing]: is not supported; it is ignored",
        "[nginx.ingress.kubernetes.io/configuration-snippet]: is not supported",
    ):
        assert told in here.problems
    assert "kubectl" not in here.problems


@in_site()
async def test_an_expression_that_haproxy_refuses_costs_only_itself(here: Site) -> None:
    await here.pods("web", ONE)
    asked = ours(use_regex="true")
    bad = rule("a.example.com", "/x(unclosed", "/w[0-", kind="ImplementationSpecific")
    good = rule("a.example.com", "/y[0-9]", kind="ImplementationSpecific")
    here.put(ingress("other", rule("other.example.com", "/", "/unclosed"), rule("", "/z")))
    here.put(ingress("bad", bad, good, annotations=asked))
    await here.settled()
    asked_for = ("a.example.com/y1", "a.example.com/x", "other.example.com/", "other.example.com/unclosed", "b/z")
    codes = {where: (await here.curl(f"http://{where}")).code for where in asked_for}
    assert codes == {where: 404 if where == "a.example.com/x" else 200 for where in asked_for}
    assert "/x(unclosed" in here.problems
    rewritten = ours(use_regex="true", rewrite_target="/$1")
    here.put(ingress("bad", bad, good, annotations=rewritten))  # in a backend too
    await here.settled()
    assert (await here.curl("http://a.example.com/y1")).code == 200
    assert {problem.object.name for problem in here.controller.desired.problems} == {"bad"}
    assert len(list(here.haproxy.folder.glob("gen-*"))) <= 2  # those that were refused leave none behind
    mended = rule("a.example.com", "/x(closed)", kind="ImplementationSpecific")
    here.put(ingress("bad", mended, good, annotations=asked))
    await here.settled()
    assert (await here.curl("http://a.example.com/xclosed")).code == 200
    assert here.problems == ""
