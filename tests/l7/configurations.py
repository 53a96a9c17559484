"""Asks HAProxy about a configuration."""

import subprocess
from pathlib import Path


def check_configuration(folder: Path) -> None:
    """HAProxy must accept the configuration in a folder, without a warning."""
    command = ("haproxy", "-c", "-f", str(folder / "haproxy.cfg"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[WARNING]" not in done.stderr, done.stderr
