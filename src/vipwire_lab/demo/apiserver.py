"""`vipwire up` on node-1, and the clients that talk to it there: kubectl and dig, as they are on this machine.

It runs in node-1's network namespace, so that its API server, its DNS and its rules are nowhere else.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from vipwire_lab.demo.process import Listened
from vipwire_lab.lab.cluster import Lab
from vipwire_lab.lab.manifests import Manifest
from vipwire_lab.net.errors import LabError

_PATIENCE = 60.0
"""Seconds until a start, or what kubectl is asked to wait for, is an error."""


def program(name: str) -> str | None:
    """Find a program that may not be installed."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/local/bin:/usr/bin:/bin")


class Standalone:
    """A running `vipwire up`, its data in a folder."""

    def __init__(self, lab: Lab, node: str, folder: Path, kubectl: str) -> None:
        self._lab, self._node, self.folder, self._kubectl = lab, node, folder, kubectl
        self.process: Listened | None = None

    def start(self, *flags: str) -> list[str]:
        """Start it; return what it says of itself."""
        command = [sys.executable, "-m", "vipwire", "up", "--data-dir", str(self.folder), *flags]
        # A session of its own: Ctrl-C is for the demo, which then ends it.
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        options |= {"stderr": subprocess.STDOUT, "start_new_session": True}
        self.process = Listened("vipwire up", self._lab.popen(self._node, command, **options))
        lines = self.process.until(lambda said: any(line.startswith("try:") for line in said), _PATIENCE)
        return [line for line in lines if not line.startswith(("ts=", "try:"))]

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl on the node; return what it prints. Raise LabError with what it says if it fails."""
        done = self._run([self._kubectl, *arguments])
        if done.returncode:
            raise LabError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def make_token(self) -> str:
        """Make a token; return the command with which a machine joins."""
        command = [sys.executable, "-m", "vipwire", "token", "create", "--data-dir", str(self.folder)]
        return self._lab.run(self._node, command, timeout=_PATIENCE).stdout.strip()

    def apply(self, objects: list[Manifest]) -> str:
        """Apply objects."""
        path = self.folder / "applied.yaml"
        path.write_text(yaml.safe_dump_all(objects, sort_keys=False))
        return self.kubectl("apply", "-f", str(path))

    def until(self, holds: Callable[[str], bool], *arguments: str) -> tuple[float, str]:
        """Run kubectl until its answer is as wanted; return after how many seconds, and the answer."""
        began = time.monotonic()
        while time.monotonic() - began < _PATIENCE:
            if holds(answer := self.kubectl(*arguments)):
                return time.monotonic() - began, answer
        raise LabError(f"kubectl {' '.join(arguments)} still says: {answer}")

    def _run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        environment: Mapping[str, str] = os.environ | {
            "KUBECONFIG": str(self.folder / "admin.kubeconfig"),
            "HOME": str(self.folder),  # where it keeps its cache
        }
        return self._lab.run(self._node, command, timeout=_PATIENCE, check=False, env=environment)
