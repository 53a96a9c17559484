"""Cookie affinity is to a Pod: it outlives scaling, reloads, and restarts of HAProxy and of vipwire."""

from pathlib import Path

from tests.l7.ingress.site import Site, endpoint, endpoint_slice, in_site, ingress, rule

COOKIE = {"vipwire.io/affinity": "cookie", "vipwire.io/session-cookie-name": "route"}
PODS = tuple(f"127.0.0.{number}" for number in range(11, 19))


async def bound(here: Site, jar: Path) -> str:
    """Ask as one browser, and tell which Pod answered."""
    return (await here.curl("http://a.example.com/", "-b", str(jar), "-c", str(jar))).pod


async def start(here: Site, folder: Path, *pods: str) -> dict[Path, str]:
    """Let six browsers in."""
    await here.pods("web", *pods)
    here.put(ingress("web", rule("a.example.com", "/"), annotations=COOKIE))
    await here.settled()
    jars = [folder / f"jar{number}" for number in range(6)]
    return {jar: await bound(here, jar) for jar in jars}


@in_site()
async def test_affinity_survives_scaling_up_and_down_and_reloads(here: Site, tmp_path: Path) -> None:
    homes = await start(here, tmp_path, *PODS[:3])
    assert set(homes.values()) == set(PODS[:3])
    await here.pods("web", *PODS)  # more than there are slots
    await here.settled()
    assert {jar: await bound(here, jar) for jar in homes} == homes
    await here.pods("web", *PODS[1:3], PODS[7])
    await here.settled()
    after = {jar: await bound(here, jar) for jar in homes}
    assert {jar: pod for jar, pod in after.items() if homes[jar] != PODS[0]} == {
        jar: pod for jar, pod in homes.items() if pod != PODS[0]
    }
    assert PODS[0] not in after.values()
    assert {jar: await bound(here, jar) for jar in homes} == after
    assert any("more servers" in reason for reason in here.reloads)


@in_site()
async def test_who_is_bound_to_a_pod_that_is_going_stays_while_it_serves(here: Site, tmp_path: Path) -> None:
    homes = await start(here, tmp_path, *PODS[:2])
    before = len(here.reloads)
    going = endpoint(PODS[0], ready=False, serving=True, terminating=True)
    here.put(endpoint_slice("web", here.pod_port, [going, endpoint(PODS[1])]))
    await here.settled()
    assert {jar: await bound(here, jar) for jar in homes} == homes
    here.served.clear()
    for _ in range(8):
        await here.curl("http://a.example.com/")
    assert set(here.served) == {PODS[1]}
    assert len(here.reloads) == before


@in_site()
async def test_the_cookie_is_as_asked_for(here: Site) -> None:
    await here.pods("web", PODS[0])
    nginx = {
        f"nginx.ingress.kubernetes.io/{name}": value
        for name, value in {
            "affinity": "cookie",
            "session-cookie-name": "INGRESSCOOKIE",
            "session-cookie-max-age": "3600",
            "session-cookie-samesite": "Strict",
            "session-cookie-secure": "true",
        }.items()
    }
    here.put(ingress("web", rule("a.example.com", "/"), annotations=nginx))
    await here.settled()
    words = (await here.curl("https://a.example.com/")).headers["set-cookie"].split("; ")
    assert words[0].startswith("INGRESSCOOKIE=")
    assert {"Max-Age=3600", "SameSite=Strict", "Secure", "HttpOnly"} <= set(words)


@in_site()
async def test_who_is_bound_to_a_dead_pod_goes_elsewhere_unless_that_is_denied(here: Site, tmp_path: Path) -> None:
    await here.pods("web", *PODS[:2])
    stay = COOKIE | {"vipwire.io/session-cookie-change-on-failure": "false"}
    for host, asked in (("a", COOKIE), ("b", stay)):
        here.put(ingress(host, rule(f"{host}.example.com", "/"), annotations=asked))
    await here.settled()
    jars = {}
    for host in "ab":
        for number in range(2):
            jar = ("-b", str(tmp_path / f"{host}{number}"), "-c", str(tmp_path / f"{host}{number}"))
            jars[host, (await here.curl(f"http://{host}.example.com/", *jar)).pod] = jar
    await here.end_pod(PODS[0])
    found = {key: (await here.curl(f"http://{key[0]}.example.com/", *jar)).code for key, jar in jars.items()}
    assert found == {("a", PODS[0]): 200, ("a", PODS[1]): 200, ("b", PODS[0]): 503, ("b", PODS[1]): 200}


