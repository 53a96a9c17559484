"""A second proxy in one network namespace: refused before it writes anything, or it takes the place of the first."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import NODE, Daemon, echo, prepare, reached, service_of, slice_for, stage, write
from tests.fakes.own_network import enter, run

from vipwire.errors import ConfigError
from vipwire.process_lifecycle.local_sockets import VARIABLE
from vipwire.process_lifecycle.single_instance import AlreadyRunningError, claim_names, find_holder
from vipwire.proxy_daemon.start.record import PROXY, find_running_proxy

pytestmark = [pytest.mark.attack, pytest.mark.kernel]
WEB, POD = "10.96.0.1", "10.244.0.1"
DONE = "found no rules of other modes"
HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nlogging: {format: json}\n"


@pytest.fixture(autouse=True)
def _network() -> Iterator[None]:
    with stage():
        yield


@asynccontextmanager
async def cluster() -> AsyncIterator[FakeApiServer]:
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", WEB))
    server.store.put("endpointslices", slice_for("web", POD))
    async with server, echo():
        yield server


def proxy(server: FakeApiServer, *flags: str) -> Daemon:
    return Daemon(f"--master={server.url}", f"--hostname-override={NODE}", *flags)


def rules() -> str:
    return run("nft list ruleset") + run("iptables-nft-save")


def names() -> str:
    """List the sockets of this network namespace."""
    return Path("/proc/thread-self/net/unix").read_text()


def pid_of(daemon: Daemon) -> int:
    assert daemon.process is not None
    return daemon.process.pid


async def test_a_second_proxy_names_the_first_and_writes_nothing(tmp_path: Path) -> None:
    async with cluster() as server:
        async with proxy(server, f"--state-dir={tmp_path}") as first:
            await first.heard(DONE)
            before = run("nft list table ip vipwire")
            async with proxy(server, "--proxy-mode=iptables", "--nodeport-addresses=primary") as second:
                assert await second.ended() == 1
            (said,) = second.lines
            assert said.startswith("error: it already runs: vipwire proxy")
            for part in (f"process {pid_of(first)}, user 0 since 20", "nftables mode", f"state directory {tmp_path}"):
                assert part in said
            assert f"end it (kill {pid_of(first)}), or start with --takeover" in said
            assert not second.records, "it has come to nothing that is worth a line"
            assert "KUBE-" not in rules()
            assert run("nft list table ip vipwire") == before
            assert await reached(WEB) == POD
            assert await first.terminate() == 0
        assert find_running_proxy() is None


@pytest.mark.parametrize("linked", [False, True], ids=["", "by a link of theirs"])
async def test_a_state_directory_of_another_user_is_refused(tmp_path: Path, *, linked: bool) -> None:
    """Which endpoints are drained, and what is known of a Node that is away, is read there."""
    folder = tmp_path / "state"
    (tmp_path / "mine").mkdir()
    if linked:
        folder.symlink_to(tmp_path / "mine")
    else:
        folder.mkdir()
    os.chown(folder, 65534, 65534, follow_symlinks=False)
    async with cluster() as server, proxy(server, f"--state-dir={folder}") as refused:
        assert await refused.ended() == 1
        assert f"--state-dir {folder}: user 65534 owns this folder" in refused.log()
        assert rules() == ""


async def test_what_holds_it_dies_with_its_process() -> None:
    async with cluster() as server:
        async with proxy(server, "--proxy-mode=userspace") as first:
            await first.heard(DONE)
            assert await first.terminate(signal.SIGKILL) == -signal.SIGKILL
        async with proxy(server, "--proxy-mode=userspace") as second:  # although the relay of the first goes on
            await second.heard(DONE)
            assert await reached(WEB) == POD
            assert await second.terminate() == 0


@pytest.mark.parametrize(
    ("before", "after"), [("nftables", "nftables"), ("userspace", "userspace"), ("iptables", "nftables")]
)
async def test_a_takeover_loses_no_connection(before: str, after: str) -> None:
    async with cluster() as server:
        answers: list[str] = []
        over = asyncio.Event()

        async def connect() -> None:
            while not over.is_set():
                answers.append(await reached(WEB))
                await asyncio.sleep(0.005)

        async with proxy(server, f"--proxy-mode={before}") as first:
            await first.heard(DONE)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(connect())
                async with proxy(server, f"--proxy-mode={after}", "--takeover") as second:
                    assert await first.ended() == 0
                    (last,) = first.said("stopped; the rules stay")
                    assert last["reason"] == f"process {pid_of(second)} takes over"
                    await second.heard(DONE)
                    holder = find_running_proxy()
                    assert holder is not None
                    assert holder.pid == pid_of(second)
                    while len(answers) <= 20:
                        assert await reached(WEB) == POD
                    over.set()
                    assert await second.terminate() == 0
        assert set(answers) == {POD}


@pytest.mark.skipif(Path("/proc/net/ip_vs").exists(), reason="this machine's own kernel has IPVS: the mode runs")
async def test_who_could_not_run_here_does_not_take_over() -> None:
    async with cluster() as server, proxy(server) as first:
        await first.heard(DONE)
        async with proxy(server, "--proxy-mode=ipvs", "--takeover") as second:
            assert await second.ended() == 1
        assert "IPVS" in second.log()
        holder = find_running_proxy()
        assert holder is not None
        assert holder.pid == pid_of(first)
        assert await first.terminate() == 0


async def test_a_proxy_that_replaces_itself_keeps_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "config.conf", f"{HEADER}mode: nftables\n")
    async with cluster() as server, proxy(server, f"--config={file}") as first:
        await first.heard(DONE)
        held: list[bool] = []

        async def look() -> None:
            while not first.said(DONE, mode="iptables"):
                held.append(PROXY in names())
                await asyncio.sleep(0.01)

        write(file, f"{HEADER}mode: iptables\n")
        await look()
        assert set(held) == {True}, "at no moment could another one have come"
        holder = find_running_proxy()
        assert holder is not None
        assert (holder.pid, holder.said["details"][0]) == (pid_of(first), "iptables mode")
        assert await first.terminate() == 0


async def test_cleanup_waits_for_the_end_of_the_proxy() -> None:
    async with cluster() as server:
        async with proxy(server) as first:
            await first.heard(DONE)
            command = (sys.executable, "-m", "vipwire", "cleanup")
            refused = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert refused.returncode == 1
            assert f"while a proxy runs here: vipwire proxy (process {pid_of(first)}" in refused.stderr
            assert await reached(WEB) == POD
            assert await first.terminate() == 0
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        assert "vipwire" not in run("nft list tables")


def test_a_second_up_names_the_first_and_its_data_and_can_take_over(tmp_path: Path) -> None:
    flags = ["--no-dns", "--bind-address=127.0.0.1"]
    with subprocess.Popen(up(tmp_path / "a", "6443", *flags), stdout=subprocess.PIPE, text=True) as first:
        ready(first)
        refused = subprocess.run(up(tmp_path / "b", "6444", *flags), capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert f"vipwire up (process {first.pid}" in refused.stderr
        assert f"data directory {tmp_path}/a, API server at 127.0.0.1 port 6443" in refused.stderr
        assert not (tmp_path / "b").exists(), "before it writes anything"
        command = up(tmp_path / "a", "6443", *flags, "--takeover")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
            assert first.wait(60) == 0
            ready(second)
            second.terminate()
            assert second.wait(60) == 0


def up(folder: Path, port: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "vipwire", "up", "--data-dir", str(folder), "--secure-port", port, *flags]


def ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("try:"):
            return
    raise AssertionError("".join(said))


def test_a_name_is_given_back_and_tells_of_its_holder() -> None:
    with claim_names(("vipwire-test",), "a test", ["in a room"]):
        holder = find_holder("vipwire-test")
        assert holder is not None
        assert (holder.pid, holder.uid, holder.said["details"]) == (os.getpid(), os.geteuid(), ["in a room"])
        with (
            pytest.raises(AlreadyRunningError, match=r"a test \(process \d+"),
            claim_names(("vipwire-test",), "another"),
        ):
            pass
    assert find_holder("vipwire-test") is None


def test_a_holder_that_hangs_is_named_by_the_kernel() -> None:
    code = (
        "import os, signal; from vipwire.process_lifecycle.single_instance import claim_names; "
        "claim = claim_names(('vipwire-test',), 'a test'); claim.__enter__(); print(flush=True); "
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        wanting = claim_names(("vipwire-test",), "another", ready=lambda: None)
        with pytest.raises(AlreadyRunningError, match=rf"does not answer \(process {process.pid}"), wanting:
            pass
        process.kill()
        process.wait()
    with claim_names(("vipwire-test",), "another"):
        pass


AS_STRANGER = """import os
from vipwire.process_lifecycle.single_instance import claim_names
os.setgid(65534); os.setuid(65534)
try:
    claim_names(("vipwire-test",), "another", ready=lambda: None).__enter__()
