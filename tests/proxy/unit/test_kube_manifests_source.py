"""Folders and files of manifests, watched for real."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.event_log import EventLog
from tests.fakes.objects import service

from vipwire.errors import ConfigError
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.manifests.source import ManifestSource
from vipwire.watched_objects.event import Deleted, Kind, Listed, Object, Upserted


def write(path: Path, *documents: Any) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(yaml.safe_dump_all(documents))
    fresh.replace(path)


def follow(paths: list[Path], story: Callable[[ManifestSource[Kind, Object], EventLog], Awaitable[None]]) -> EventLog:
    async def run() -> EventLog:
        source, log = ManifestSource(paths, MANIFESTS), EventLog()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(log))
            await log.until(lambda: len(log.listed()) == 4)
            await story(source, log)
            task.cancel()
        return log

    return asyncio.run(run())


def test_a_path_that_does_not_exist_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--manifests: .*nowhere does not exist"):
        ManifestSource([tmp_path / "nowhere"], MANIFESTS)


def test_what_is_missing_stays_while_a_document_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service(1), service(2))

    async def story(_: ManifestSource[Kind, Object], log: EventLog) -> None:
        write(tmp_path / "a.yaml", service(1, ports=[{"port": 81}]), 42)  # the second one, perhaps
        await log.until(lambda: len(log.changes()) == 2)
        assert {name.name for _, name in log.objects} == {"service-1", "service-2"}
        write(tmp_path / "a.yaml", service(1))
        await log.until(lambda: not any(name.name == "service-2" for _, name in log.objects))

    follow([tmp_path], story)


def test_a_folder_is_read_and_watched(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service(1), service(2))
    (tmp_path / "notes.txt").write_text("not a manifest: [")
    (tmp_path / ".hidden.yaml").write_text("not a manifest: [")

    async def story(source: ManifestSource[Kind, Object], log: EventLog) -> None:
        write(tmp_path / "a.yaml", service(1), service(2, ports=[{"port": 81}]))
        await log.until(lambda: len(log.changes()) == 1)
        write(tmp_path / "b.yml", service(3))
        await log.until(lambda: len(log.changes()) == 2)
        (tmp_path / "a.yaml").unlink()
        await log.until(lambda: len(log.changes()) == 4)
        assert [health.error for health in source.health()] == [""]

    log = follow([tmp_path], story)
    assert [type(event) for event in log.changes()] == [Upserted, Upserted, Deleted, Deleted]
    assert sum(len(event.objects) for event in log.events if isinstance(event, Listed)) == 2


def test_a_file_that_breaks_keeps_its_last_good_objects(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", service(1))

    async def story(source: ManifestSource[Kind, Object], log: EventLog) -> None:
        (tmp_path / ".broken").write_text("kind: [\n")
        (tmp_path / ".broken").replace(tmp_path / "a.yaml")
        await log.until(lambda: len(log.changes()) == 1)
        (problem,) = log.changes()[0].problems
        assert problem.object.name == str(tmp_path / "a.yaml")
        assert problem.field == "line 2, column 1"
        await log.until(lambda: bool(source.health()[0].error))
        write(tmp_path / "a.yaml", service(1, ports=[{"port": 81}]))
        await log.until(lambda: len(log.changes()) == 3)
        await log.until(lambda: not source.health()[0].error)

    log = follow([tmp_path], story)
    assert {type(event) for event in log.changes()[1:]} == {Upserted, Deleted}
    assert all(event.problems == () for event in log.changes()[1:])


def test_a_file_that_is_emptied_before_it_is_written_keeps_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vipwire.kube.manifests.source.FRESH", 600.0
    )  # a loaded machine may take longer than a writer does
    write(tmp_path / "a.yaml", service(1))

    async def story(_: ManifestSource[Kind, Object], log: EventLog) -> None:
        (tmp_path / "a.yaml").write_text("")
        write(tmp_path / "b.yaml", service(2))
        await log.until(lambda: len(log.changes()) == 1)
        write(tmp_path / "a.yaml", service(1, ports=[{"port": 81}]))
        await log.until(lambda: len(log.changes()) == 2)

    assert {type(event) for event in follow([tmp_path], story).changes()} == {Upserted}


def test_a_file_alone_is_watched_through_its_replacement_and_stays_when_it_vanishes(tmp_path: Path) -> None:
    path = tmp_path / "only"
    write(path, service(1))
    write(tmp_path / "other.yaml", service(2))

    async def story(source: ManifestSource[Kind, Object], log: EventLog) -> None:
        write(path, service(1), service(3))
        await log.until(lambda: len(log.changes()) == 1)
        path.unlink()
        await log.until(lambda: len(log.changes()) == 2)
        assert "last valid objects stay" in str(log.changes()[1].problems[0])
        await log.until(lambda: bool(source.health()[0].error))
        write(path, service(1))
        await log.until(lambda: len(log.changes()) == 4)

    log = follow([path], story)
    assert isinstance(log.changes()[0], Upserted)


def test_a_configmap_mount_swaps_a_link(tmp_path: Path) -> None:
    for version in (1, 2):
        (tmp_path / f"..v{version}").mkdir()
        write(tmp_path / f"..v{version}" / "a.yaml", service(version))
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")

    async def story(_: ManifestSource[Kind, Object], log: EventLog) -> None:
        (tmp_path / "..data_tmp").symlink_to("..v2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await log.until(lambda: len(log.changes()) == 2)

    log = follow([tmp_path], story)
    assert {type(event) for event in log.changes()} == {Upserted, Deleted}


def test_a_folder_that_vanishes_keeps_its_objects_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "a.yaml", service(1))

    async def story(_: ManifestSource[Kind, Object], log: EventLog) -> None:
        os.rename(folder, tmp_path / "away")  # noqa: PTH104 - a rename of the folder itself
        await log.until(lambda: len(log.changes()) == 1)
        assert len(log.changes()[0].problems) == 1
        folder.mkdir()
        write(folder / "a.yaml", service(2))
        await log.until(lambda: len(log.changes()) == 4)

    log = follow([folder], story)
    assert sum(isinstance(event, Upserted) for event in log.changes()) == 1
