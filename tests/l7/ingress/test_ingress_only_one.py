"""A second `vipwire ingress` at the same addresses or folder: refused, or it takes over with HAProxy."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.l7.ingress.site import ingress, rule
from tests.l7.ingress.test_ingress_daemon import Daemon, daemon, objects, pod, write

pytestmark = pytest.mark.attack

VIPWIRE = (sys.executable, "-m", "vipwire")


def beside(first: Daemon, folder: Path) -> Daemon:
    """Make another one at the first one's address, with a log of its own."""
    folder.mkdir(exist_ok=True)
    made = Daemon(folder)
    made.http, made.log = first.http, folder / "second.log"
    return made


async def ended(made: Daemon) -> int:
    assert made.process is not None
    return await made.process.wait()


async def test_a_second_ingress_names_the_first_and_touches_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(150), daemon(tmp_path) as first, pod() as port:
        manifests = tmp_path / "manifests"
        manifests.mkdir()
        write(manifests, *objects(port), ingress("web", rule("a.example.com", "/")))
        await first.start("--manifests", str(manifests))
        await first.until_code("a.example.com", 200)
        assert first.process is not None
        masters = first.masters
        for folder in (tmp_path, tmp_path / "b"):  # the same folder; another one, at the same address
            second = beside(first, folder)
            await second.start("--manifests", str(manifests))
            assert await ended(second) == 1
            said = second.log.read_text()
            assert f"vipwire ingress (process {first.process.pid}" in said
            assert f"run directory {tmp_path}/run, listening at 127.0.0.1:{first.http}" in said
            second.log.unlink()
        other = beside(first, tmp_path / "b")
        await other.start("--manifests", str(manifests), "--takeover")
        assert await ended(other) == 1
        assert f"start with --run-dir {tmp_path}/run" in other.log.read_text()
        assert first.masters == masters
        assert (await first.ask("a.example.com"))[0] == 200


@pytest.mark.parametrize("command", ["ingress", "gateway"])
@pytest.mark.parametrize("linked", [False, True], ids=["", "by a link of theirs"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, command: str, *, linked: bool) -> None:
    """HAProxy's configuration and its control socket are in it, and its owner may replace both."""
    folder, mine, manifests = tmp_path / "run", tmp_path / "mine", tmp_path / "manifests"
    mine.mkdir()
    manifests.mkdir()
    if linked:
        folder.symlink_to(mine)
    else:
        folder.mkdir()
    os.chown(folder, 65534, 65534, follow_symlinks=False)
    words = [*VIPWIRE, command, "--run-dir", str(folder), "--manifests", str(manifests)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"--run-dir {folder}: user 65534 owns this folder and can replace its files" in done.stderr
    assert list(folder.iterdir()) == []


def test_a_rendered_configuration_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("kept")
    (folder / "haproxy.cfg").symlink_to(elsewhere)
    (tmp_path / "manifests").mkdir()
    words = [*VIPWIRE, "ingress", "render", "--output-dir", str(folder), "--manifests", str(tmp_path / "manifests")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert elsewhere.read_text() == "kept"
    assert (folder / "haproxy.cfg").stat().st_mode & 0o777 == 0o600


async def test_a_takeover_keeps_haproxy_and_loses_no_request(tmp_path: Path) -> None:
    async with asyncio.timeout(150), daemon(tmp_path) as first, pod() as port:
        manifests = tmp_path / "manifests"
        manifests.mkdir()
        write(manifests, *objects(port), ingress("web", rule("a.example.com", "/")))
        await first.start("--manifests", str(manifests))
        await first.until_code("a.example.com", 200)
        (master,) = first.masters
        codes: list[int] = []
        over = asyncio.Event()

        async def visit() -> None:
            while not over.is_set():
                codes.append((await first.ask("a.example.com"))[0])

        second = beside(first, tmp_path)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(visit())
            write(manifests, *objects(port), ingress("web", rule("a.example.com", "/"), rule("b.example.com", "/")))
            await second.start("--manifests", str(manifests), "--takeover")
            assert await ended(first) == 0
            write(manifests, *objects(port), ingress("web", rule("a.example.com", "/"), rule("c.example.com", "/")))
            await second.until_code("c.example.com", 200)
            over.set()
        assert set(codes) == {200}
        assert second.masters == {master}
        assert "takes over" in first.log.read_text()
        first.process = second.process  # which the end of the test ends
