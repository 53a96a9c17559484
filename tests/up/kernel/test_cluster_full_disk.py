"""`vipwire up` on a full disk: it starts, what is there can be read, and it writes again when there is space."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.up.unit.cluster_process import ALONE, VIPWIRE
from tests.up.unit.up_here import up

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.slow]
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of four megabytes."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left."""
    file = disk / "fill"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(bytes(4096))
    return file


async def test_it_starts_and_reads_on_a_full_disk(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = small / "data"
    async with up(folder) as here:
        assert (await here.ask("POST", MAPS, {"metadata": {"name": "kept"}}))[0] == 201
    filling = fill(small)
    (folder / "view.kubeconfig").unlink()
    fill(small)
    async with up(folder) as here:
        assert (await here.ask("GET", f"{MAPS}/kept"))[0] == 200
        code, status = await here.ask("POST", MAPS, {"metadata": {"name": "new"}})
        assert code == 500
        assert "no space left" in status["message"] or "is full" in status["message"]
        assert "cannot write a kubeconfig; keeping the old one" in caplog.text
        filling.unlink()
        assert (await here.ask("POST", MAPS, {"metadata": {"name": "new"}}))[0] == 201
    async with up(folder) as here:
        assert (await here.ask("GET", f"{MAPS}/new"))[0] == 200
        assert (folder / "view.kubeconfig").exists()


def test_a_first_start_on_a_full_disk_says_so_in_a_line(small: Path) -> None:
    fill(small)
    command = [*VIPWIRE, "up", *ALONE, "--secure-port", "0", "--data-dir", str(small / "data")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, len(said.stderr.splitlines())) == (1, 1)
    assert "store.db" in said.stderr