@in_site()
async def test_two_services_of_a_host_keep_their_sessions_apart(here: Site, tmp_path: Path) -> None:
    """Either would take the other's cookie, if both had the same name."""
    await here.pods("front", *PODS[:2])
    await here.pods("api", *PODS[2:4])
    rules = (rule("a.example.com", "/", service="front"), rule("a.example.com", "/api", service="api"))
    here.put(ingress("web", *rules, annotations={"vipwire.io/affinity": "cookie"}))
    await here.settled()
    jar = ("-b", str(tmp_path / "jar"), "-c", str(tmp_path / "jar"))
    found = [[(await here.curl(f"http://a.example.com{path}", *jar)).pod for path in ("/", "/api")] for _ in range(4)]
    assert found == [found[0]] * 4
    assert found[0][0] in PODS[:2]
    assert found[0][1] in PODS[2:4]


@in_site()
async def test_a_cookie_with_a_path_binds_clients_there_only(here: Site, tmp_path: Path) -> None:
    await here.pods("web", *PODS[:4])
    path = {"nginx.ingress.kubernetes.io/session-cookie-path": "/shop"}
    here.put(ingress("web", rule("a.example.com", "/"), annotations=COOKIE | path))
    await here.settled()
    jar = ("-b", str(tmp_path / "jar"), "-c", str(tmp_path / "jar"))
    first = await here.curl("http://a.example.com/shop/", *jar)
    assert {(await here.curl(f"http://a.example.com/shop/{each}", *jar)).pod for each in range(8)} == {first.pod}
    assert await here.pods_of("http://a.example.com/", "-b", str(tmp_path / "jar"), times=8) == {*PODS[:4]}
    assert not here.problems


@in_site()
async def test_a_client_stays_on_its_side_of_a_canary(here: Site, tmp_path: Path) -> None:
    canary = {"nginx.ingress.kubernetes.io/canary": "true", "nginx.ingress.kubernetes.io/canary-weight": "50"}
    await here.pods("old", *PODS[:2])
    await here.pods("new", *PODS[2:4])
    here.put(
        ingress("main", rule("a.example.com", "/", service="old"), annotations={"vipwire.io/affinity": "cookie"})
    )
    await here.settled()
    jars = [tmp_path / f"jar{number}" for number in range(8)]
    before = {jar: await bound(here, jar) for jar in jars[:4]}
    here.put(ingress("trial", rule("a.example.com", "/", service="new"), annotations=canary))
    await here.settled()
    homes = before | {jar: await bound(here, jar) for jar in jars[4:]}
    for _ in range(4):
        assert {jar: await bound(here, jar) for jar in jars} == homes
    newcomers = {(await here.curl("http://a.example.com/")).pod for _ in range(40)}
    assert newcomers == {*PODS[:4]}


@in_site()
async def test_a_canarys_words_come_before_sessions_and_its_weight_after_them(here: Site, tmp_path: Path) -> None:
    canary = "nginx.ingress.kubernetes.io/canary"
    asked = {canary: "true", f"{canary}-weight": "50", f"{canary}-by-header": "X-Try", f"{canary}-by-cookie": "try"}
    await here.pods("old", *PODS[:2])
    await here.pods("new", *PODS[2:4])
    rules = [rule("a.example.com", "/", service=name) for name in ("old", "new")]
    here.put(ingress("main", rules[0], annotations={"vipwire.io/affinity": "cookie"}))
    here.put(ingress("trial", rules[1], annotations=asked))
    await here.settled()
    jars = [tmp_path / f"jar{number}" for number in range(8)]
    homes = {jar: await bound(here, jar) for jar in jars}
    assert {pod in PODS[:2] for pod in homes.values()} == {True, False}
    for jar, pod in homes.items():
        session = jar.read_text().split()[-2:]
        for word, side in (("always", PODS[2:4]), ("never", PODS[:2])):
            for flags in (("-H", f"X-Try: {word}"), ("-H", f"Cookie: try={word}; {'='.join(session)}")):
                given = ("-b", str(jar)) if flags[1].startswith("X") else ()
                found = {(await here.curl("http://a.example.com/", *given, *flags)).pod for _ in range(3)}
                assert found <= set(side)
                assert pod not in side or found == {pod}, "it has its session there"
    here.put(ingress("trial", rules[1], annotations=asked | {f"{canary}-weight": "0"}))
    await here.settled()
    newcomers = {(await here.curl("http://a.example.com/")).pod for _ in range(20)}
    assert newcomers <= set(PODS[:2])
    here.put(ingress("trial", rules[1], annotations={canary: "true", f"{canary}-weight": "0"}))
    await here.settled()
    assert {jar: await bound(here, jar) for jar in jars} == homes, "a weight of 0 stops new clients only"
