"""After a restore, resourceVersions and continue tokens from before it get 410, over HTTP, at both stores."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.up.unit.cluster_here import Events
from tests.up.unit.etcd_here import members
from tests.up.unit.store_here import settings
from tests.up.unit.test_cluster_store_strangers import MAPS, PREFIX, apart, create, restore, snapshot, until
from tests.up.unit.up_here import Up, up

from vipwire_up.store import backup

pytestmark = pytest.mark.slow
Known = tuple[list[str], str]
"""The resourceVersions and the continue token that a client has seen."""


async def fill(here: Up, name: str, count: int) -> Known:
    for number in range(count):
        assert await create(here, f"{name}-{number}") == 201
    _, page = await here.ask("GET", f"{MAPS}?limit=1")
    _, every = await here.ask("GET", MAPS)
    versions = [each["metadata"]["resourceVersion"] for each in (every, *every["items"])]
    return versions, page["metadata"]["continue"]


@contextlib.asynccontextmanager
async def watched(here: Up, version: str) -> AsyncIterator[Events]:
    async with here.session.get(f"{here.url}{MAPS}?watch=1&resourceVersion={version}") as response:
        yield Events(response)


async def code_of_watch(here: Up, version: str) -> int:
    async with here.session.get(f"{here.url}{MAPS}?watch=1&resourceVersion={version}") as response:
        if response.status != 200:
            return response.status
        kind, value = await Events(response).next()
        assert kind == "ERROR", value
        return int(value["code"])


async def are_gone(here: Up, known: Known) -> None:
    versions, token = known
    for version in versions:
        assert await code_of_watch(here, version) == 410
        exact = await here.ask("GET", f"{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")
        assert (exact[0], exact[1]["reason"]) == (410, "Expired")
        assert (await here.ask("GET", f"{MAPS}?resourceVersion={version}"))[0] == 200  # "not older than"
    assert (await here.ask("GET", f"{MAPS}?limit=1&continue={token}"))[0] == 410


async def ends_right(here: Up, known: Known) -> None:
    """Check that old numbers are void, also when the store has grown."""
    await are_gone(here, known)
    versions, _ = await fill(here, "new", 30)
    await are_gone(here, known)
    names = {each["metadata"]["name"].partition("-")[0] for each in (await here.ask("GET", MAPS))[1]["items"]}
    assert names == {"kept", "new"}
    async with watched(here, versions[0]) as events:
        assert await create(here, "last") == 201
        assert await events.names(1) == [("ADDED", "last")]


async def test_sqlite(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy.db"
    async with up(folder) as here:
        await fill(here, "kept", 3)
        await apart(backup.back_up_store, folder, copy)
        known = await fill(here, "lost", 12)
    await apart(backup.restore_store, folder, copy)
    async with up(folder) as here:
        await ends_right(here, known)


async def test_etcd(tmp_path: Path) -> None:
    """etcd is restored under a running server, whose open watches end."""

    def restored(path: str) -> None:
        etcd.forget(0)
        restore(etcd, 0, path, *etcd.alone(0))
        etcd.start(0)
        etcd.wait()

    async def ready() -> bool:
        code, value = await here.ask("GET", MAPS)
        return code == 200 and len(value["items"]) == 3

    with members(1) as etcd:
        async with up(tmp_path, etcd=settings(etcd, PREFIX), node="n0") as here:
            await fill(here, "kept", 3)
            path = await apart(snapshot, etcd, 0)
            known = await fill(here, "lost", 12)
            async with watched(here, known[0][0]) as events:
                await apart(restored, path)
                kind, value = await events.next()
                assert (kind, value["code"]) == ("ERROR", 410)
            await until(ready)
            await ends_right(here, known)
