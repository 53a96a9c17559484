"""A neighbour's first right answer comes, and the log names the mistakes, at a start beside broken objects."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.timeout(1800)]
BROKEN = 20_000 if os.environ.get("VIPWIRE_TEST_REQUESTS") == "all" else 4_000


def test_a_neighbour_is_served_at_a_start_beside_broken_objects() -> None:
    command = (sys.executable, "-m", "bench", "hostile_starts", "--rounds=1", f"--broken={BROKEN}", "-o", "json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-3000:]
    figures = json.loads(done.stdout)["results"]["hostile_starts"]
    assert [each["name"].partition(":")[0] for each in figures[::2]] == ["gateway --ingress", "proxy", "up"]
