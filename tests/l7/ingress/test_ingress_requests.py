"""What clients may send, and what they may not: odd paths, malformed requests, headers that are ours to set."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest
from tests.l7.ingress.site import PATIENCE, Site, endpoint_slice, in_site, ingress, rule, secret, site

pytestmark = [pytest.mark.attack, pytest.mark.haproxy]

POD, OTHER = "127.0.0.11", "127.0.0.12"
NGINX = "nginx.ingress.kubernetes.io"
ANNA = "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA"
"""SHA-256 of the word `secret` (crypt(5))."""


async def sent(port: int, *lines: str, body: bytes = b"") -> str:
    """Send a request as it stands; give the status of the answer, empty if the connection ends without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)
    async with asyncio.timeout(PATIENCE):
        line = await reader.readline()
    writer.close()
    return line.decode().partition(" ")[2][:3]


SPELLED = (
    "//admin",
    "/./admin",
    "/x/../admin",
    "/%61dmin",
    "/admin/%2e%2e/admin",
    "/public/%2E%2E/admin/x",
    "/../admin",
)


@pytest.mark.parametrize("guard", ["10.0.0.0/8", "nonsense"], ids=["a list", "closed"])
@in_site()
async def test_a_guarded_path_is_guarded_however_it_is_written(here: Site, guard: str) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/", "/public"), rule("b.example.com", "/")))
    await here.settled()
    asked = {f"{NGINX}/whitelist-source-range": guard}
    here.put(ingress("admin", rule("a.example.com", "/admin"), annotations=asked))
    await here.settled()
    guarded = [(await here.curl(f"http://a.example.com{path}")).code for path in ("/admin", "/admin/")]
    assert guarded == [503 if guard == "nonsense" else 403] * 2
    refused = [(await here.curl(f"http://a.example.com{path}", "--path-as-is")).code for path in SPELLED]
    assert refused == [400] * len(SPELLED)
    assert await sent(here.http, "OPTIONS * HTTP/1.1", "Host: a.example.com") == "404"  # the Pod's answer
    assert here.reloads[-1] == "a first host whose paths lead to different places"
    # All paths of the other host lead to one place, so that it does not matter how they are read.
    for path in (*SPELLED, "/x\\y;z/%252e", "/public/a//b/../c?d=//e"):
        assert (await here.curl(f"http://b.example.com{path}", "--path-as-is")).seen["path"] == path


@in_site()
async def test_a_path_that_is_not_exposed_is_not_reached_by_another_one(here: Site) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/public")))
    await here.settled()
    for path in ("/public/../admin", "/public/%2e%2e/admin", "/public/..%2fadmin", "/public/..;/admin"):
        assert await sent(here.http, f"GET {path} HTTP/1.1", "Host: a.example.com") == "400"
    assert await sent(here.http, "GET /public/x HTTP/1.1", "Host: a.example.com") == "200"
    assert here.served == [POD]


LIMITED = ("/" + "ab" * 2000 + "/admin", "/xyz/admin/" + "x" * 300 + "y" * 300 + "z" * 300)


@pytest.mark.parametrize("expression", ["/(a|b)*/admin", "/.*x.*y.*z/admin", "/(a+)+/admin"])
@in_site()
async def test_an_expression_that_guards_is_not_passed_by_making_it_give_up(here: Site, expression: str) -> None:
    """Where PCRE meets a limit HAProxy sees no match, and the request would go where nothing guards."""
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/"), rule("b.example.com", "/")))
    asked = {"vipwire.io/use-regex": "true", "vipwire.io/deny-source-range": "127.0.0.0/8"}
    guarded = rule("a.example.com", expression, kind="ImplementationSpecific")
    here.put(ingress("admin", guarded, annotations=asked))
    await here.settled()
    for path in (*LIMITED, "/" + "a" * 200 + "/admin", "/xyz/admin"):
        assert await sent(here.http, f"GET {path} HTTP/1.1", "Host: a.example.com") in ("403", "414", "503", "200")
        fits = "xyz" in path if "x" in expression else "aa" in path or "ab" in path
        if fits:
            assert not here.served, path[:80]
        here.served.clear()
    assert await sent(here.http, f"GET {LIMITED[0]} HTTP/1.1", "Host: b.example.com") == "200"


