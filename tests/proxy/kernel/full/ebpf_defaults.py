"""ebpf mode with defaults: programs at the machine's root of cgroup2, Pods in kubelet's cgroups.

In a guest: `python -m vipwire_lab.guest_kernel --full -- python -m pytest tests/proxy/kernel/full/ebpf_defaults.py`.
On a shared machine, other sessions' tests would meet programs at its root.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes import daemon
from tests.fakes.daemon import page, reached, scene, stage
from tests.fakes.own_network import run
from tests.proxy.kernel.test_daemon_fallback import server

from vipwire.linux.bpf.pins import OURS
from vipwire.modes.ebpf.cgroup import find_cgroup

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(900)]

VIP, POD = "10.96.0.1", "10.244.0.1"
IN_A_POD = f"""
import ctypes, os, socket, subprocess, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
assert ctypes.CDLL(None).unshare(0x40000000) == 0  # a network of its own
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "{POD}/32", "dev", "lo"], check=True)
with socket.create_server(("{POD}", {daemon.ECHO_PORT})), socket.create_connection(("{VIP}", 80), 120) as client:
    print(client.getpeername()[0])
"""


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "PATIENCE", 600.0)


@contextmanager
def kubelets() -> Iterator[Path]:
    """Make a Pod's cgroup where kubelet makes it."""
    pods = find_cgroup("") / "kubepods"
    pod = pods / "pod1"
    pod.mkdir(parents=True)
    try:
        yield pod
    finally:
        pod.rmdir()
        pods.rmdir()


def in_a_pod(cgroup: Path) -> "subprocess.CompletedProcess[str]":
    """Connect to the Service from a process of a Pod that is its endpoint too; prints the answer."""
    command = [sys.executable, "-c", IN_A_POD, str(cgroup)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_the_node_and_its_pods_are_led_by_default(tmp_path: Path) -> None:
    with kubelets() as pod, stage():
        async with scene(server(), "--proxy-mode=ebpf", f"--state-dir={tmp_path}") as it:
            await it.synced()
            assert await page("/proxyMode", 10249) == (200, "ebpf")
            run("nft flush ruleset")
            assert await reached(VIP, patience=300) == POD, "without a rule"
            inside = await asyncio.to_thread(in_a_pod, pod)
            assert inside.stdout == f"{VIP}\n", inside.stderr
            assert await it.daemon.terminate() == 0
        assert [each.name for each in OURS.iterdir()], "it stays in force"
        run(f"{sys.executable} -m vipwire.cli.main cleanup")
        assert not OURS.exists()
