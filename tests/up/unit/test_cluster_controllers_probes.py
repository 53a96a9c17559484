"""Workloads: a Pod's address by annotation, and what its readiness probes make of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.up.unit.cluster_here import START, Here, cluster
from tests.up.unit.controllers_here import PODS, items
from tests.up.unit.up_here import up

from vipwire.kube.access.access import load_access
from vipwire.kube.client import ApiSource
from vipwire_up.controllers.endpoints.workloads import merge_conditions, start_workload
from vipwire_up.nodes.heartbeat import Heartbeat
from vipwire_up.nodes.node import OWN, PROBES
from vipwire_up.nodes.objects import LocalObjects, RemoteObjects
from vipwire_up.readiness_probes.probe import run_probe
from vipwire_up.readiness_probes.probes import NO_COMMANDS, RESOURCES, Prober, Probes, Verdict, build_local_probes

pytestmark = pytest.mark.slow

OWN_PROBES = {PROBES: OWN}


def clock() -> datetime:
    return START.astimezone(UTC)


def pod(address: str = "127.0.0.1", probe: dict[str, Any] | None = None, port: int = 1) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "web", "image": "none", "ports": [{"name": "http", "containerPort": port}]}
    if probe is not None:
        container["readinessProbe"] = {"timeoutSeconds": 5, "periodSeconds": 1, "failureThreshold": 1} | probe
    meta = {"name": "web-1", "labels": {"app": "web"}, "annotations": {"vipwire.io/address": address}}
    return {"metadata": meta, "spec": {"containers": [container]}}


def workloads(folder: Path) -> AbstractAsyncContextManager[Here]:
    return cluster(folder, hooks=(partial(start_workload, clock),))


def ready(value: dict[str, Any]) -> list[str]:
    conditions = value["status"].get("conditions", ())
    return [each["status"] for each in conditions if each["type"] == "Ready"]


async def test_a_pod_with_an_address_runs_there(tmp_path: Path) -> None:
    async with workloads(tmp_path) as here:
        made = await here.post(PODS, pod("10.0.0.5, fd00:0::5"))
        assert made["status"]["podIPs"] == [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}]
        assert (made["status"]["phase"], ready(made)) == ("Running", ["True"])
        body = {"metadata": {"annotations": {"vipwire.io/address": "10.0.0.6"}}}
        code, moved = await here.send("PATCH", f"{PODS}/web-1", body, patch="merge-patch+json")
        assert (code, moved["status"]["podIP"]) == (200, "10.0.0.6")


def test_a_pod_has_the_conditions_that_a_kubelet_writes() -> None:
    ready_now = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": "True", "Ready": "True"}
    probed = pod(probe={"httpGet": {"port": 1}})
    found = merge_conditions([{"type": "mine", "status": "True"}], probed, None, "t1")
    for problem, states, times in (
        (None, ready_now | {"ContainersReady": "False", "Ready": "False"}, {"t1"}),
        ("web: refused", ready_now | {"ContainersReady": "False", "Ready": "False"}, {"t1"}),
        ("", ready_now, {"t1", "t2"}),
        ("", ready_now, {"t1", "t2"}),
    ):
        found = merge_conditions(found, probed, problem, "t2" if problem == "" else "t3")
        assert {each["type"]: each["status"] for each in found} == {"mine": "True"} | states
        assert {each["lastTransitionTime"] for each in found if each["type"] != "mine"} == times
        bad = [each for each in found if each["status"] == "False"]
        assert all(each["reason"] == "ContainersNotReady" and each["message"] for each in bad)
    probed["spec"]["readinessGates"] = [{"conditionType": "mine"}, {"conditionType": "another"}]
    found = merge_conditions(found, probed, "", "t4")
    assert {each["type"]: each.get("message") for each in found if each["status"] == "False"} == {
        "Ready": "not True: another"
    }


@pytest.mark.parametrize("text", ["nonsense", "", "10.0.0.1,10.0.0.2"])
async def test_a_wrong_address_is_refused(tmp_path: Path, text: str) -> None:
    async with workloads(tmp_path) as here:
        code, status = await here.send("POST", PODS, pod(text))
        assert code == 422
        assert "metadata.annotations[vipwire.io/address]" in status["message"]


def test_answers_count_in_rows() -> None:
    verdict = Verdict({"successThreshold": 2, "failureThreshold": 3})
    seen = []
    for good in (True, True, False, False, True, False, False, False, True, True):
        verdict.record_result(good=good)
        seen.append(verdict.good)
    assert seen == [None, True, True, True, True, True, True, False, False, True]


@contextlib.asynccontextmanager
async def answering(status: int) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status if request.path == "/healthz" else 404)

    async with served(answer) as port:
        yield port


@contextlib.asynccontextmanager
async def served(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("probe", "status", "problem"),
    [
        ({"tcpSocket": {"port": "http"}}, 200, ""),
        ({"httpGet": {"port": "http", "path": "/healthz"}}, 204, ""),
        ({"httpGet": {"port": "http", "path": "/healthz"}}, 302, ""),
        ({"httpGet": {"port": "http", "path": "/healthz"}}, 500, "statuscode: 500"),
        ({"httpGet": {"port": "other"}}, 200, "no port named other"),
        ({"exec": {"command": ["true"]}}, 200, ""),
        ({"exec": {"command": ["false"]}}, 200, "exit code 1"),
        ({"exec": {"command": ["/no/such"]}}, 200, "No such file"),
        ({}, 200, "none of tcpSocket, httpGet and exec"),
    ],
)
async def test_what_a_probe_asks(probe: dict[str, Any], status: int, problem: str) -> None:
    async with answering(status) as port:
        value = pod(port=port) | {"status": {"podIP": "127.0.0.1"}}
        said = await run_probe({"timeoutSeconds": 20} | probe, value, "web")
    assert (problem in said) if problem else (said == "")


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("/good", ""),
        ("good?a=b", ""),
        ("//127.0.0.1:{port}/good", ""),
        ("/bad", "statuscode: 500"),
        ("http://127.0.0.1:{port}/again/bad", "statuscode: 500"),
        ("http://127.0.0.1:1/", "onnection refused"),
        ("http://elsewhere.test/bad", ""),
        ("/again/", "stopped after 10 redirects"),
        ("ftp://127.0.0.1/", "ftp"),
        ("", ""),
    ],
)
async def test_a_probe_follows_redirects_of_the_pod_to_itself(location: str, problem: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if name in ("good", "bad"):
            return web.Response(status=200 if name == "good" else 500)
        return web.Response(status=302, headers={"Location": location.format(port=request.url.port)})

    async with served(answer) as port:
        value = pod(port=port) | {"status": {"podIP": "127.0.0.1"}}
        said = await run_probe({"timeoutSeconds": 20, "httpGet": {"port": port}}, value, "web")
    assert (problem in said) if problem else (said == "")


def test_nobody_there_and_a_command_that_takes_too_long() -> None:
    value = pod() | {"status": {"podIP": "127.0.0.1"}}
    assert "refused" in asyncio.run(run_probe({"timeoutSeconds": 20, "tcpSocket": {"port": 1}}, value, "web")).lower()
    said = asyncio.run(run_probe({"timeoutSeconds": 1, "exec": {"command": ["sleep", "60"]}}, value, "web"))
    assert said == "no answer within 1 s"


async def until_ready(here: Here, state: str) -> None:
    while True:
        known = here.store.revision
        _, value = await here.send("GET", f"{PODS}/web-1")
        if ready(value) == [state]:
            return
        await here.store.wait_for_revision(known + 1)


async def test_a_pod_is_ready_while_its_probe_is_good_and_an_event_tells_why_not(tmp_path: Path) -> None:
    async with workloads(tmp_path) as here, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(build_local_probes(here.registry).run())
        async with answering(200) as port:
            probe = {"httpGet": {"port": port, "path": "/healthz"}}
            made = await here.post(PODS, pod(probe=probe))
            assert ready(made) == ["False"]
            await until_ready(here, "True")
        await until_ready(here, "False")
        known = here.store.revision
        while not (events := await items(here, "/api/v1/namespaces/default/events")):
            await here.store.wait_for_revision(known + 1)
            known = here.store.revision
        assert events[0]["reason"] == "Unhealthy"
        assert "Readiness probe failed: web:" in events[0]["message"]
        running.cancel()


async def test_commands_are_not_run_unless_allowed(tmp_path: Path) -> None:
    async with workloads(tmp_path) as here, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(build_local_probes(here.registry).run())
        mark = tmp_path / "mark"
        await here.post(PODS, pod(probe={"exec": {"command": ["touch", str(mark)]}}))
        while True:
            known = here.store.revision
            _, value = await here.send("GET", f"{PODS}/web-1")
            if NO_COMMANDS in str(value["status"]):
                break
            await here.store.wait_for_revision(known + 1)
        assert not mark.exists()
        running.cancel()


def placed(name: str, node: str, port: int) -> dict[str, Any]:
    value = pod(probe={"tcpSocket": {"port": port}})
    spec = value["spec"] | ({"nodeName": node} if node else {})
    return value | {"metadata": value["metadata"] | {"name": name}, "spec": spec}


async def until_states(api: Here, /, **wanted: str) -> None:
    """Wait until Pods are as ready as they should be."""
    while True:
        known = api.store.revision
        found = {each["metadata"]["name"]: ready(each)[0] for each in await items(api, PODS)}
        if found == wanted:
            return
        await api.store.wait_for_revision(known + 1)


async def test_a_machine_probes_its_own_pods_and_the_elected_one_the_others(tmp_path: Path) -> None:
    async with workloads(tmp_path) as here, answering(200) as port, asyncio.TaskGroup() as tasks:
        await Heartbeat(
            LocalObjects(here.registry, "test"), "n1", lambda: ([], OWN_PROBES), here.clock
        ).declare_node()
        for name, node in (("here", "n1"), ("there", "n2"), ("nowhere", "")):
            await here.post(PODS, placed(name, node, port))
        machine = tasks.create_task(build_local_probes(here.registry, Prober("n1")).run())
        await until_states(here, here="True", there="False", nowhere="False")
        machine.cancel()
        elected = tasks.create_task(build_local_probes(here.registry).run())
        await until_states(here, here="True", there="True", nowhere="True")
        elected.cancel()


async def test_a_machine_that_joined_probes_with_the_rights_of_its_role(tmp_path: Path) -> None:
    async with up(tmp_path, node="n1") as api, answering(200) as port, asyncio.TaskGroup() as tasks:
        access = load_access(tmp_path / "node.kubeconfig")
        async with RemoteObjects(access, "test") as objects:
            await Heartbeat(objects, "n2", lambda: ([], OWN_PROBES), clock).declare_node()
            code, _ = await api.ask("POST", PODS, placed("there", "n2", port))
            assert code == 201
            machine = Probes(objects, ApiSource(access, RESOURCES).run, clock, Prober("n2"))
            running = tasks.create_task(machine.run())
            found = await api.until(PODS, lambda value: ready(value) == ["True"])
            assert found["metadata"]["name"] == "there"
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_the_elected_one_probes_for_a_machine_that_is_not_ready_or_does_not_probe(tmp_path: Path) -> None:
    async with workloads(tmp_path) as here:
        heartbeat = Heartbeat(LocalObjects(here.registry, "test"), "n1", lambda: ([], OWN_PROBES), here.clock)
        await heartbeat.declare_node()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(build_local_probes(here.registry).run())
            async with answering(200) as port:
                await here.post(PODS, placed("here", "n1", port))
                await here.post(PODS, placed("other", "", port))
                await until_states(here, here="False", other="True")
                status = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
                code, _ = await here.send("PATCH", "/api/v1/nodes/n1/status", status, patch="merge-patch+json")
                assert code == 200
                await until_states(here, here="True", other="True")
            running.cancel()
