"""Changes under load: no request fails while Pods are replaced one by one and HAProxy is reloaded twenty times."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from tests.l7.ingress.site import Json, Site, endpoint, endpoint_slice, in_site, ingress, rule, service, site

from vipwire_l7.run.rates import Rate, ReloadTurns

pytestmark = pytest.mark.haproxy

OLD = tuple(f"127.0.0.{number}" for number in range(21, 25))
NEW = tuple(f"127.0.0.{number}" for number in range(31, 35))


class Load:
    """Clients that ask without a pause: some keep their connection, some make a new one each time."""

    def __init__(self, here: Site) -> None:
        self._url, self._going = f"http://127.0.0.1:{here.http}/", True
        self.answers: Counter[str] = Counter()
        self._rounds: Counter[asyncio.Task[None] | None] = Counter()
        self._answered = asyncio.Condition()

    async def turned_over(self) -> None:
        """Wait until every client has had the answer that it waits for now, and one more."""
        before = self._rounds.copy()
        async with asyncio.timeout(60), self._answered:
            await self._answered.wait_for(lambda: all(self._rounds[each] > before[each] + 1 for each in before))

    async def run(self, *, keep: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not keep)
        async with aiohttp.ClientSession(connector=connector, headers={"Host": "a.example.com"}) as session:
            while self._going:
                try:
                    async with session.get(self._url) as response:
                        await response.read()
                        self.answers[str(response.status)] += 1
                except aiohttp.ClientError as error:
                    self.answers[type(error).__name__] += 1
                self._rounds[asyncio.current_task()] += 1
                async with self._answered:
                    self._answered.notify_all()

    def end(self) -> None:
        self._going = False


async def under_load(here: Site, work: Callable[[Site, Load], Awaitable[None]]) -> tuple[Counter[str], int]:
    """Serve, and do some work while clients ask; give their answers, and how many reloads it took."""
    await here.pods("web", *OLD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    before, load = len(here.reloads), Load(here)
    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(load.run(keep=bool(number % 2)))
        await work(here, load)
        load.end()
    return load.answers, len(here.reloads) - before


@in_site()
async def test_no_request_fails_while_pods_are_replaced(here: Site) -> None:
    async def roll(here: Site, load: Load) -> None:
        serving = list(OLD)
        for old, new in zip(OLD, NEW, strict=True):
            await here.pod(new)
            going = endpoint(old, ready=False, serving=True, terminating=True)
            serving.remove(old)
            serving.append(new)
            here.put(endpoint_slice("web", here.pod_port, [*map(endpoint, serving), going]))
            await here.settled()
            await load.turned_over()  # whoever was on the way to it has been answered
            await here.end_pod(old)  # before it is told of
            here.put(endpoint_slice("web", here.pod_port, [endpoint(each) for each in serving]))
            await here.settled()

    answers, reloads = await under_load(here, roll)
    assert set(answers) == {"200"}
    assert reloads == 0
    assert await here.pods_of("http://a.example.com/", times=8) == set(NEW)


@in_site()
async def test_no_request_fails_during_twenty_reloads(here: Site) -> None:
    async def reload(here: Site, _: Load) -> None:
        for number in range(20):
            annotations = {"vipwire.io/timeout-server": f"{number + 10}s"}
            here.put(ingress("other", rule("b.example.com", "/"), annotations=annotations))
            await here.settled()

    answers, reloads = await under_load(here, reload)
    assert (set(answers), reloads) == ({"200"}, 20)


def of(namespace: str, *objects: Json) -> list[Json]:
    return [each | {"metadata": each["metadata"] | {"namespace": namespace}} for each in objects]


def needing_a_reload(number: int) -> Json:
    """Return an Ingress with another setting of its backend and another path for each number."""
    rules = rule("evil.example.com", "/", f"/{number}")
    return ingress("web", rules, annotations={"vipwire.io/timeout-server": f"{number + 10}s"})


async def test_a_namespace_that_causes_reloads_all_the_time_waits_alone(tmp_path: Path) -> None:
    """Its changes wait together; its endpoints, and a neighbour's changes with a reload, do not."""
    now = 1_000.0
    async with site(tmp_path, turns=ReloadTurns(Rate(3, lambda: now))) as here:
        for each in OLD[:2]:
            await here.pod(each)
        web = [service("web"), endpoint_slice("web", here.pod_port, [endpoint(OLD[0])])]
        here.put(*of("evil", *web), *of("good", *web))
        for number in range(10):
            here.put(*of("evil", needing_a_reload(number)))
            await here.settled()
        assert len(here.reloads) == 1 + 3  # the start is nobody's
        moved = endpoint_slice("web", here.pod_port, [endpoint(OLD[1])])
        mine = ingress("web", rule("good.example.com", "/"), annotations={"vipwire.io/timeout-server": "9s"})
        here.put(*of("evil", moved), *of("good", mine))
        await here.settled()
        assert len(here.reloads) == 1 + 3 + 1
        assert await here.pods_of("http://evil.example.com/", times=4) == {OLD[1]}
        assert (await here.curl("http://good.example.com/")).code == 200
        assert sum(bool(each.held) for each in here.done) == 1
        now += 60
        here.put(*of("good", endpoint_slice("web", here.pod_port, [endpoint(OLD[0])])))
        await here.settled()
        assert len(here.reloads) == 1 + 3 + 1 + 1
        assert {each.path for each in here.controller.desired.plan.routes if each.owner.namespace == "evil"} == {
            "",
            "/9",
        }


