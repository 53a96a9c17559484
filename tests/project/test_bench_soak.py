"""The soak's judgement, and its faults inside of a process: they strike where they are told to, and nothing else."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.soak.churn import SERVICES, Api, Ledger, RefusedError
from bench.soak.probing import Failure, Window, unexplained
from bench.soak.shim import Faults, compiled

_ASK = """
import errno, json, os, socket, struct, time
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
request = struct.pack("=IHHII", 20, 18, 0x305, 1, 0) + bytes(4)  # RTM_GETLINK, a dump
said = {"ahead": round(time.time() - time.clock_gettime(time.CLOCK_TAI) + 37), "errors": []}
for _ in range(50):
    try:
        netlink.send(request)
        while b"\\3\\0" != netlink.recv(1 << 16)[4:6]:
            pass
    except OSError as error:
        said["errors"].append(error.errno)
ours, theirs = socket.socketpair()
for _ in range(50):
    theirs.send(b"x")
    assert ours.recv(1) == b"x"
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    if shutil.which("cc") is None:
        pytest.skip("compiles C, and there is no compiler")
    return compiled(tmp_path_factory.mktemp("shim"))


def asked(faults: Faults) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env=faults.environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_without_faults_all_is_as_it_was(tmp_path: Path, library: Path | None) -> None:
    with Faults(tmp_path, "a", library, 1) as faults:
        assert asked(faults)["errors"] == []
        assert faults.struck == (0, 0, 0)


def test_netlink_overflows_and_is_interrupted_and_other_sockets_are_not(tmp_path: Path, library: Path | None) -> None:
    with Faults(tmp_path, "a", library, 1) as faults:
        faults.netlink(overflow=200, interrupt=200, unsent=200)
        errors = asked(faults)["errors"]
        assert set(errors) == {errno.ENOBUFS}, "Python goes on after EINTR by itself"
        assert faults.struck.overflowed + faults.struck.not_sent == len(errors)
        assert min(faults.struck) > 0


def test_the_clock_is_ahead(tmp_path: Path, library: Path | None) -> None:
    with Faults(tmp_path, "a", library, 1) as faults:
        before = asked(faults)["ahead"]
        faults.clock(-3600)
        assert asked(faults)["ahead"] == pytest.approx(before - 3600, abs=5)


def test_a_failure_is_explained_by_a_window_that_it_touches() -> None:
    windows = [Window("flush", 10.0, 12.0)]
    failures = [Failure(begin, begin + 1, "timed out") for begin in (8.9, 9.1, 11.9, 12.1)]
    assert [each.begin for each in unexplained(failures, windows)] == [8.9, 12.1]


class HalfServer(Api):
    """Answers from memory; it loses what it is told to lose, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refuses = False

    async def send(self, method: str, path: str, body: Any = None, **_: str) -> Any:
        if self.refuses:
            raise RefusedError("500")
        if method == "GET":
            return {"items": [each for key, each in self.objects.items() if key.startswith(path)]}
        name = body["metadata"]["name"] if body else path.rpartition("/")[2]
        key = path if path.endswith(f"/{name}") else f"{path}/{name}"
        if body:
            self.objects[key] = body
        else:
            del self.objects[key]
        return body


async def test_the_ledger_tells_what_was_acknowledged_and_is_not_there() -> None:
    def labelled(name: str, step: int) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {"soak/step": str(step)}}}

    server, ledger = HalfServer(), Ledger()
    for name in "abcd":
        assert await ledger.write(server, "POST", SERVICES, labelled(name, 1), 1)
    assert await ledger.write(server, "PATCH", f"{SERVICES}/b", labelled("b", 2), 2)
    assert await ledger.write(server, "DELETE", f"{SERVICES}/c", None, None)
    assert await ledger.lost(server) == []
    server.refuses = True
    assert not await ledger.write(server, "PATCH", f"{SERVICES}/d", labelled("d", 2), 2)
    server.refuses = False
    del server.objects[f"{SERVICES}/a"], server.objects[f"{SERVICES}/d"]
    server.objects[f"{SERVICES}/b"] = labelled("b", 1)
    assert await ledger.lost(server) == [f"{SERVICES}/a: None, not 1", f"{SERVICES}/b: 1, not 2"]
    assert (ledger.acknowledged, dict(ledger.troubles)) == (6, {"500": 1})
