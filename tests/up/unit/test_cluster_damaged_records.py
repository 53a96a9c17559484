"""A record that a damaged or edited file holds costs its kind nothing: others are listed, selected and watched."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import Events, cluster
from tests.up.unit.up_here import put, up

from vipwire_up.store.database import FILE_NAME

pytestmark = pytest.mark.attack

PATH = "/api/v1/namespaces/default/configmaps"
BROKEN: dict[str, Any] = {
    "cut off": b'{"metadata":{"name":"bad","namespace":"default"},"da',
    "no JSON": b"\xff\x00 no JSON",
    "text": "no bytes",
    "a number": 7,
    "no object": b"[1]",
    "metadata of another form": b'{"metadata":7}',
    "labels of another form": b'{"metadata":{"name":"bad","namespace":"default","labels":[1]}}',
    "data of another form": b'{"metadata":{"name":"bad","namespace":"default","labels":{"app":"x"}},"data":{"a":7}}',
    "a time that is none": b'{"metadata":{"name":"bad","namespace":"default","creationTimestamp":"yesterday"}}',
    "another's name": b'{"metadata":{"name":"sound","namespace":"default"}}',
}


def config_map(name: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "x"}}, "data": {"a": "b"}}


def damage(folder: Path, value: object) -> None:
    """Put another value into the rows of ConfigMap `bad`, as a failing disk or a person does."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        done = connection.execute("UPDATE changes SET value = ? WHERE name = 'bad'", (value,))
        assert done.rowcount > 0


@pytest.mark.parametrize("value", BROKEN.values(), ids=[*BROKEN])
async def test_others_are_listed_selected_and_watched(tmp_path: Path, value: object) -> None:
    await put(tmp_path, config_map("bad"), config_map("sound"))
    damage(tmp_path, value)
    async with asyncio.timeout(60), cluster(tmp_path) as here:
        for question in ("", "?labelSelector=app%3Dx", "?fieldSelector=metadata.namespace%3Ddefault", "?limit=1"):
            code, answer = await here.send("GET", PATH + question)
            assert (code, names(answer["items"])) == (200, ["sound"]), answer
            told = ('299 - "the stored configmaps default/bad is damaged, and missing in lists: delete the object"',)
            assert tuple(here.warnings) == told
        for question in ("", "&labelSelector=app"):
            async with here.session.get(f"{here.url}{PATH}?watch=1{question}", headers=ADMIN) as response:
                events = Events(response)
                assert await events.names(1) == [("ADDED", "sound")]
                data = {"data": {"c": question}}
                assert (await here.send("PATCH", f"{PATH}/sound", data, patch="merge-patch+json"))[0] == 200
                assert await events.names(1) == [("MODIFIED", "sound")]
        code, answer = await here.send("GET", f"{PATH}/bad")
        assert (code, answer["reason"]) == (500, "InternalError")
        assert "is damaged: delete the object, and create it again" in answer["message"]
        body = config_map("bad") | {"apiVersion": "v1"}
        for method, patch in (("PUT", ""), ("PATCH", "merge-patch+json"), ("PATCH", "apply-patch+yaml")):
            code, answer = await here.send(method, f"{PATH}/bad?fieldManager=x", body, patch=patch)
            assert (code, "is damaged" in answer["message"]) == (500, True)
        assert (await here.send("DELETE", f"{PATH}/bad"))[0] == 200
        assert (await here.send("POST", PATH, config_map("bad")))[0] == 201
        code, answer = await here.send("GET", f"{PATH}?labelSelector=app")
        assert (names(answer["items"]), tuple(here.warnings)) == (["bad", "sound"], ())


ADMIN = {"X-User": "admin"}


def names(items: Sequence[dict[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


async def test_a_watch_from_before_a_damaged_state_is_told_to_list_again(tmp_path: Path) -> None:
    await put(tmp_path, config_map("sound"), config_map("bad"))
    damage(tmp_path, b"no JSON")
    async with asyncio.timeout(60), cluster(tmp_path) as here:
        async with here.session.get(f"{here.url}{PATH}?watch=1&resourceVersion=1", headers=ADMIN) as response:
            kind, status = await Events(response).next()
        assert (kind, status["code"]) == ("ERROR", 410)


async def test_it_is_told_in_the_log_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await put(tmp_path, config_map("bad"))
    damage(tmp_path, b"no JSON")
    async with up(tmp_path) as here:
        await here.serves_others()
        line = 'vipwire_up_damaged_objects{resource="configmaps"}'
        assert f"{line} 1.0" in (await here.ask("GET", "/metrics"))[1]
        assert (await here.ask("DELETE", f"{PATH}/bad"))[0] == 200
        assert f"{line} 0.0" in (await here.ask("GET", "/metrics"))[1]
    assert "a stored object is damaged; ignoring the object until its deletion" in caplog.text