except Exception as error:
    print(error)
"""


def test_only_root_or_the_same_user_may_take_over() -> None:
    asked: list[str] = []
    with claim_names(("vipwire-test",), "a test") as claim:
        claim.when_asked(asked.append)
        done = subprocess.run([sys.executable, "-c", AS_STRANGER], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("it already runs: a process of user 0"), done
        assert asked == []


ODD = b'{"details": 7, "since": [], "command": null}\n'


@pytest.mark.parametrize("answer", [b"", b"[1]\n", b"nonsense\n", ODD, b"x" * 99])
def test_whatever_a_process_of_an_earlier_version_answers_it_is_named(answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as pool:
        listener.bind("\0vipwire-test")
        listener.listen()

        def serve() -> None:
            for _ in range(2):
                connection, _address = listener.accept()
                with connection:
                    connection.sendall(answer)

        serving = pool.submit(serve)
        holder = find_holder("vipwire-test")
        assert holder is not None
        assert f"process {os.getpid()}" in str(holder)
        wanting = claim_names(("vipwire-test",), "another")
        with pytest.raises(AlreadyRunningError, match=rf"kill {os.getpid()}"), wanting:
            pass
        serving.result()


def test_the_place_of_an_earlier_version_is_taken_and_its_name_is_not() -> None:
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as pool:
        listener.bind("\0vipwire-test")
        listener.listen()

        def serve() -> bytes:
            for _ in range(2):
                connection, _address = listener.accept()
                with connection:
                    connection.sendall(b'{"command": "vipwire proxy", "pid": 7}\n')
                    if heard := connection.recv(64):
                        listener.close()
                        connection.sendall(b"ending\n")
                        return heard
            return b""

        serving = pool.submit(serve)
        with claim_names(("vipwire-test",), "another", ready=lambda: None):
            assert serving.result() == b"takeover\n"
            assert "@vipwire-test" not in names()


async def test_nothing_of_a_proxy_is_an_abstract_socket(tmp_path: Path) -> None:
    async with cluster() as server, proxy(server, "--proxy-mode=userspace", f"--state-dir={tmp_path}") as first:
        await first.heard(DONE)
        assert "@" not in names()
        paths = {Path(line.split()[-1]) for line in names().splitlines() if "vipwire" in line}
        assert {path.name.split(".")[0] for path in paths} >= {PROXY, "vipwire-relay-0-ipv4"}
        for path in paths:
            assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
        assert await first.terminate() == 0


SQUATTING = """import os, socket, time
os.setgid(65534); os.setuid(65534)
made = socket.socket(socket.AF_UNIX)
made.bind("\\0vipwire-test"); made.listen()
print(flush=True); time.sleep(600)
"""


def test_a_user_who_takes_the_name_of_earlier_versions_is_nobodys_holder() -> None:
    with subprocess.Popen([sys.executable, "-c", SQUATTING], stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            assert find_holder("vipwire-test") is None
            with claim_names(("vipwire-test",), "a test"):
                holder = find_holder("vipwire-test")
                assert holder is not None
                assert (holder.pid, holder.said["command"]) == (os.getpid(), "a test")
        finally:
            stranger.kill()


def test_the_files_of_processes_that_were_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "ours"))
    for name in ("vipwire-a", "vipwire-b"):
        with claim_names((name,), "a test"):
            assert [path.name.split(".")[0] for path in (tmp_path / "ours").iterdir()] == [name]


def test_two_that_start_in_the_same_moment_are_never_both_first() -> None:
    def start(_: int) -> bool:
        code = "from vipwire.process_lifecycle.single_instance import claim_names\n"
        code += "with claim_names(('vipwire-test',), 'a test'): print(flush=True); input()"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL)
        started.append(process)
        assert process.stdout is not None
        return bool(process.stdout.readline())

    started: list[subprocess.Popen[bytes]] = []
    network = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    with ThreadPoolExecutor(4, initializer=enter, initargs=(network,)) as pool:
        assert sum(pool.map(start, range(4))) == 1
    os.close(network)
    for process in started:
        process.communicate(b"\n")


def _of_another_user(place: Path) -> None:
    place.mkdir()
    os.chown(place, 65534, 65534)


def _below_a_folder_of_another_user(place: Path) -> None:
    os.chown(place.parent, 65534, 65534)


def _a_link_of_another_user(place: Path) -> None:
    place.symlink_to(place.parent)
    os.chown(place, 65534, 65534, follow_symlinks=False)


def _a_file(place: Path) -> None:
    place.touch()


@pytest.mark.parametrize(
    "made", [_of_another_user, _below_a_folder_of_another_user, _a_link_of_another_user, _a_file]
)
def test_a_folder_for_sockets_that_cannot_be_ours_is_refused_in_one_line(
    tmp_path: Path, made: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "above" / "sockets"
    place.parent.mkdir()
    made(place)
    monkeypatch.setenv(VARIABLE, str(place))
    with pytest.raises(ConfigError, match=VARIABLE) as refused, claim_names(("vipwire-test",), "a test"):
        pass
    assert "\n" not in str(refused.value)


def test_who_only_connects_keeps_nobody_from_hearing() -> None:
    with claim_names(("vipwire-test",), "a test"), ExitStack() as stack:
        (path,) = (line.split()[-1] for line in names().splitlines() if "vipwire-test" in line)
        for _ in range(100):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX))
            idle.connect(path)
        holder = find_holder("vipwire-test")
        assert holder is not None
        assert holder.said["command"] == "a test"
