"""A local user without rights beside each of vipwire's servers: every path, socket and process of ours."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.attacks.test_spelled_requests import answered, served
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import NODE, PATIENCE, Daemon, page, prepare, service_of, slice_for, stage
from tests.proxy.conformance import own_cgroup
from tests.up.unit.cluster_process import ALONE, up

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.slow]
STRANGER = Path(__file__).parent / "stranger.py"
NOBODY = 65534
TOKEN = "a-token-that-only-root-reads"  # noqa: S105  # a test's own
SECRET = re.compile(rf"PRIVATE KEY|client-key-data|{TOKEN}|token: \S+|[a-z0-9]{{6}}\.[a-z0-9]{{16}}\b")
OWN = ("/run/", "/var/", "/sys/fs/bpf/", "/dev/shm/", "/tmp/")  # noqa: S108  # where files of ours may be


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder whose parents everybody may enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:  # pytest's own folder is root's alone
        Path(made).chmod(0o755)
        yield Path(made)


def family(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def opened(pids: Sequence[int]) -> tuple[set[str], set[str]]:
    """Return the paths that processes have open, and the inodes of their sockets."""
    paths, inodes = set[str](), set[str]()
    for pid in pids:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(each.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
                elif target.startswith(OWN):
                    paths.add(target.removesuffix(" (deleted)"))
    return paths, inodes


def sockets(pid: int, inodes: set[str]) -> tuple[set[str], set[int]]:
    """Return names of UNIX sockets and listening TCP ports, by what the kernel lists in a process's namespace."""
    unix = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    names = {line[7] for line in unix if len(line) > 7 and line[6] in inodes}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return names, ports


def tried(pid: int, folders: Sequence[Path]) -> tuple[dict[str, Any], set[str], set[int]]:
    """Let nobody try everything against a process, its children and its folders."""
    pids = family(pid)
    paths, inodes = opened(pids)
    names, ports = sockets(pid, inodes)
    paths |= {name for name in names if not name.startswith("@")}
    for each in folders:
        paths |= {str(each), *map(str, each.rglob("*"))}
    given = {"paths": sorted(paths), "pids": pids, "ports": sorted(ports)}
    given["names"] = sorted(name[1:] for name in names if name.startswith("@"))
    done = subprocess.run(
        ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-IS", "-"),
        input=f"import io, sys; sys.stdin = io.StringIO({json.dumps(json.dumps(given))})\n{STRANGER.read_text()}",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["user"] == NOBODY
    return told, paths, ports


def check(told: dict[str, Any]) -> None:
    assert told["done"] == []
    assert told["tried"] > 50
    assert {where: found[0] for where, text in told["read"].items() if (found := SECRET.search(text))} == {}
    hidden = [where for where in told["read"] if where.endswith(("/environ", "/mem", "/auxv", "/syscall", "/stack"))]
    assert hidden == []


@pytest.mark.parametrize("mode", ["nftables", "userspace", "ebpf"])
def test_nobody_changes_nothing_of_a_proxy_and_reads_no_secret(mode: str, folder: Path) -> None:
    state, config = folder / "state", folder / "kubeconfig"
    server = FakeApiServer(token=TOKEN)
    prepare(server)
    server.store.put("services", service_of("web", "10.96.0.1"))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    own = ("--profiling", "--view-bind-address=127.0.0.1:10247", f"--hostname-override={NODE}")

    async def story(*more: str) -> None:
        async with server:
            config.touch(0o600)
            config.write_text(kubeconfig(server.url))
            flags = (f"--proxy-mode={mode}", f"--state-dir={state}", f"--kubeconfig={config}", *own)
            async with Daemon(*flags, *more) as daemon:
                await daemon.heard("synced", ip_family="IPv4")
                assert daemon.process is not None
                async with asyncio.timeout(PATIENCE):
                    while not await shown():
                        pass
                told, paths, ports = await asyncio.to_thread(tried, daemon.process.pid, (state, config))
                check(told)
                assert {10249, 10256, 10247} <= ports
                assert str(state) in paths
                assert daemon.process.returncode is None
                assert "Traceback" not in daemon.log()

    with own_cgroup.beside("node") if mode == "ebpf" else contextlib.nullcontext() as cgroup, stage():
        asyncio.run(story(*([f"--ebpf-cgroup={cgroup}"] if cgroup else [])))


async def shown() -> bool:
    """Tell whether the page is served; it comes after the first sync."""
    with contextlib.suppress(OSError, aiohttp.ClientError):
        return (await page("/", 10247))[0] == 200
    return False


def kubeconfig(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "a", "cluster": {"server": url}}],
            "users": [{"name": "a", "user": {"token": TOKEN}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "current-context": "a",
        }
    )


def test_nobody_changes_nothing_of_an_up_and_reads_no_secret(folder: Path) -> None:
    data = folder / "data"
    with up(data, *ALONE) as process:
        told, paths, ports = tried(process.pid, (data,))
        check(told)
        assert len(ports) >= 1
        assert str(data / "pki" / "ca.key") in paths
        assert process.poll() is None


@pytest.mark.parametrize("kind", ["ingress", "gateway"])
def test_nobody_changes_nothing_of_an_ingress_and_reads_no_secret(kind: str, folder: Path) -> None:
    run = folder / "run"
    with served(kind, folder) as (port, _, pid):
        told, paths, ports = tried(pid, (run,))
        check(told)
        assert {port} < ports
        assert {each.suffix for each in map(Path, paths)} >= {".cfg", ".sock", ".pem"}
        assert answered(port, "/") == 200
        assert answered(port, "/admin") == 403
