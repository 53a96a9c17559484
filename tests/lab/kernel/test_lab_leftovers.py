"""Labs of which something or nothing is left: what counts as up, what is swept, and what is left alone."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from vipwire_lab.cli import lab as command
from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab, take_down_stale
from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId
from vipwire_lab.namespaces.topology import DEFAULT, make_topology

pytestmark = pytest.mark.kernel
SMALL = make_topology(pods=(0,))


def unused() -> str:
    return f"left{os.getpid()}-{secrets.token_hex(2)}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep labs where no other command looks for them."""
    monkeypatch.setattr(state, "DIRECTORY", tmp_path)
    return tmp_path


@pytest.fixture
def namespace() -> Iterator[str]:
    """Name the lab that a namespace without a directory belongs to."""
    name = unused()
    netns.create_namespace(f"vipwire-{name}-node-1")
    yield name
    netns.delete_namespace(f"vipwire-{name}-node-1")


def dead_process() -> ProcessId:
    with subprocess.Popen(["/bin/true"]) as process:
        found = ProcessId.of(process.pid)
    assert found
    return found


def aged(directory: Path) -> Path:
    """Make a directory as old as one that nobody is making any more."""
    long_ago = time.time() - 3600
    os.utime(directory, (long_ago, long_ago))
    return directory


def test_a_lab_of_which_nothing_runs_is_not_up_and_its_directory_is_swept(folder: Path) -> None:
    directory = state.create_state(name := unused(), DEFAULT)
    dead_process().write(directory / "echo.pid")
    aged(directory)
    with pytest.raises(LabError, match=f"^no lab named {name} is up: "):
        Lab.attach(name)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_a_lab_that_may_just_be_made_is_left_alone() -> None:
    directory = state.create_state(unused(), DEFAULT)
    state.remove_leftovers(directory)
    assert state.list_labs() == (directory.name,)


@pytest.mark.usefixtures("folder")
def test_a_lab_with_a_process_or_a_namespace_is_up(namespace: str) -> None:
    running = aged(state.create_state(unused(), DEFAULT))
    own = ProcessId.of(os.getpid())
    assert own
    own.write(running / "echo.pid")
    aged(running)
    aged(state.create_state(namespace, DEFAULT))
    assert state.list_labs() == tuple(sorted([running.name, namespace]))


def test_a_dead_lab_is_no_obstacle_to_one_of_its_name(folder: Path) -> None:
    directory = aged(state.create_state(unused(), DEFAULT))
    state.create_state(directory.name, SMALL)
    assert json.loads((directory / "lab.json").read_text())["pods"] == []
    assert list(folder.iterdir()) == [directory]


def test_an_error_names_a_few_of_the_labs_that_are_up(folder: Path) -> None:
    for number in range(7):
        state.create_state(f"demo-{number}", DEFAULT)
    for _ in range(20):
        aged(state.create_state(unused(), DEFAULT))
    with pytest.raises(LabError) as caught:
        Lab.attach("other")
    said = str(caught.value)
    assert said.startswith("no lab named other is up (up: demo-0, demo-1, demo-2, demo-3, demo-4 and 2 others): ")
    assert len(list(folder.iterdir())) == 7


def test_drafts_of_killed_commands_are_swept_when_they_are_old(folder: Path) -> None:
    (folder / ".new-young").mkdir()
    for name in (".new-old", ".old-old"):
        (folder / name).mkdir()
        (folder / name / "lab.json").touch()
        aged(folder / name)
    state.remove_drafts()
    assert [path.name for path in folder.iterdir()] == [".new-young"]


def test_a_lab_ends_with_its_owner_when_stale_ones_are_taken_down(folder: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from vipwire_lab.cluster import state;"
        "from vipwire_lab.cluster.cluster import Lab;"
        "from vipwire_lab.namespaces.topology import make_topology; state.DIRECTORY = Path(sys.argv[1]);"
        "Lab(make_topology(pods=(0,)), sys.argv[2]).up(); os._exit(9)"  # as if it was killed
    )
    name = unused()
    with Lab(SMALL, unused()) as alive:
        killed = subprocess.run([sys.executable, "-c", program, str(folder), name], check=False)
        assert killed.returncode == 9
        assert state.list_labs() == tuple(sorted([name, alive.name]))
        assert name in take_down_stale()
        assert state.list_labs() == (alive.name,)
        assert alive.namespace_of("client").exists()
    assert not list(netns.DIRECTORY.glob(f"vipwire-{name}-*"))


def test_namespaces_without_a_directory_are_removed_by_name(folder: Path, namespace: str) -> None:
    aged(state.create_state(other := f"{namespace}-b", DEFAULT))  # whose namespaces begin with the same words
    netns.create_namespace(f"vipwire-{other}-1")
    try:
        result = CliRunner().invoke(command, ["down", "--name", namespace])
        assert result.output == f"The lab {namespace} is down.\n"
        assert [path.name for path in netns.DIRECTORY.glob(f"vipwire-{namespace}-*")] == [f"vipwire-{other}-1"]
        assert [path.name for path in folder.iterdir()] == [other]
    finally:
        netns.delete_namespace(f"vipwire-{other}-1")


@pytest.mark.usefixtures("folder")
def test_namespaces_of_a_dead_process_are_stale_and_those_of_a_running_one_are_not() -> None:
    dead, alive = (f"t{pid}-{secrets.token_hex(2)}" for pid in (dead_process().pid, os.getpid()))
    for name in (dead, alive):
        netns.create_namespace(f"vipwire-{name}-client")
    try:
        said = CliRunner().invoke(command, ["down", "--stale"]).output
        assert dead in said
        assert alive not in said
        assert not netns.namespace_path(f"vipwire-{dead}-client").exists()
        assert netns.namespace_path(f"vipwire-{alive}-client").exists()
    finally:
        for name in (dead, alive):
            netns.delete_namespace(f"vipwire-{name}-client")
