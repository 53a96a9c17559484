"""What a shell is told about an unfinished command line: by the program, and by the shells themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from vipwire.cli.main import main
from vipwire.config.flags import FLAGS
from vipwire.config.modes import list_mode_names
from vipwire.config.schema import Group

pytestmark = pytest.mark.slow

PROGRAM = Path(sys.executable).parent / "vipwire"


def completed(line: str) -> list[str]:
    """Ask as bash does, with its way to part words at equals signs; the last word is the unfinished one."""
    words = line.replace("=", " = ").split(" ") if not line.endswith(" ") else [*line.split(), ""]
    words = [word for word in words if word or word is words[-1]]
    environ = {
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_VIPWIRE_COMPLETE": "bash_complete",
    }
    done = subprocess.run([PROGRAM], env=os.environ | environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [row.partition(",")[2] for row in done.stdout.splitlines()]


def script(shell: str) -> str:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    return result.output


def test_commands_are_completed() -> None:
    assert completed("vipwire pro") == ["proxy"]
    assert {"proxy", "cleanup", "status", "explain", "lab", "completion"} <= set(completed("vipwire "))
    assert "demo" in completed("vipwire lab ")


def test_every_flag_of_the_proxy_is_completed_but_those_of_old_versions() -> None:
    wanted = {
        f"-{flag.short}" if flag.short == flag.name else f"--{flag.name}"
        for flag in FLAGS.values()
        if flag.group is not Group.OLD
    }
    assert {word for word in completed("vipwire proxy -") if word != "-h"} == wanted


@pytest.mark.parametrize("line", ["vipwire proxy --proxy-mode ", "vipwire proxy --cleanup --proxy-mode="])
def test_values_are_completed(line: str) -> None:
    assert completed(line) == list(list_mode_names())


def test_a_value_behind_an_equals_sign_is_completed() -> None:
    assert completed("vipwire cleanup --proxy-mode=ip") == ["iptables", "ipvs"]


def test_a_command_that_looks_takes_the_proxys_flags_and_its_own() -> None:
    assert completed("vipwire status --mani") == ["--manifests"]
    assert {"--output", "--watch"} <= set(completed("vipwire status --"))
    assert "json" in completed("vipwire status --proxy-mode ipvs -o ")


def test_an_unknown_shell_is_refused_with_those_that_are_known() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert all(shell in result.output for shell in ("bash", "zsh", "fish"))


def test_bash_completes_with_the_script() -> None:
    asked = f"{script('bash')}\nCOMP_WORDS=(vipwire pro); COMP_CWORD=1; _vipwire_completion vipwire; echo $COMPREPLY"
    assert _run_in("bash", "--norc", "-c", asked) == "proxy\n"


@pytest.mark.skipif(shutil.which("fish") is None, reason="runs fish, which is not installed")
def test_fish_completes_with_the_script() -> None:
    asked = f"{script('fish')}\ncomplete --do-complete='vipwire proxy --logging-format '"
    assert _run_in("fish", "--no-config", "-c", asked) == "json\ntext\n"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="runs zsh, which is not installed")
def test_zsh_reads_the_script() -> None:
    assert _run_in("zsh", "-f", "-n", "-c", script("zsh")) == ""


def _run_in(shell: str, *arguments: str) -> str:
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    command = [shell, *arguments]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