@in_site()
async def test_what_leads_elsewhere_when_a_guarded_path_is_written_otherwise_is_looked_for(here: Site) -> None:
    """Canaries and the default backend may lead past a guard, too."""
    await here.pods("web", POD)
    await here.pods("new", OTHER)
    guard = {"vipwire.io/deny-source-range": "127.0.0.0/8"}
    here.put(ingress("canary", rule("a.example.com", "/x"), annotations=guard))
    here.put(ingress("default", defaultBackend={"service": {"name": "web", "port": {"number": 80}}}))
    await here.settled()
    codes = [(await here.curl(f"http://a.example.com{path}", "--path-as-is")).code for path in ("/x", "//x", "/y")]
    assert codes == [403, 400, 200]
    here.remove("Ingress", "default")
    canary = {"vipwire.io/canary": "true", "vipwire.io/canary-weight": "100"}
    here.put(
        ingress("main", rule("b.example.com", "/")), ingress("x", rule("b.example.com", "/x"), annotations=guard)
    )
    here.put(ingress("canary", rule("b.example.com", "/x", service="new"), annotations=canary))
    await here.settled()
    codes = [(await here.curl(f"http://b.example.com{path}", "--path-as-is")).code for path in ("/x", "//x", "/y")]
    assert codes == [403, 400, 200]


HOSTS = (
    *("a.example.com/public", "a.example.com/public/", "a.example.com/public/x", "a.example.com:80/public"),
    *(
        "a.example.com/public:80",
        "a.example.com/public/../..",
        "a.example.com,b",
        "a.example.com?",
        "x@a.example.com",
    ),
)


@pytest.mark.parametrize("wildcard", [False, True])
@in_site()
async def test_no_path_can_be_written_into_a_host(here: Site, *, wildcard: bool) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/public")))
    guard = {"vipwire.io/deny-source-range": "127.0.0.0/8"}
    here.put(ingress("admin", rule("a.example.com", "/admin"), annotations=guard))
    if wildcard:
        here.put(ingress("wildcard", rule("*.example.com", "/")))
    await here.settled()
    codes = {host: await sent(here.http, "GET /admin HTTP/1.1", f"Host: {host}") for host in HOSTS}
    assert codes == dict.fromkeys(HOSTS, "400")
    for host in ("a.example.com", "A.example.com:80"):
        assert await sent(here.http, "GET /admin HTTP/1.1", f"Host: {host}") == "403"
    assert await sent(here.http, "GET /public HTTP/1.1", "Host: a.example.com") == "200"
    assert here.served == [POD]


