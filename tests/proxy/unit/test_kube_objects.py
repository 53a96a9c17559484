"""The client of single objects: outcomes as types, the loop of an update, the fence of an elected writer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from vipwire.kube.access.access import Access, load_access
from vipwire.kube.errors import ApiError, OtherReplicaElectedError, UnreachableError
from vipwire.kube.objects import FencedObjects, ObjectClient, path_of

PATH = path_of("/api/v1", "configmaps", "default", "web")


def status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "reason": reason, "message": message}, status=code)


class Server:
    """Keeps one object; `rivals` other writers change it just before a PUT."""

    def __init__(self, rivals: int = 0) -> None:
        self.version, self.rivals, self.asked = 1, rivals, list[tuple[str, str]]()
        self.value: dict[str, Any] = {"metadata": {"name": "web"}, "data": {"count": "0"}}

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.content_type))
        if request.path != PATH:
            return status(404, "NotFound", 'configmaps "other" not found')
        if request.method == "PUT":
            body = await request.json()
            if self.rivals:
                self.rivals, self.version = self.rivals - 1, self.version + 1
            if body["metadata"]["resourceVersion"] != str(self.version):
                return status(409, "Conflict", "the object has been modified")
            self.value, self.version = body, self.version + 1
        meta = self.value["metadata"] | {"resourceVersion": str(self.version)}
        return web.json_response(self.value | {"metadata": meta})


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Access]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield load_access(None, f"http://127.0.0.1:{runner.addresses[0][1]}", environ={})
    finally:
        await runner.cleanup()


def count(value: dict[str, Any]) -> dict[str, Any]:
    return value | {"data": {"count": str(int(value["data"]["count"]) + 1)}}


def test_paths_of_objects_and_of_collections() -> None:
    assert path_of("/api/v1", "nodes") == "/api/v1/nodes"
    assert path_of("/api/v1", "nodes", "", "n1", "status") == "/api/v1/nodes/n1/status"
    assert path_of("/apis/a/v1", "things", "ns", "x") == "/apis/a/v1/namespaces/ns/things/x"


async def test_an_object_that_is_missing_is_none_and_a_refusal_is_an_error() -> None:
    async with serving(Server().answer) as access, ObjectClient(access, "test") as client:
        assert (await client.get(PATH) or {})["data"] == {"count": "0"}
        assert await client.get("/other") is None
        await client.delete("/other")
        with pytest.raises(ApiError, match="not found") as refused:
            await client.merge("/other", {})
        assert (refused.value.code, refused.value.reason) == (404, "NotFound")


def test_an_update_is_made_again_if_another_writer_was_first() -> None:
    async def run(rivals: int) -> Server:
        server = Server(rivals)
        async with serving(server.answer) as access, ObjectClient(access, "test") as client:
            await client.update(PATH, count)
        return server

    assert asyncio.run(run(3)).value["data"] == {"count": "1"}
    with pytest.raises(ApiError, match="modified"):
        asyncio.run(run(5))


async def test_where_no_server_answers_and_where_the_answer_is_no_json() -> None:
    async def html(_request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async with serving(html) as access, ObjectClient(access, "test") as client:
        with pytest.raises(UnreachableError, match="not a JSON object"):
            await client.get(PATH)
    async with ObjectClient(access, "test") as client:  # the server has gone
        with pytest.raises(UnreachableError, match="does not answer"):
            await client.get(PATH)


async def test_a_fenced_writer_reads_but_does_not_write_once_its_election_is_lost() -> None:
    server, holds = Server(), True
    async with serving(server.answer) as access, FencedObjects(access, "test", lambda: holds) as objects:
        await objects.update(PATH, count)
        holds = False
        before = len(server.asked)
        assert await objects.get(PATH) is not None
        for write in (objects.update(PATH, count), objects.merge(PATH, {}), objects.delete(PATH)):
            with pytest.raises(OtherReplicaElectedError):
                await write
        assert {method for method, _ in server.asked[before:]} == {"GET"}
        assert server.value["data"] == {"count": "1"}
