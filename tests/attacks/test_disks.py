"""Full and read-only disks under join, proxy and ingress: what cannot be written is told, and all goes on later."""

import asyncio
import contextlib
import http.client
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import leads_to, scene, service_of, slice_for, stage
from tests.fakes.own_network import own_network
from tests.fakes.ports import free_port
from tests.l7.ingress.site import ingress, rule, service
from tests.up.unit.cluster_process import PATIENCE, VIPWIRE, up

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.slow]


class Disk:
    """A disk of four megabytes, mounted at `path`, that becomes full or read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def spoil(self, how: str) -> None:
        if how == "read-only":
            self._mount("remount,ro")
        else:
            with contextlib.suppress(OSError), (self.path / "fill").open("wb", buffering=0) as opened:
                while True:
                    opened.write(bytes(4096))

    def mend(self) -> None:
        self._mount("remount,rw")
        (self.path / "fill").unlink(missing_ok=True)

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-o", options, str(self.path)], check=True)


@pytest.fixture
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory() as path:  # a short name: HAProxy's sockets are below it
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=True)
        try:
            yield Disk(Path(path))
        finally:
            subprocess.run(["umount", "--lazy", path], check=True)


def until(holds: Callable[[], object], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def ended(*words: str) -> str:
    """Run a command that must end with one line; return it."""
    done = subprocess.run([*VIPWIRE, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
    return said


@contextlib.contextmanager
def running(log: Path, *words: str) -> Iterator[None]:
    """Run a command beside the block, which must not end before it."""
    with log.open("w") as out, subprocess.Popen([*VIPWIRE, *words], stdout=out, stderr=out) as process:
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_first_join_names_the_file_and_succeeds_later(how: str, disk: Disk, tmp_path: Path) -> None:
    data, log = tmp_path / "up", tmp_path / "log"
    with own_network(), up(data):
        command = [*VIPWIRE, "token", "create", "--data-dir", str(data)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        words = told[told.index("join ") :].split()
        joining = (*words, "--no-proxy", "--node-name", "m1", "--data-dir", str(disk.path / "machine"))
        disk.spoil(how)
        assert f"{disk.path}/machine" in ended(*joining)
        disk.mend()
        with running(log, *joining):
            until(lambda: "joined as Node m1" in log.read_text(), log)


def answer(port: int, host: str) -> int:
    """Return the status of HAProxy's answer; 0 if there is none."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        try:
            client.request("GET", "/", headers={"Host": host})
            return client.getresponse().status
        except OSError:
            return 0


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_first_ingress_names_the_file_and_starts_once_there_is_space(how: str, disk: Disk, tmp_path: Path) -> None:
    objects, log, port, folder = tmp_path / "objects", tmp_path / "log", free_port(), disk.path / "ingress"
    objects.mkdir()
    where = ("--run-dir", str(folder), "--http", f"127.0.0.1:{port}", "--https", "", "--grace", "1")
    command = ("ingress", "--manifests", str(objects), *where)
    disk.spoil(how)
    assert str(folder) in ended(*command)
    disk.mend()
    with running(log, *command):
        until(lambda: answer(port, "a.org") == 404, log)
        made = (service("web"), ingress("a", rule("a.org", "/"), annotations={"vipwire.io/affinity": "cookie"}))
        (objects / "a.yaml").write_text("\n---\n".join(map(json.dumps, made)))
        until(lambda: answer(port, "a.org") == 503, log)  # its Service has no endpoints


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_proxy_serves_changes_and_writes_its_record_again_afterwards(how: str, disk: Disk) -> None:
    state = disk.path / "state"

    def record() -> dict[str, object]:
        (file,) = state.glob("proxy*.json")
        return json.loads(file.read_text())  # type: ignore[no-any-return]

    async def story() -> None:
        server = FakeApiServer()
        async with scene(server, f"--state-dir={state}") as here:
            for number, spoiled in enumerate((False, True, False), 1):
                if spoiled:
                    disk.spoil(how)
                server.store.put("services", service_of(f"s{number}", f"10.96.0.{number}"))
                server.store.put("endpointslices", slice_for(f"s{number}", "10.244.0.1"))
                await leads_to(f"10.96.0.{number}", "10.244.0.1")
                if spoiled:
                    await here.daemon.heard("cannot write the record of this proxy, by which status finds it")
                    disk.mend()
                    at = time.time()
            async with asyncio.timeout(PATIENCE):
                while float(str(record()["seen"])) < at:
                    await leads_to("10.96.0.3", "10.244.0.1")
            assert "Traceback" not in here.daemon.log()

    with stage():
        asyncio.run(story())
