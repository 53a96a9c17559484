"""The page of `vipwire view`, served by a real proxy, with real packets behind it: over HTTP, and in a browser."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.fakes.browser import Page, chromium
from tests.fakes.screen_reader import FAINT, complaints, tabbed, tree

from vipwire.inspect.page.look import CALM_SECONDS
from vipwire.model.net import parse_address
from vipwire.model.node import Drain
from vipwire.proxy_daemon.drains import DrainOrder, change_orders, drains_path, seconds_since_boot
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.manifests import Backend, Port, build_service_with_slices, dump_yaml
from vipwire_lab.demo import objects

pytestmark = pytest.mark.kernel
NODE = "node-1"
PORT = 10247
PATIENCE = 60.0
EVIL = "<img src=x onerror=document.title='broken'>"


@dataclass(frozen=True)
class Stage:
    lab: Lab
    manifests: Path
    state: Path
    token: str

    @property
    def url(self) -> str:
        return f"http://192.168.0.1:{PORT}"

    def kernel_counts(self) -> dict[str, int]:
        """Read what nft counts of connections to the ClusterIP of `web`, by endpoint."""
        listed = self.lab.run(NODE, ["nft", "list", "set", "ip", "vipwire", "connections"]).stdout
        found = re.findall(rf"{objects.WEB} \. tcp \. 80 \. ([0-9.]+) \. (\d+) counter packets (\d+)", listed)
        pods = {f"{pod.addresses[0]}:80": 0 for pod in objects.PODS}
        return pods | {f"{address}:{port}": int(packets) for address, port, packets in found}


def shop() -> list[Any]:
    pods = {pod.name: pod for pod in objects.PODS}
    behind = [Backend(pods["pod-1a"]), Backend(pods["pod-2a"]), Backend(pods["pod-1b"], ready=False)]
    made = build_service_with_slices(objects.TOPOLOGY, "cart", ("10.96.0.50",), (Port(80, name="http"),), behind)
    made[0]["metadata"]["annotations"] = {"note": EVIL}
    return made


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("view")
    manifests, state = folder / "objects", folder / "state"
    manifests.mkdir()
    (manifests / "nodes.yaml").write_text(dump_yaml(objects.nodes()))
    (manifests / "web.yaml").write_text(dump_yaml(objects.web()))
    (manifests / "cart.yaml").write_text(dump_yaml(shop()))
    (manifests / "odd.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": EVIL, "metadata": {"name": "a"}}))
    flags = (f"--manifests={manifests}", f"--hostname-override={NODE}", f"--cluster-cidr={objects.POD_CIDRS}")
    page = (f"--state-dir={state}", f"--view-bind-address=192.168.0.1:{PORT}", "--oom-score-adj=0")
    with Lab() as lab:
        command = [sys.executable, "-m", "vipwire", "proxy", *flags, *page, "--healthz-port=0", "--metrics-port=0"]
        process = lab.popen(NODE, command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            synced = 0
            while synced < 2:
                line = process.stderr.readline()
                assert line
                synced += "msg=synced" in line
            with lab.enter_namespace(NODE):
                asyncio.run(until_served())
                made = Stage(lab, manifests, state, (state / "view-token").read_text().strip())
                asyncio.run(heard(made, "head", bool))
            yield made
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
        with lab.enter_namespace(NODE), pytest.raises(aiohttp.ClientConnectionError):
            asyncio.run(ask(Stage(lab, manifests, state, ""), "/"))


async def until_served() -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("192.168.0.1", PORT)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def ask(stage: Stage, path: str, **headers: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {stage.token}", **headers}
    async with aiohttp.ClientSession() as session, session.get(stage.url + path, headers=headers) as answer:
        return answer.status, await answer.text()


async def document(stage: Stage, path: str) -> Any:
    status, text = await ask(stage, path)
    assert status == 200, text
    return json.loads(text)


async def events(stage: Stage) -> AsyncIterator[tuple[str, Any]]:
    headers = {"Authorization": f"Bearer {stage.token}"}
    async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/api/events", headers=headers) as answer:
        word = ""
        while line := (await answer.content.readline()).decode().rstrip("\n") or " ":
            if line.startswith("event: "):
                word = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield word, json.loads(line.removeprefix("data: "))


async def heard(stage: Stage, word: str, enough: Callable[[Any], object]) -> Any:
    async with asyncio.timeout(PATIENCE):
        async for said, made in events(stage):
            if said == word and enough(made):
                return made
    raise AssertionError(word)


def test_the_numbers_of_the_page_are_the_kernels(stage: Stage) -> None:
    before = stage.kernel_counts()
    results = stage.lab.probe("client", objects.WEB, 80, count=40)
    assert all(result.answer for result in results)

    async def look() -> tuple[Any, Any]:
        rates = await heard(
            stage, "rates", lambda made: any(row["service"] == "default/web:http" for row in made["rows"])
        )
        return rates, await document(stage, "/api/service?name=default/web")

    with stage.lab.enter_namespace(NODE):
        rates, said = asyncio.run(look())
    counted = {
        f"{each['address']}:{each['port']}": each["counts"]["connections"]
        for port in said["service"]["ports"]
        if port["name"] == "http"
        for each in port["endpoints"]
        if each["family"] == "IPv4"
    }
    kernel = stage.kernel_counts()
    assert counted == {name: kernel[name] for name in counted}
    assert sum(counted.values()) - sum(before.get(name, 0) for name in counted) == 40
    pods = {pod.name: f"{pod.addresses[0]}:80" for pod in objects.PODS}
    by_pod = {pods[name]: sum(result.pod == name for result in results) for name in {each.pod for each in results}}
    assert {name: counted[name] - before.get(name, 0) for name in by_pod} == by_pod
    assert {row["endpoint"] for row in rates["rows"]} >= set(by_pod)


async def test_who_may_not_look_sees_nothing(stage: Stage) -> None:
    with stage.lab.enter_namespace(NODE):
        asked = [
            ask(stage, "/api/diff", Authorization="Bearer wrong"),
            ask(stage, "/api/diff", Host="evil.example"),
            ask(stage, "/api/diff", **{"Sec-Fetch-Site": "cross-site"}),
            ask(stage, "/api/diff"),
            ask(stage, "/api/explain?to=nonsense"),
        ]
        assert [(await each)[0] for each in asked] == [401, 403, 403, 200, 400]


@pytest.mark.parametrize("mode", ["", "iptables", "ipvs", "userspace", "ebpf"])
def test_a_packet_is_explained_as_it_is_and_as_other_modes_would_do(stage: Stage, mode: str) -> None:
    path = f"/api/explain?from=203.0.113.2&to={objects.WEB}:80&mode={mode}"
    with stage.lab.enter_namespace(NODE):
        said = asyncio.run(document(stage, path))
    assert (said["outcome"], said["kernel"]["outcome"]) == ("answered", "answered")
    assert said["kernel"]["agrees"] is True, said["kernel"]["difference"]
    assert len(said["endpoints"]) == 5
    assert said["kernel"]["path"]
    assert said.get("supposed", False) is bool(mode)


def test_a_change_is_told_with_the_time_that_it_took(stage: Stage) -> None:
    async def story() -> Any:
        (stage.manifests / "late.yaml").write_text(dump_yaml(objects.late()))
        return await heard(
            stage, "changes", lambda made: [each for each in made if each["service"] == "default/late"]
        )

    with stage.lab.enter_namespace(NODE):
        changes = asyncio.run(story())
    (late,) = [each for each in changes if each["service"] == "default/late"]
    assert (late["what"], late["joined"], late["left"]) == ("added", 3, 0)
    assert 0 < late["syncSeconds"] <= late["secondsToKernel"] < PATIENCE


@pytest.mark.slow
def test_a_repair_of_the_kernel_is_a_row_of_the_changes(stage: Stage) -> None:
    stage.lab.run(NODE, ["nft", "flush", "map", "ip", "vipwire", "service-ips"])

    def repaired(changes: Any) -> list[Any]:
        return [each for each in changes if each["what"] == "repaired"]

    with stage.lab.enter_namespace(NODE):
        (row, *_) = repaired(asyncio.run(heard(stage, "changes", repaired)))
    assert (row["family"], row["service"], row["services"]) == ("IPv4", None, 0)
    assert "objects: " in row["about"]


def test_what_no_object_tells_of_is_seen_before_the_next_calm_look(stage: Stage) -> None:
    """Drain an endpoint just after a look: what comes first is the news of a sync, not a look for its own sake."""
    pod = parse_address(objects.PODS[0].addresses[0])
    order = DrainOrder(Drain(pod), seconds_since_boot())

    async def story() -> float:
        last = await heard(stage, "head", bool)
        (stage.manifests / "more.yaml").write_text(dump_yaml(objects.sticky()))
        last = await heard(stage, "head", lambda head: head["looked"] > last["looked"])
        change_orders(drains_path(str(stage.state), NODE), lambda orders: [*orders, order])
        seen = await heard(stage, "head", lambda head: head["looked"] > last["looked"])
        rows = await heard(stage, "rows", lambda made: any(row["drained"] for row in made["changed"]))
        assert rows
        return float(seen["looked"] - last["looked"])

    try:
        with stage.lab.enter_namespace(NODE):
            assert asyncio.run(story()) < CALM_SECONDS
    finally:
        change_orders(drains_path(str(stage.state), NODE), lambda _orders: [])
        with stage.lab.enter_namespace(NODE):  # the proxy has heard of it, and so has whoever asks the page next
            asyncio.run(heard(stage, "rows", lambda made: ("default/web", 0) in drains_of(made)))


def drains_of(made: Any) -> set[tuple[str, int]]:
    return {(row["name"], row["drained"]) for row in made["changed"]}


SMALL = """[...document.querySelectorAll('button, input, select, #tabs a, .back')]
  .filter((each) => each.offsetParent && each.offsetHeight < 44).map((each) => each.outerHTML)"""
BROKEN = """[...document.querySelectorAll('#way .whole')]
  .filter((each) => each.offsetHeight > 1.6 * parseFloat(getComputedStyle(each).fontSize) * 1.45)
  .map((each) => each.textContent)"""


async def in_full(page: Page, stage: Stage, shown: Path) -> None:
    await page.value("document.querySelector('.row b').click()")
    await page.until("document.querySelector('.title h1')?.textContent === 'default/cart'")
    assert await page.value("document.querySelectorAll('.picture [data-end]').length") == 3
    assert await page.value("document.querySelectorAll('.picture .end.off').length") == 1
    await page.value("location.hash = '#service/default/web'")
    await page.until("document.querySelector('.title h1')?.textContent === 'default/web'")
    stage.lab.probe("client", objects.WEB, 80, count=20)
    kernel = stage.kernel_counts()
    for name in (f"{pod.addresses[0]}:80" for pod in objects.PODS):
        cell = f"document.querySelector('[data-connections=\"{name}\"]')?.textContent"
        await page.until(f"{cell} === '{kernel[name]}'")
    await page.until("document.querySelector('path.live:not(.still)')")
    await page.look(shown / "service.png", 1280)
    assert await page.value(ANNOUNCED), "what is announced stays in its card"
    await page.look(shown / "service-narrow.png", 390, 844, dark=True)
    beside = await page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beside == 0, "nothing sticks out of a narrow screen"
    tabs = "[...document.querySelectorAll('#tabs a')].map((tab) => tab.getBoundingClientRect().right)"
    assert max(await page.value(tabs)) <= 390, "every tab is in sight"
    assert await page.value(SMALL) == [], "a finger meets what it wants"
    await page.look(shown / "overview.png", 1280)
    await page.value("location.hash = '#services'")
    tight = "[...document.querySelectorAll('.tile')].filter((tile) => tile.scrollWidth > tile.clientWidth).length"
    await page.until(f"document.querySelectorAll('.tile').length && {tight} === 0")
    await page.value("document.querySelector('.tile b small').textContent = 'of 1,000,000'")
    assert await page.value(tight) == 0, "a large number goes to the next line"


async def explained(page: Page) -> None:
    await page.value("location.hash = '#explain?from=203.0.113.2&to=default/web&port=http'")
    await page.until("document.querySelectorAll('.hook').length >= 2")
    assert "service-ips" in await page.value("document.querySelector('#way').innerText")
    assert await page.value("document.querySelectorAll('#way .whole').length") > 10
    assert await page.value(BROKEN) == [], "no element of a rule is folded"
    await page.value("document.querySelector('[data-mode=iptables]').click()")
    await page.until("document.querySelector('#way').innerText.includes('KUBE-SVC-')")


async def read_aloud(page: Page, view: str, ready: str) -> None:
    """Meet a view as who cannot see it, or not well, does: names, headings, contrast in both themes."""
    await page.value(f"location.hash = {json.dumps(view)}")
    await page.until(ready)
    assert await complaints(page) == [], view
    for theme in ("light", "dark"):
        await page.value(f"document.documentElement.dataset.theme = '{theme}'")
        assert await page.value(FAINT) == [], f"{view}, {theme}"
    await page.value("delete document.documentElement.dataset.theme")


async def by_keyboard(page: Page) -> None:
    """Walk through the page by Tab alone, from its beginning."""
    await page.value(
        "location.hash = '#services'; document.activeElement.blur(); window.getSelection().removeAllRanges()"
    )
    await page.value("document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex')")
    walked = await tabbed(page, 14)
    assert [name for name, seen in walked if not seen] == []
    names = [name for name, _ in walked]
    assert names[:2] == ["#main", "#services"], "first the way past everything, then home"
    order = ["theme", "help", "#explain", "#problems", "search", "sort", "list"]
    assert [name for name in names if name in order] == order
    assert ("status", "live") in [(role, name or "live") for role, name in await tree(page)]


async def every_view(page: Page) -> None:
    await page.value("location.hash = '#problems'")
    await page.until(f"document.querySelector('#problems').innerText.includes({json.dumps(EVIL)})")
    assert await page.value("document.querySelectorAll('main img').length") == 0
    await page.value("location.hash = '#differences'")
    await page.until("document.querySelector('#differences').innerText.includes('Nothing would change')")


MANY = """(async () => {
  const { known } = await import('/stream.js');
  const { refresh } = await import('/list.js');
  for (let n = 0; n < 10000; n++) {
    const name = `many/service-${n}`;
    known.rows.set(name, { name, type: 'ClusterIP', at: [], to: [], endpoints: 0, used: 0, drained: 0, ejected: 0,
      state: 'as planned', words: name });
  }
  location.hash = '#services';
  refresh(true);
})()"""
SEARCH = """(() => {
  const field = document.querySelector('#search');
  const began = performance.now();
  field.value = 'service-9999';
  field.dispatchEvent(new Event('input'));
  const took = performance.now() - began;
  field.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }));
  return took;
})()"""


ANNOUNCED = """(async () => {
  const { known } = await import('/stream.js');
  const { picturesOf } = await import('/picture.js');
  const announced = { '10.96.0.53': { interface: 'eth0', here: true, other: '02:42:ac:11:00:02' } };
  known.head = { ...known.head, announced };
  const front = { address: '10.96.0.53', port: 80, protocol: 'tcp', family: 'IPv4', kind: 'cluster IP' };
  const frontends = [{ ...front, action: 'forward' }];
  const port = { name: 'http', port: 80, protocol: 'tcp', frontends, endpoints: [] };
  const picture = picturesOf({ namespace: 'default', name: 'edge', ports: [port] })[0];
  document.querySelector('.detail').append(picture);
  const card = picture.querySelector('.front').getBoundingClientRect();
  const [one, other] = [...picture.querySelectorAll('.front .badge')].map((each) => each.getBoundingClientRect());
  picture.remove();
  return Math.max(one.right, other.right) < card.right && Math.round(one.left) === Math.round(other.left);
})()"""
UNREAD = """(async () => {
  const { known } = await import('/stream.js');
  const { refresh } = await import('/list.js');
  const { head } = known;
  known.head = null;
  refresh(true);
  const said = document.querySelector('#found').textContent;
  known.head = head;
  refresh(true);
  return said;
})()"""


async def many_services(page: Page) -> None:
    """Put in ten thousand more, as the stream would bring them: few elements, a quick search, keys that work."""
    assert await page.value(UNREAD) == "reading …", "no Services, before any were read, is no news"
    await page.value(MANY)
    await page.until("!document.querySelector('#view-services').hidden")
    assert await page.value("document.querySelectorAll('.row').length") < 60
    assert await page.value(SEARCH) < 2000, "milliseconds; a person would wait"
    assert (await page.value("document.querySelector('#found').textContent")).startswith("1 of 10,00")
    assert await page.value("document.querySelector('#list').getAttribute('aria-activedescendant')") == "row-0"


@pytest.mark.slow
async def test_people_see_it_in_a_browser(stage: Stage, tmp_path: Path) -> None:
    """Look at all views with one browser: it takes two seconds to start. $VIEW_PICTURES keeps what it saw."""
    shown = Path(os.environ.get("VIEW_PICTURES", str(tmp_path)))
    with stage.lab.enter_namespace(NODE):
        async with chromium() as page:
            await page.go(f"{stage.url}/?token={stage.token}")
            await page.until("document.querySelectorAll('.row').length >= 2")
            assert await page.value("location.search") == ""
            await in_full(page, stage, shown)
            await explained(page)
            await every_view(page)
            await by_keyboard(page)
            shown_one = "document.querySelector('.title h1')?.textContent === 'default/web'"
            for view, ready in (
                ("#services", "!document.querySelector('#view-services').hidden"),
                ("#service/default/web", shown_one),
                ("#explain?from=203.0.113.2&to=default/web&port=http", "document.querySelector('.hook')"),
                ("#differences", "document.querySelector('#differences').innerText"),
                ("#changes", "document.querySelector('#changes table')"),
                ("#problems", "document.querySelector('#problems').innerText"),
            ):
                await read_aloud(page, view, ready)
            await many_services(page)
            assert page.complaints == []
