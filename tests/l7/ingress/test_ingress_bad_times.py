"""HAProxy and its socket in bad times: the believed state is never wrong for longer than the next look."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from tests.l7.ingress.site import Site, in_site, ingress, rule, site

from vipwire_l7.run.control import Process, ask_haproxy, list_processes

POD, OTHER = "127.0.0.21", "127.0.0.22"
SECONDS = 15.0


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that nobody tells of."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.02)


async def found(here: Site) -> list[Process]:
    """List HAProxy's processes: a master that has just started does not answer yet."""
    async with asyncio.timeout(60):
        while len(there := await list_processes(here.haproxy.folder / "master.sock")) < 2:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.02)
    return there


async def served(here: Site) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/", "/x"), rule("b.example.com", "/")))
    await here.settled()


@pytest.mark.parametrize(
    "commands",
    [
        ["del map {folder}/prefixes.map a.example.com/"],
        ["set map {folder}/prefixes.map a.example.com/ nowhere"],
        ["add map {folder}/prefixes.map c.example.com/ {web}"],
        ["set server {web}/s1 state maint"],
        ["set server {web}/s1 addr 127.0.0.99 port 9"],
        ["set server {web}/s1 weight 0"],
        ["set server {web}/s1 state drain"],
        ["set server {web}/s2 addr 127.0.0.99 port 9", "set server {web}/s2 state ready"],
    ],
)
async def test_what_others_change_in_haproxy_is_repaired_at_the_next_look(
    commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipwire_l7.run.controller._LOOK", 0.05)
    async with site(tmp_path) as here:
        await served(here)
        await asyncio.sleep(0.2)
        assert not [each.repaired for each in here.done if each.repaired]
        folder = (here.haproxy.folder / "haproxy.cfg").resolve().parent
        (web,) = here.controller.spares
        await ask_haproxy(here.haproxy.socket, [each.format(folder=folder, web=web) for each in commands])
        await until(lambda: any(each.repaired for each in here.done))
        await until(lambda: here.done[-1].commands > 0)
        assert await here.codes_of("a", "b", "c") == {"a": 200, "b": 200, "c": 404}
        told = len(here.done)
        await asyncio.sleep(0.2)
        assert len(here.done) == told, "nothing is left to repair"
        assert here.reloads == ["start"]


async def test_a_reload_of_another_program_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the files of our last reload, without what commands have changed since."""
    monkeypatch.setattr("vipwire_l7.run.controller._LOOK", 0.05)
    async with site(tmp_path) as here:
        await served(here)
        here.put(ingress("late", rule("c.example.com", "/")))
        await here.settled()
        while not any(each.reloads for each in await found(here)):
            os.kill(here.haproxy.pid, signal.SIGUSR2)  # a master that was started a moment ago may miss a signal
            await asyncio.sleep(0.2)
        # The look may meet a worker that is just being replaced, which answers nobody: that is a reload of ours.
        await until(
            lambda: len(here.reloads) > 1 or (here.done[-1].commands > 0 and any(each.repaired for each in here.done))
        )
        await here.settled()
        assert await here.codes_of("a", "c") == {"a": 200, "c": 200}


@in_site()
async def test_haproxy_killed_between_two_changes_has_all_when_it_is_back(here: Site) -> None:
    await served(here)
    for number in range(3):
        before = len(here.reloads)
        for process in await found(here):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        host = f"h{number}"
        here.put(ingress(host, rule(f"{host}.example.com", "/")))
        await until(lambda before=before: len(here.reloads) > before)  # type: ignore[misc]
        await here.settled()
        assert await here.codes_of("a", host) == {"a": 200, host: 200}


@in_site()
async def test_a_socket_that_is_not_there_for_a_while_is_made_good_by_a_reload(here: Site) -> None:
    await served(here)
    kept = here.haproxy.socket.with_name("kept.sock")
    here.haproxy.socket.rename(kept)
    here.put(ingress("late", rule("c.example.com", "/")))
    number = here.haproxy.get_next_folder()
    await until(lambda: here.haproxy.get_next_folder() != number)  # it is reloading
    kept.rename(here.haproxy.socket)
    await here.settled()
    assert await here.codes_of("a", "c") == {"a": 200, "c": 200}
    assert "a command failed" in here.reloads[-1]


async def test_a_socket_that_answers_late_is_made_good_by_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipwire_l7.run.control._SECONDS", 0.5)
    async with site(tmp_path) as here:
        await served(here)
        (worker,) = [each.pid for each in await found(here) if each.type == "worker"]
        number = here.haproxy.get_next_folder()
        os.kill(worker, signal.SIGSTOP)
        here.put(ingress("late", rule("c.example.com", "/")))
        await until(lambda: here.haproxy.get_next_folder() != number)  # it is reloading
        os.kill(worker, signal.SIGCONT)
        await here.settled()
        assert await here.codes_of("a", "c") == {"a": 200, "c": 200}


@in_site()
async def test_a_killer_beside_changes_leaves_the_plan_in_place_and_no_wrong_answer(here: Site) -> None:
    await a_soak(here, SECONDS)


async def a_soak(here: Site, seconds: float) -> None:
    """Move hosts between two Services while HAProxy is killed now and then."""
    chance = random.Random(7)  # noqa: S311  # draws changes
    ends = time.monotonic() + seconds
    pods = {"web": POD, "other": OTHER}
    leads = dict.fromkeys(("a", "b", "c", "d"), "web")
    for name, address in pods.items():
        await here.pods(name, address)
    here.put(*(ingress(host, rule(f"{host}.example.com", "/")) for host in leads), ingress("s", rule("s.org", "/")))
    await here.settled()
    wrong = list[str]()

    async def ask_steadily() -> None:
        while time.monotonic() < ends:
            connector = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(connector=connector, headers={"Host": "s.org"}) as session:
                with contextlib.suppress(aiohttp.ClientConnectionError, TimeoutError):
                    async with session.get(f"http://127.0.0.1:{here.http}/") as response:
                        if (response.status, response.headers.get("X-Pod")) != (200, POD):
                            wrong.append(f"{response.status} {await response.text()}")
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask_steadily())
        while time.monotonic() < ends:
            host = chance.choice(list(leads))
            leads[host] = chance.choice(("web", "other"))
            notes = {"vipwire.io/timeout-server": "9s"} if chance.random() < 0.1 else {}
            here.put(ingress(host, rule(f"{host}.example.com", "/", service=leads[host]), annotations=notes))
            if chance.random() < 0.05:
                for each in await list_processes(here.haproxy.folder / "master.sock"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)
            if chance.random() < 0.3:
                await here.settled()
            await asyncio.sleep(chance.random() * 0.1)
    await here.settled()
    for host, name in leads.items():
        assert await here.pods_of(f"http://{host}.example.com/", times=2) == {pods[name]}
    assert not wrong
