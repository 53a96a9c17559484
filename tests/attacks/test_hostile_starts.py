"""A neighbour's first right answer comes, and the log names the mistakes, at a start with 20,000 broken objects."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_neighbour_is_served_at_a_start_beside_20000_broken_objects() -> None:
    command = (sys.executable, "-m", "bench", "hostile_starts", "--rounds", "1", "-o", "json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-3000:]
    figures = json.loads(done.stdout)["results"]["hostile_starts"]
    assert [each["name"].partition(":")[0] for each in figures[::2]] == ["gateway --ingress", "proxy", "up"]
