"""Certificates end after a month: they are renewed in time, and a machine that slept too long joins again."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks.clocks import CLIENT, faked, jump
from tests.fakes.waiting import until
from tests.up.unit.cluster_process import PATIENCE, VIPWIRE, up

pytestmark = [pytest.mark.attack, pytest.mark.slow]


class Machine:
    """A machine that joins a cluster as Node m1, and its log."""

    def __init__(self, folder: Path) -> None:
        self.data, self._log = folder / "machine", folder / "log"

    def start(self, *words: str) -> None:
        command = [*VIPWIRE, "join", *words, "--no-proxy", "--data-dir", str(self.data), "--node-lease-seconds", "4"]
        with self._log.open("a") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)

    def end(self) -> None:
        self._process.terminate()
        assert self._process.wait(PATIENCE) == 0, self.said()

    def said(self) -> str:
        return self._log.read_text()

    def is_ready(self) -> bool:
        """Report whether the Node is Ready, asked with the machine's own credentials."""
        return read_readiness(self.data / "node.kubeconfig") is True


def read_readiness(kubeconfig: Path) -> bool | None:
    """Return whether the Node is Ready; None without an answer."""
    command = [sys.executable, "-c", CLIENT, str(kubeconfig), "", "GET", "/api/v1/nodes/m1", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        return None
    found = json.loads(done.stdout)["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def said(*words: str) -> str:
    return subprocess.run([*VIPWIRE, *words], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def serials(data: Path, state: str) -> set[str]:
    """List the certificates of the machine's Node in a state."""
    rows = [line.split(None, 4) for line in said("token", "certificates", "--data-dir", str(data)).splitlines()]
    return {row[0] for row in rows if row[3] == "system:node:m1" and row[4].strip() == state}


def test_a_machine_renews_in_time_and_joins_again_after_a_long_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, backup, clock, machine = tmp_path / "up", tmp_path / "backup", tmp_path / "clock", Machine(tmp_path)
    jump(clock, "+0")
    for name, value in faked(clock).items():
        monkeypatch.setenv(name, value)

    def joining() -> list[str]:
        found = re.search(r"vipwire join (.+)", said("token", "create", "--data-dir", str(data)))
        assert found
        return found[1].split()

    with up(data):
        machine.start(*joining(), "--node-name", "m1")
        until(machine.is_ready, machine.said)
        first = serials(data, "in force")
        shutil.copytree(data, backup)
        jump(clock, "+21d")  # two thirds of a month are over: both sides renew while they run
        until(lambda: len(serials(data, "in force")) == 2, machine.said)
        until(machine.is_ready, machine.said)
        assert first < serials(data, "in force")
        machine.end()
        jump(clock, "+61d")  # the machine was off
        machine.start()
        until(lambda: "expired, or the clock here is wrong" in machine.said(), machine.said)
        assert not machine.is_ready()
        machine.end()
        admin = data / "admin.kubeconfig"
        until(lambda: read_readiness(admin) is False, "the API server has seen that the machine was away")
        machine.start(*joining())
        until(machine.is_ready, machine.said)
        assert "the certificate of Node m1 has expired: joining again" in machine.said()
        assert len(serials(data, "in force")) == 1
        machine.end()
    jump(clock, "+800d")  # a backup from before all certificates ended
    with up(backup):
        assert serials(backup, "in force") == set()
    assert "Traceback" not in machine.said()
