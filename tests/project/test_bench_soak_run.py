"""A soak of a quarter of a minute: every part of it works, and nothing that goes wrong does harm."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def test_a_short_soak_ends_well(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("compiles C, and there is no compiler")
    command = (sys.executable, "-m", "bench.soak", "--minutes=0.25", "--seed=5", f"--keep={tmp_path}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  yes  ") == 8


def test_nobody_is_left_behind() -> None:
    """Whoever is left would hold the pipe, and its end would not come."""
    command = "('sh', '-c', 'setsid sleep 600 & echo begun')"
    program = f"from bench.soak.__main__ import apart; apart({command}, 'userspace')"
    done = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, check=True, timeout=120)
    assert done.stdout == b"begun\n"
