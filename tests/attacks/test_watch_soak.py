"""A thousand watches, kubectl and the official Python client beside strangers that attack: nothing is lost."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_thousand_watches_hear_all_while_strangers_attack() -> None:
    command = (sys.executable, "-m", "bench.watches", "--minutes", "1")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
