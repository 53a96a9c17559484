"""A loop hears of every kind of change in a folder."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vipwire.process.folder_watch import changes, hears_all


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new").write_bytes(b""),
        lambda folder: (folder / "old").write_bytes(b"other"),
        lambda folder: (folder / "old").unlink(),
        lambda folder: (folder / "old").rename(folder / "moved"),
        lambda folder: (folder / "link").symlink_to("old"),
        lambda folder: (folder / "old").chmod(0o600),
    ],
    ids=["created", "written", "deleted", "renamed", "linked", "allowed"],
)
def test_a_change_is_heard(tmp_path: Path, change: Callable[[Path], object]) -> None:
    async def hear() -> None:
        with changes([tmp_path]) as changed:
            assert not changed.is_set()
            change(tmp_path)
            async with asyncio.timeout(30):
                await changed.wait()

    (tmp_path / "old").write_bytes(b"")
    asyncio.run(hear())


def test_what_is_not_wanted_wakes_nobody(tmp_path: Path) -> None:
    async def hear() -> None:
        with changes([tmp_path], "wanted") as changed, changes([tmp_path]) as anything:
            for name in ("other", "wanted.new", "wanted"):
                assert not changed.is_set()
                anything.clear()
                (tmp_path / name).write_bytes(b"")
                async with asyncio.timeout(30):
                    await anything.wait()
                    if name == "wanted":
                        await changed.wait()

    asyncio.run(hear())


def test_who_has_just_been_woken_by_others_hears_what_is_wanted(tmp_path: Path) -> None:
    async def hear() -> None:
        with changes([tmp_path], "wanted") as changed:
            for number in range(20):
                (tmp_path / f"other-{number}").write_bytes(b"")
                await asyncio.sleep(0)
            (tmp_path / "wanted").write_bytes(b"")
            async with asyncio.timeout(30):
                await changed.wait()

    asyncio.run(hear())


def test_where_others_write_all_the_time_it_listens_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        heard.append(descriptor)
        return read(descriptor, size)

    async def hear() -> None:
        with changes([tmp_path], "wanted") as changed:
            for number in range(500):
                (tmp_path / f"other-{number % 9}").write_bytes(b"")
                await asyncio.sleep(0.005)
            assert not changed.is_set()

    monkeypatch.setattr(os, "read", counted)
    asyncio.run(hear())
    assert 1 <= len(heard) <= 8, "after 0.2, 0.4, 0.8 and then each second"


def test_a_folder_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    async def watch() -> None:
        with changes([tmp_path, tmp_path / "nowhere"]):
            pass

    with pytest.raises(FileNotFoundError):
        asyncio.run(watch())


def test_whether_all_changes_are_heard_depends_on_the_file_system() -> None:
    assert hears_all(Path("/dev/shm"))  # noqa: S108  # a tmpfs
    assert not hears_all(Path("/proc"))
    assert not hears_all(Path("/nowhere"))
