"""A loop hears of every kind of change in a folder, by one instance of inotify; without one it looks."""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vipwire.file_io.file_watch import FileWatch, reports_all_changes


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
async def test_a_change_is_heard(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "old").write_bytes(b"")
    with FileWatch().watch_changes([tmp_path]) as changed:
        assert not changed.is_set()
        change(tmp_path)
        async with asyncio.timeout(30):
            await changed.wait()


async def test_what_is_not_wanted_wakes_nobody(tmp_path: Path) -> None:
    files = FileWatch()
    with files.watch_changes([tmp_path], "wanted") as changed, files.watch_changes([tmp_path]) as anything:
        for name in ("other", "wanted.new", "wanted"):
            assert not changed.is_set()
            anything.clear()
            (tmp_path / name).write_bytes(b"")
            async with asyncio.timeout(30):
                await anything.wait()
                if name == "wanted":
                    await changed.wait()


async def test_who_has_just_been_woken_by_others_hears_what_is_wanted(tmp_path: Path) -> None:
    with FileWatch().watch_changes([tmp_path], "wanted") as changed:
        for number in range(20):
            (tmp_path / f"other-{number}").write_bytes(b"")
            await asyncio.sleep(0)
        (tmp_path / "wanted").write_bytes(b"")
        async with asyncio.timeout(30):
            await changed.wait()


@pytest.mark.slow
async def test_where_others_write_all_the_time_it_listens_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        heard.append(descriptor)
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    with FileWatch().watch_changes([tmp_path], "wanted") as changed:
        for number in range(500):
            (tmp_path / f"other-{number % 9}").write_bytes(b"")
            await asyncio.sleep(0.005)
        assert not changed.is_set()
    assert 1 <= len(heard) <= 8, "after 0.2, 0.4, 0.8 and then each second"


async def test_a_folder_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), FileWatch().watch_changes([tmp_path, tmp_path / "nowhere"]):
        pass


async def test_two_listeners_share_one_instance_which_is_closed_after_the_last(tmp_path: Path) -> None:
    files, counts = FileWatch(), [instances()]
    with (
        files.watch_changes([tmp_path], "one") as one,
        files.watch_changes([tmp_path, tmp_path.parent], "two") as two,
    ):
        counts.append(instances())
        (tmp_path / "two").write_bytes(b"")
        async with asyncio.timeout(30):
            await two.wait()
        assert not one.is_set()
    counts.append(instances())
    with files.watch_changes([tmp_path]) as again:
        (tmp_path / "one").write_bytes(b"")
        async with asyncio.timeout(30):
            await again.wait()
    (before, during, after) = counts
    assert (during - before, after - before) == (1, 0)


def instances() -> int:
    """Count the inotify instances of this process."""
    found = 0
    for each in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the list itself was one of them
            found += "inotify" in str(each.readlink())
    return found


@pytest.mark.parametrize(
    ("code", "setting"),
    [(errno.EMFILE, "fs.inotify.max_user_instances"), (errno.ENOSPC, "fs.inotify.max_user_watches")],
)
async def test_a_limit_of_inotify_is_told_once_and_the_file_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, setting: str
) -> None:
    def refused(_result: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("vipwire.file_io.file_watch._check_result", refused)
    monkeypatch.setattr("vipwire.file_io.file_watch._LOOK_SECONDS", 0.01)
    files, seen = FileWatch(), []
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"old")
        contents = files.yield_contents(tmp_path / name)
        seen.append(await anext(contents))
        (tmp_path / name).write_bytes(b"new")
        async with asyncio.timeout(30):
            seen.append(await anext(contents))
        await contents.aclose()  # type: ignore[attr-defined]
    assert seen == [b"old", b"new"] * 2
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "every two seconds" in told.message
    assert setting in told.fields["remedy"]  # type: ignore[attr-defined]


def test_whether_all_changes_are_heard_depends_on_the_file_system() -> None:
    assert reports_all_changes(Path("/dev/shm"))  # noqa: S108  # a tmpfs
    assert not reports_all_changes(Path("/proc"))
    assert not reports_all_changes(Path("/nowhere"))