@in_site()
async def test_hosts_paths_endpoints_and_removals_need_no_reload(here: Site) -> None:
    await here.pods("web", OLD[0])
    here.put(ingress("web", rule("a.example.com", "/"), rule("*.d.example.com", "/", kind="Exact")))
    await here.settled()
    before = len(here.reloads)
    here.put(ingress("more", rule("b.example.com", "/x", "/y"), rule("*.c.example.com", "/", kind="Exact")))
    await here.settled()
    codes = [(await here.curl(f"http://{where}")).code for where in ("b.example.com/y/z", "1.c.example.com/")]
    await here.pods("web", OLD[1], OLD[2])
    await here.settled()
    assert (await here.curl("http://a.example.com/")).pod in OLD[1:3]
    here.remove("Ingress", "more")
    await here.settled()
    codes += [(await here.curl(f"http://{where}")).code for where in ("b.example.com/y/z", "a.example.com/")]
    here.remove("EndpointSlice", "web-1")
    await here.settled()
    codes.append((await here.curl("http://a.example.com/")).code)
    assert codes == [200, 200, 404, 200, 503]
    assert len(here.reloads) == before


@in_site()
async def test_the_first_rule_of_a_kind_is_a_reload_and_no_other_is(here: Site) -> None:
    await here.pods("web", OLD[0])
    here.put(ingress("web", rule("a.example.com", "/app")))
    await here.settled()
    for number, (made, where, reason) in enumerate(
        (
            (rule("a.example.com", "/app", kind="Exact"), "a.example.com/app", "a first path of type Exact"),
            (rule("*.example.com", "/x"), "b.example.com/x/y", "a first host with a wildcard"),
            (rule("", "/y"), "c.org/y", "a first rule without a host"),
        )
    ):
        for again in (False, True):
            here.put(ingress(f"more-{number}", made, rule(f"{number}-{again}.example.com", "/")))
            await here.settled()
            codes = [(await here.curl(f"http://{each}")).code for each in (where, "a.example.com/app/z")]
            assert codes == [200, 200]
        assert here.reloads[-1] == reason
        assert len(here.reloads) == number + 3
    # What is not needed any more stays, and is kept up to date, until the next reload.
    for number in (0, 1, 2):
        here.remove("Ingress", f"more-{number}")
    await here.settled()
    assert (await here.curl("http://c.org/y")).code == 404
    here.put(ingress("back", rule("", "/y")))
    await here.settled()
    assert (await here.curl("http://c.org/y")).code == 200
    assert len(here.reloads) == 5


@in_site(pause=3600.0)
async def test_endpoints_and_routes_change_while_a_reload_waits(here: Site) -> None:
    here.put(service("web"), endpoint_slice("web", here.pod_port, [endpoint(OLD[0])]))
    here.put(ingress("web", rule("a.example.com", "/")))  # all this is there when HAProxy starts
    await here.settled()
    here.put(ingress("late", rule("b.example.com", "/"), annotations={"vipwire.io/timeout-server": "9s"}))
    here.put(ingress("soon", rule("c.example.com", "/", service="new")))
    await here.pods("new", OLD[2])
    await here.pods("web", OLD[1])
    async with asyncio.timeout(60):
        while (await here.curl("http://a.example.com/")).code != 200:  # noqa: ASYNC110  # of a change before a reload nobody is told
            await asyncio.sleep(0.02)
    assert (await here.curl("http://a.example.com/")).pod == OLD[1]
    assert await here.codes_of("b", "c") == {"b": 404, "c": 200}
    assert len(here.reloads) == 1


@in_site()
async def test_a_service_that_grows_needs_no_reload(here: Site) -> None:
    """It moves to a spare backend, where requests of its two hosts go from then on."""
    here.put(service("web"), endpoint_slice("web", here.pod_port, [endpoint(OLD[0])]))
    here.put(ingress("web", rule("a.example.com", "/"), rule("b.example.com", "/")))
    await here.settled()
    many = tuple(f"127.0.0.{number}" for number in range(21, 29))
    await here.pods("web", *many)
    here.put(ingress("more", rule("b.example.com", "/x"), rule("c.example.com", "/")))
    await here.settled()
    for host in ("a", "b", "c"):
        assert await here.pods_of(f"http://{host}.example.com/", times=24) == set(many)
    await here.pods("web", *many[:2])
    await here.settled()
    assert await here.pods_of("http://a.example.com/", times=8) == set(many[:2])
    assert here.reloads == ["start"]
