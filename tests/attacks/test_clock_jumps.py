"""The wall clock of a running `vipwire up` jumps by days and years (libfaketime); the monotonic clock goes on.

After each jump a new client asks by certificate and by token, with the kubeconfig as it is then; a client that began
before the first jump watches. Clients have the server's clock. A change of tokens.csv makes vipwire look at its
certificates at once, which it does every minute anyway.
"""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.attacks.clocks import CLIENT, faked, jump
from tests.up.unit.cluster_process import ALONE, PATIENCE, VIPWIRE

pytestmark = [pytest.mark.attack, pytest.mark.slow]
JUMPS = ("+1d", "-1d", "@1970-01-02 00:00:00", "+730d", "+0")
MAPS = "/api/v1/namespaces/default/configmaps"


def test_an_up_serves_after_each_jump_of_the_clock(tmp_path: Path) -> None:
    clock, data, log = tmp_path / "clock", tmp_path / "data", tmp_path / "log"
    jump(clock, "+0")
    environ = os.environ | faked(clock)
    config = data / "admin.kubeconfig"

    def client(token: str, method: str, path: str, body: str = "") -> list[str]:
        return [sys.executable, "-c", CLIENT, str(config), token, method, path, body]

    def asked(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(client(*words), env=environ, capture_output=True, text=True, timeout=60, check=False)

    def until(*words: str) -> str:
        end = time.monotonic() + PATIENCE
        while (done := asked(*words)).returncode:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, f"{done.stderr}\n{log.read_text()}"
        return done.stdout

    command = [*VIPWIRE, "up", "--data-dir", str(data), "--secure-port", "0", *ALONE]
    watches = [tmp_path / "maps", tmp_path / "nodes"]
    with log.open("w") as out, subprocess.Popen(command, env=environ, stdout=out, stderr=out) as process:
        followers: list[subprocess.Popen[bytes]] = []
        try:
            end = time.monotonic() + PATIENCE
            while "try:" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
            for path, file in zip((MAPS, "/api/v1/nodes"), watches, strict=True):
                with file.open("wb") as lines:
                    words = client("", "GET", f"{path}?watch=true&timeoutSeconds=600")
                    followers.append(subprocess.Popen(words, env=environ, stdout=lines))
            tokens = data / "tokens.csv"
            (token,) = (row[0] for row in csv.reader(tokens.read_text().splitlines()) if "admin" in row[2])
            for number, to in enumerate(JUMPS):
                jump(clock, to)
                body = json.dumps({"metadata": {"name": f"after-{number}"}})
                until("", "POST", MAPS, body)
                until(token, "GET", f"{MAPS}/after-{number}")
                end = time.monotonic() + PATIENCE
                while f"after-{number}" not in watches[0].read_text():
                    assert time.monotonic() < end, f"{to}: {watches[0].read_text()}"
            assert [each.poll() for each in followers] == [None, None]
        finally:
            for each in (*followers, process):
                each.terminate()
                each.wait(PATIENCE)
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()
    nodes = [json.loads(line)["object"] for line in watches[1].read_text().splitlines()]
    lost = [each for node in nodes for each in node["status"]["conditions"] if each["type"] == "Ready"]
    assert {each["status"] for each in lost} <= {"True"}
