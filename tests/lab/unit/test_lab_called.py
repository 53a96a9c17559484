"""What the lab tells people to type works as they called the program, in PATH or not."""

import os
import sys
from pathlib import Path

import pytest

from vipwire.config.flags import ENVIRONMENT, parse_environment_flags
from vipwire_lab.cluster import state
from vipwire_lab.cluster.state import extend_search_path, spell_command

TOLD = "Try: vipwire lab exec node-1 -- vipwire status"


def test_a_program_that_is_in_path_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vipwire").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert spell_command(TOLD) == TOLD


@pytest.mark.parametrize(
    ("argument", "written"),
    [(".venv/bin/vipwire", ".venv/bin/vipwire"), ("/x/vipwire/__main__.py", f"{sys.executable} -m vipwire")],
)
def test_one_that_is_not_is_written_as_it_was_called(
    argument: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [argument])
    assert spell_command(TOLD) == f"Try: {written} lab exec node-1 -- vipwire status"


def test_what_runs_in_a_lab_keeps_its_state_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.FLAGS == ENVIRONMENT
    monkeypatch.setenv(state.FLAGS, "--v=2")
    with state.own_state("demo"):
        given = parse_environment_flags()
    assert given["state-dir"] == "/run/vipwire-lab/demo/state"
    assert parse_environment_flags() == {"v": 2}
    monkeypatch.delenv(state.FLAGS)
    with state.own_state("demo"):
        assert parse_environment_flags() == {"state-dir": "/run/vipwire-lab/demo/state"}
    assert parse_environment_flags() == {}
    assert state.flags_for_lab("demo", "--state-dir=/elsewhere") == "--state-dir=/elsewhere"


def test_commands_in_the_lab_find_this_program_and_those_of_root() -> None:
    found = extend_search_path("/opt/bin").split(os.pathsep)
    assert found[:2] == ["/opt/bin", str(Path(sys.executable).parent)]
    assert "/usr/sbin" in found
    assert extend_search_path(extend_search_path("/opt/bin")) == extend_search_path("/opt/bin")
