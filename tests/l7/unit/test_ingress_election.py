"""Which replica writes the status: replicas against an API server with resourceVersions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from vipwire.kube.access.access import load_access
from vipwire.kube.errors import ApiError
from vipwire.kube.objects import Object, ObjectClient
from vipwire.model.names import ObjectName
from vipwire_l7.run.election import LeaseKeeper

pytestmark = pytest.mark.slow

LEASE = ObjectName("kube-system", "vipwire-ingress")


@asynccontextmanager
async def server(stored: dict[str, Any]) -> AsyncIterator[str]:
    """Keep one Lease as an API server does: a write with an old resourceVersion is a conflict."""

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(stored) if stored else web.Response(status=404)
        body = await request.json()
        if body["metadata"].get("resourceVersion") != stored.get("metadata", {}).get("resourceVersion"):
            return web.Response(status=409)
        version = int(body["metadata"].get("resourceVersion", 0)) + 1
        stored.update(body, metadata=body["metadata"] | {"resourceVersion": str(version)})
        return web.json_response(stored)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_one_of_three_replicas_leads_and_hands_over_when_it_ends() -> None:
    stored: dict[str, Any] = {}

    async with asyncio.timeout(60), server(stored) as url:
        keepers = [LeaseKeeper(load_access(None, url, environ={}), LEASE, f"r{number}") for number in range(3)]
        tasks = [asyncio.ensure_future(keeper.run()) for keeper in keepers]
        leader = await leader_of(keepers)
        assert stored["spec"]["holderIdentity"] == f"r{leader}"
        await end(tasks.pop(leader))
        assert stored["spec"]["holderIdentity"] == ""
        keepers.pop(leader)
        assert await leader_of(keepers) in (0, 1)
        assert stored["spec"]["leaseTransitions"] == 2
        for task in tasks:
            await end(task)


async def test_a_leader_that_cannot_renew_once_leads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, Any] = {}
    refused = renewed = 0

    async def replace(client: ObjectClient, path: str, value: Object) -> Object:
        nonlocal refused, renewed
        if not refused:
            refused += 1
            raise ApiError(500, "", "etcdserver: request timed out")
        renewed += 1
        return await real(client, path, value)

    real = ObjectClient.replace
    monkeypatch.setattr(ObjectClient, "replace", replace)
    async with asyncio.timeout(60), server(stored) as url:
        keeper = LeaseKeeper(load_access(None, url, environ={}), LEASE, "r0")
        task = asyncio.ensure_future(keeper.run())
        await leader_of([keeper])
        while renewed < 2:
            assert keeper.is_leading()
            await asyncio.sleep(0.01)
        assert refused
        await end(task)


async def leader_of(keepers: list[LeaseKeeper]) -> int:
    """Wait until one leads; tell which."""
    while not any(keeper.is_leading() for keeper in keepers):  # noqa: ASYNC110  # as the status writer asks
        await asyncio.sleep(0.01)
    (leader,) = (number for number, keeper in enumerate(keepers) if keeper.is_leading())
    return leader


async def end(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
