"""The fake start of a process is one: its words, its streams, its status and its namespace."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import forked
from tests.fakes.forked import Forked
from tests.fakes.own_network import own_network

from vipwire import __version__
from vipwire_lab.lab.cluster import Lab
from vipwire_lab.net.topology import make_topology

pytestmark = pytest.mark.kernel
PATIENCE = 60.0


@pytest.fixture
def namespace() -> Iterator[Path]:
    with own_network() as descriptor:
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def test_it_says_and_ends_as_the_command_does() -> None:
    with Lab(make_topology((1,))) as lab:
        for words in (["version"], ["nonsense"], ["drain", "--list"]):
            done = forked.run(lab, "node-1", words, PATIENCE)
            command = [sys.executable, "-m", "vipwire", *words]
            real = lab.run("node-1", command, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (real.returncode, real.stdout, real.stderr)
        assert forked.run(lab, "node-1", ["version"], PATIENCE).stdout == f"vipwire {__version__}\n"


def test_it_is_in_the_namespace_and_can_be_ended(namespace: Path, tmp_path: Path) -> None:
    flags = ["--hostname-override=node", "--oom-score-adj=0", f"--manifests={tmp_path}", f"--state-dir={tmp_path}"]
    process = Forked(namespace, ["proxy", *flags], tmp_path / "log")
    again = threading.Event()
    while "msg=synced" not in _text(tmp_path / "log"):
        assert process.poll() is None, _text(tmp_path / "log")
        again.wait(0.02)
    assert os.stat(f"/proc/{process.pid}/ns/net").st_ino == namespace.stat().st_ino  # noqa: PTH116 - as the other one
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    process.kill()
    assert process.poll() == 0


def test_a_signal_is_told_as_the_status(namespace: Path, tmp_path: Path) -> None:
    process = Forked(namespace, ["lab", "--help"], tmp_path / "log")
    assert process.wait(PATIENCE) == 0
    process = Forked(namespace, ["proxy", f"--manifests={tmp_path}", "--oom-score-adj=0"], tmp_path / "log")
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