POST = ("POST / HTTP/1.1", "Host: a.example.com")
MALFORMED: tuple[Sequence[str], ...] = (
    (*POST, "Content-Length: 6", "Content-Length: 5"),
    (*POST, "Content-Length: +6"),
    (*POST, "Content-Length: 0x6"),
    (*POST, "Content-Length: "),
    (*POST, "Content-Length: -1"),
    (*POST, "Content-Length : 6"),
    (*POST, "Transfer-Encoding: xchunked"),
    (*POST, "Transfer-Encoding : chunked"),
    (*POST, "Transfer-Encoding: chunked, identity"),
    (*POST, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    (*POST, "Transfer-Encoding: chunked", "", "0x5"),
    (*POST, "Transfer-Encoding: chunked", "", "ffffffffffffffffff"),
    ("GET / HTTP/1.1", "Host: a.example.com", "Host: b.example.com"),
    ("GET http://a.example.com/ HTTP/1.1", "Host: b.example.com"),
    ("GET a.example.com HTTP/1.1", "Host: a.example.com"),
    ("GET * HTTP/1.1", "Host: a.example.com"),
    ("GET x/y HTTP/1.1", "Host: a.example.com"),
    ("GET /x#y HTTP/1.1", "Host: a.example.com"),
    ("CONNECT a.example.com:80 HTTP/1.1", "Host: a.example.com:80"),
    ("GET / HTTP/1.1", " Host: a.example.com"),
    ("GET /a b HTTP/1.1", "Host: a.example.com"),
    ("GET / HTTP/1.1", "Host: a.example.com", f"X-Long: {'x' * 16_384}"),
    ("GET / HTTP/1.1", "Host: a.example.com", *(f"X-{number}: y" for number in range(120))),
)


@in_site()
async def test_requests_that_two_could_read_differently_reach_no_pod(here: Site) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    assert await sent(here.http, *POST, "Content-Length: 6", body=b"abcdef") == "200"
    assert here.served == [POD]
    for lines in MALFORMED:
        assert await sent(here.http, *lines) == "400", lines
    assert here.served == [POD]
    # Both lengths: the chunks count (RFC 9112 6.3), and what follows is no second request.
    smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a.example.com\r\n\r\n"
    both = (*POST, "Content-Length: 6", "Transfer-Encoding: chunked")
    assert await sent(here.http, *both, body=smuggled) == "200"
    assert here.served == [POD] * 2
    assert (await here.curl("http://a.example.com/")).code == 200


@in_site()
async def test_an_absolute_url_without_a_path_leads_to_the_root_at_most(here: Site) -> None:
    """HAProxy 2.6 reads no path there, so vipwire denies the request; newer ones read `/`."""
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    answer = await here.curl("http://a.example.com/", "--request-target", "http://a.example.com")
    assert answer.code == 400 or answer.seen["path"] == "/"


@in_site()
async def test_pods_are_asked_to_upgrade_only_where_the_client_asks_on_its_connection(here: Site) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    for connection, upgrade, seen in (
        ("upgrade, x-forwarded-for", "other", ("Upgrade", "other")),
        ("keep-alive", "other", (None, None)),
        ("upgrade, http2-settings", "h2c", (None, None)),
    ):
        flags = ("--http1.1", "-H", f"Connection: {connection}", "-H", f"Upgrade: {upgrade}")
        headers = (await here.curl("http://a.example.com/", *flags)).seen["headers"]
        assert (headers.get("connection"), headers.get("upgrade")) == seen
        assert headers["x-forwarded-for"] == "127.0.0.1"


@in_site()
async def test_a_host_as_no_map_has_it_leads_to_its_own_path_alone(here: Site) -> None:
    """A path in the Host header would lead to the rule of another path."""
    await here.pods("web", POD)
    await here.pods("inner", OTHER)
    here.put(ingress("web", rule("a.example.com", "/"), rule("a.example.com", "/inner", service="inner")))
    await here.settled()
    for host in ("a.example.com/inner", "a.example.com/inner/x", "/a.example.com"):
        assert await sent(here.http, "GET /x HTTP/1.1", f"Host: {host}") == "400", host
    for host in ("A.example.com", "a.example.com.", "a.example.com:80"):
        for path, pod in (("/x", POD), ("/inner", OTHER), ("/inner?/../x", OTHER), ("/innerer", POD)):
            assert (await here.curl(f"http://a.example.com{path}", "-H", f"Host: {host}", "--path-as-is")).pod == pod


@in_site()
async def test_pods_are_told_the_truth_about_clients(here: Site) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    said = ("X-Forwarded-For: 192.0.2.6", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil")
    flags = [flag for header in said for flag in ("-H", header)]
    seen = (await here.curl("http://a.example.com/", *flags)).seen["headers"]
    told = {name: seen[f"x-forwarded-{name}"] for name in ("for", "proto", "host")}
    assert told == {"for": "127.0.0.1", "proto": "http", "host": f"a.example.com:{here.http}"}
    inner = {f"{NGINX}/upstream-vhost": "inner.svc:8080"}
    here.put(ingress("inner", rule("b.example.com", "/"), annotations=inner))
    await here.settled()
    seen = (await here.curl("http://b.example.com/")).seen["headers"]
    assert (seen["host"], seen["x-forwarded-host"]) == ("inner.svc:8080", f"b.example.com:{here.http}")
    # Pods get the path of an absolute URL, as it was compared.
    absolute = await here.curl("http://a.example.com/", "--request-target", f"http://a.example.com:{here.http}/x?y")
    assert absolute.seen["path"] == "/x?y"
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    flags = [flag for header in upgrade for flag in ("-H", header)]
    assert "upgrade" not in (await here.curl("http://a.example.com/", *flags)).seen["headers"]


FORGED = (
    *("X_Forwarded_For", "x-forwarded_for", "X_FORWARDED_PROTO", "X.Forwarded.Host", "Forwarded", "X-Forwarded-Port"),
    *("X-Forwarded-Prefix", "X_Forwarded_Prefix", "X-Forwarded-Server", "X-Forwarded-Client-Cert", "X-Forwarded"),
    *(
        "X-Original-URL",
        "X_Original_URL",
        "X-Original-URI",
        "X-Original-Host",
        "X-Rewrite-URL",
        "X-Real-IP",
        "X_Real_IP",
    ),
    *(
        "X-Client-IP",
        "Client-IP",
        "X-Cluster-Client-IP",
        "X-Scheme",
        "X-URL-Scheme",
        "X-Host",
        "X-HTTP-Host-Override",
    ),
    *("Front-End-Https", "X-Envoy-External-Address", "X-Envoy-Original-Path", "Proxy"),
)


@pytest.mark.parametrize("trusted", [False, True])
async def test_headers_of_clients_tell_pods_nothing_of_where_requests_come_from(
    tmp_path: Path, *, trusted: bool
) -> None:
    async with site(tmp_path, trust_forwarded=trusted) as here:
        await here.pods("web", POD)
        here.put(ingress("web", rule("a.example.com", "/")))
        await here.settled()
        others = ("User_Agent_2: x", "X-Forwardedness: x", "Connection: close, X-Forwarded-For, X-Other")
        flags = [flag for header in (*(f"{name}: 6" for name in FORGED), *others) for flag in ("-H", header)]
        seen = (await here.curl("http://a.example.com/", *flags)).seen["headers"]
        left = {name.lower() for name in FORGED} & seen.keys()
        assert left == (
            {name.lower() for name in FORGED if "_" not in name and "." not in name} if trusted else set()
        )
        assert {"user_agent_2", "x-forwardedness", "x-forwarded-for"} <= seen.keys()
        assert "forwarded" not in seen.get("connection", "").lower()


@in_site(trust_forwarded=True)
async def test_a_balancer_of_ours_is_believed(here: Site) -> None:
    await here.pods("web", POD)
    secure = {"vipwire.io/force-ssl-redirect": "true", "vipwire.io/hsts": "true"}
    here.put(ingress("a", rule("a.example.com", "/"), annotations=secure))
    listed = {"vipwire.io/allow-source-range": "192.0.2.6"}
    here.put(ingress("b", rule("b.example.com", "/"), annotations=listed))
    await here.settled()
    flags = ("-H", "X-Forwarded-For: 192.0.2.1, 192.0.2.6", "-H", "X-Forwarded-Proto: https")
    plain = [await here.curl(f"http://{host}.example.com/") for host in "ab"]
    assert [answer.code for answer in plain] == [308, 403]
    believed = [await here.curl(f"http://{host}.example.com/", *flags) for host in "ab"]
    assert [answer.code for answer in believed] == [200, 200]
    assert "strict-transport-security" in believed[0].headers
    seen = believed[1].seen["headers"]
    assert (seen["x-forwarded-for"], seen["x-forwarded-proto"]) == ("192.0.2.1, 192.0.2.6", "https")
    junk = await here.curl("http://b.example.com/", "-H", "X-Forwarded-For: 192.0.2.6, junk")
    assert junk.code == 403


COSTLY = {
    "sha": f"$6$rounds=999999999$abcdefgh${'a' * 86}",
    "zeros": f"$5$rounds=0000100000$abcdefgh${'a' * 43}",
    "twice": f"$6$rounds=5000$rounds=999999999$abcdefgh${'a' * 86}",
    "bcrypt": f"$2y$31${'a' * 53}",
    "yescrypt": f"$y$jFT$abcdefgh${'a' * 43}",
}
"""Hashes with which one password of a stranger would hold a thread of HAProxy for seconds to days."""


@in_site()
async def test_users_may_be_a_secrets_keys_and_a_password_without_users_closes(here: Site) -> None:
    await here.pods("web", POD)
    here.put(secret("users", anna=f"{ANNA}\n", bert="plain", **COSTLY))
    basic = {f"{NGINX}/auth-type": "basic"}
    users = basic | {f"{NGINX}/auth-secret": "users"}
    for host, asked in (("a", users | {f"{NGINX}/auth-secret-type": "auth-map"}), ("b", users), ("c", basic)):
        here.put(ingress(host, rule(f"{host}.example.com", "/"), annotations=asked))
    await here.settled()
    assert await here.codes_of(*"abc") == {"a": 401, "b": 503, "c": 503}
    assert (await here.curl("http://a.example.com/", "-u", "anna:secret")).code == 200
    for told in (
        f"{1 + len(COSTLY)} lines are not user:hash (allowed: bcrypt, which htpasswd -B makes",
        "no users in its key `auth`; the Ingress answers 503",
        "[nginx.ingress.kubernetes.io/auth-type]: asks for a password, but auth-secret is missing",
    ):
        assert told in here.problems


@in_site()
async def test_who_is_bound_comes_back_to_the_pod_when_a_service_was_scaled_to_none(here: Site) -> None:
    pods = (POD, OTHER, "127.0.0.13")
    await here.pods("web", *pods)
    here.put(ingress("web", rule("a.example.com", "/"), annotations={"vipwire.io/affinity": "cookie"}))
    await here.settled()
    first, reloads = await here.curl("http://a.example.com/"), here.reloads
    bound = ("-b", first.headers["set-cookie"].partition(";")[0])
    here.put(endpoint_slice("web", here.pod_port, []))
    await here.settled()
    assert (await here.curl("http://a.example.com/", *bound)).code == 503
    await here.pods("web", *reversed(pods))
    await here.settled()
    assert await here.pods_of("http://a.example.com/", *bound) == {first.pod}
    assert here.reloads == reloads


@in_site()
async def test_a_websocket_goes_on_through_a_reload(here: Site) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    url, host = f"ws://127.0.0.1:{here.http}/chat", {"Host": "a.example.com"}
    async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=host) as talk:
        await talk.send_str("before")
        assert await talk.receive_str(timeout=PATIENCE) == "echo before"
        await here.pods("new", OTHER)
        before = len(here.reloads)
        here.put(
            ingress("new", rule("b.example.com", "/", service="new"), annotations={"vipwire.io/affinity": "cookie"})
        )
        await here.settled()
        assert len(here.reloads) > before
        await talk.send_str("after")
        assert await talk.receive_str(timeout=PATIENCE) == "echo after"


@in_site()
async def test_expressions_that_need_many_steps_do_not_end_haproxy(here: Site) -> None:
    """A request that takes two seconds ends HAProxy, by its watchdog; three hundred of these took eight."""
    await here.pods("web", POD)
    paths = [f"/x/(a+)+(c{{{number}}})?$" for number in range(1, 301)]
    made = rule("a.example.com", "/y/[a-z]+", *paths, kind="ImplementationSpecific")
    here.put(ingress("web", made, annotations={"vipwire.io/use-regex": "true"}))
    await here.settled()
    codes = [(await here.curl(f"http://a.example.com{path}")).code for path in (f"/x/{'a' * 40}!", "/y/b", "/x/aa")]
    assert codes == [404, 200, 200]


@in_site()
async def test_many_expressions_that_guard_have_shorter_paths(here: Site) -> None:
    """Each has all steps that it needs: those of forty for 256 bytes are more than half a second."""
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    asked = {"vipwire.io/use-regex": "true", "vipwire.io/deny-source-range": "127.0.0.0/8"}
    paths = [f"/x/a*a*a*(w{number})?$" for number in range(40)]
    guarded = rule("a.example.com", *paths, kind="ImplementationSpecific")
    here.put(ingress("admin", guarded, annotations=asked))
    await here.settled()
    codes = [(await here.curl(f"http://a.example.com/x/{path}")).code for path in ("a" * 250 + "!", "a" * 20 + "!")]
    assert [*codes, (await here.curl("http://a.example.com/x/aaw39")).code] == [414, 200, 403]
