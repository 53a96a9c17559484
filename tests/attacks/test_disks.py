"""Disks and files that take no more bytes: each command names the file, and goes on once it can write."""

import asyncio
import contextlib
import http.client
import json
import resource
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
from tests.up.unit.cluster_process import ALONE, CLIENTS, PATIENCE, VIPWIRE, Kubectl, up

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.slow]


SPOILED = ("full", "read-only", "immutable")


class Disk:
    """A disk of four megabytes, mounted at `path`, that becomes full, read-only or immutable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def spoil(self, how: str) -> None:
        if how == "read-only":
            self._mount("remount,ro")
        elif how == "immutable":
            self._mark("+i")
        else:
            with contextlib.suppress(OSError), (self.path / "fill").open("wb", buffering=0) as opened:
                while True:
                    opened.write(bytes(4096))

    def mend(self) -> None:
        self._mark("-i")
        self._mount("remount,rw")
        (self.path / "fill").unlink(missing_ok=True)

    def _mark(self, flag: str) -> None:
        subprocess.run(["chattr", "-fR", flag, str(self.path)], check=False)  # sockets have no flags

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


def ended(*words: str, program: tuple[str, ...] = VIPWIRE) -> str:
    """Run a command that must end with one line; return it."""
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
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


@pytest.mark.parametrize("how", SPOILED)
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


def test_up_on_immutable_files_ends_with_a_line_and_has_all_objects_later(disk: Disk) -> None:
    data = disk.path / "data"
    with up(data):
        kubectl(data, "create", "configmap", "kept")
    disk.spoil("immutable")
    assert f"{data}/store." in ended("up", *ALONE, "--secure-port", "0", "--data-dir", str(data))
    disk.mend()
    with up(data):
        kubectl(data, "get", "configmap", "kept")


def test_up_under_a_limit_of_file_sizes_refuses_writes_until_the_limit_is_raised(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as process:
        kubectl(data, "create", "configmap", "kept")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        with pytest.raises(
            AssertionError, match=f"{data}/store.db: the disk fails or is full: the store did not make the change"
        ):
            kubectl(data, "create", "configmap", "refused")
        assert "configmap/kept" in kubectl(data, "get", "configmaps", "--output", "name")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        kubectl(data, "create", "configmap", "new")
    limited = ("prlimit", "--fsize=1000", *VIPWIRE)
    first = ("up", *ALONE, "--secure-port", "0", "--data-dir", str(tmp_path / "other"))
    assert f"{tmp_path}/other/store.db" in ended(*first, program=limited)


def kubectl(data: Path, *words: str) -> str:
    return Kubectl(CLIENTS[0], data / "admin.kubeconfig", data)(*words)


def answer(port: int, host: str) -> int:
    """Return the status of HAProxy's answer; 0 if there is none."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        try:
            client.request("GET", "/", headers={"Host": host})
            return client.getresponse().status
        except OSError:
            return 0


@pytest.mark.parametrize("how", SPOILED)
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


@pytest.mark.parametrize("how", SPOILED)
async def test_a_proxy_serves_changes_and_writes_its_record_again_afterwards(how: str, disk: Disk) -> None:
    state = disk.path / "state"

    def record() -> dict[str, object]:
        (file,) = state.glob("proxy*.json")
        return json.loads(file.read_text())  # type: ignore[no-any-return]

    with stage():
        server = FakeApiServer()
        async with scene(server, f"--state-dir={state}") as here:
            for number, spoiled in enumerate((False, True, False), 1):
                if spoiled:
                    disk.spoil(how)
                server.store.put("services", service_of(f"s{number}", f"10.96.0.{number}"))
                server.store.put("endpointslices", slice_for(f"s{number}", "10.244.0.1"))
                await leads_to(f"10.96.0.{number}", "10.244.0.1")
                if spoiled:
                    await here.daemon.heard("cannot write the record of this proxy for `vipwire status`")
                    disk.mend()
                    at = time.time()
            async with asyncio.timeout(PATIENCE):
                while float(str(record()["seen"])) < at:
                    await leads_to("10.96.0.3", "10.244.0.1")
            assert "Traceback" not in here.daemon.log()
