"""`vipwire lab demo` on the real kernel: it holds what it says, notices what does not hold, and leaves nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vipwire_lab.demo import objects, scenes
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.stage import Stage
from vipwire_lab.namespaces.errors import LabError

pytestmark = pytest.mark.kernel

DEMO = [sys.executable, "-m", "vipwire", "lab", "demo"]


def left_by(pid: int) -> list[Path]:
    lab = f"demo-{pid}"
    return [*Path("/run/netns").glob(f"vipwire-{lab}-*"), *Path("/run/vipwire-lab").glob(lab)]


def processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if word.encode() in command and b"lab\0demo" not in command:
            found.append(command.decode())
    return found


def started() -> subprocess.Popen[str]:
    # Who runs these tests in the background of a shell has them, and all that they start, ignore SIGINT.
    return subprocess.Popen(
        ["env", "--default-signal=INT", *DEMO],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.build_stage()
    with stage:
        yield stage


def test_everything_is_as_the_demo_says_and_nothing_is_left() -> None:
    demo = started()
    output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 0, output
    assert "FAILED" not in output
    assert "The end" in output
    assert "kubectl get endpointslices" in output
    assert "vipwire up stops" in output
    assert "; then node-1 answers" in output
    assert "0 objects written" in output
    assert "\x1b" not in output  # plain where there is no terminal
    assert not left_by(demo.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_cleans_up_when_it_is_interrupted(number: signal.Signals) -> None:
    demo = started()
    assert demo.stdout
    folder = ""
    for line in demo.stdout:
        if "--manifests=" in line:
            folder = line.partition("--manifests=")[2].split()[0]
        if "2  A Pod asks" in line:
            break
    assert Path(folder).exists()
    assert processes_with(folder)
    os.kill(demo.pid, number)
    demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGINT  # what a shell says of a command that was interrupted
    assert not left_by(demo.pid)
    assert not Path(folder).exists()
    assert not processes_with(folder)


def test_it_says_so_when_something_is_not_as_said(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator()
    scenes.show_opening(stage, narrator)
    assert not narrator.failures
    stage.change_and_wait("web", objects.web(objects.PODS[1:]))
    scenes.show_from_pod(stage, narrator)
    assert any("answered, by all 5 Pods" in failure for failure in narrator.failures)
    assert scenes.print_verdict(narrator) == 1
    assert "checks FAILED" in capsys.readouterr().out


def test_a_proxy_that_ends_is_an_error_that_shows_what_it_said(stage: Stage) -> None:
    stage.write_manifests("nodes", objects.nodes())
    stage.start_proxy()
    assert stage.proxy
    assert stage.proxy.stop_proxy() == 0
    with pytest.raises(LabError, match=r"(?s)vipwire proxy ended; it said:.*the rules stay"):
        stage.change_and_wait("web", objects.web())
