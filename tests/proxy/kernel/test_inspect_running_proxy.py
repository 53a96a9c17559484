"""A real proxy, and commands that look at it without being given its flags."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.own_network import own_network, run
from tests.proxy.unit.inspected import example, make_config

from vipwire.process_lifecycle.single_instance import claim_names
from vipwire.proxy_daemon.start.record import PROXY, ProxyRecord, ProxyState, open_record, read_record

VIPWIRE = (sys.executable, "-m", "vipwire")
pytestmark = pytest.mark.kernel


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a proxy in a network of its own until both families are synced."""
    (tmp_path / "objects").mkdir()
    make_config(tmp_path / "objects", example())
    flags = [f"--manifests={tmp_path}/objects", "--cluster-cidr=10.244.0.0/16", "--hostname-override=node-1"]
    with own_network():
        run("ip link add uplink type veth peer name outside")
        run("ip link set uplink up")
        run("ip link set outside up")
        run("ip addr add 192.168.0.1/24 dev uplink")
        run("ip route add default via 192.168.0.254")
        process = subprocess.Popen(
            [*VIPWIRE, "proxy", *flags, f"--state-dir={tmp_path}", "--oom-score-adj=0", "--healthz-port=0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            synced = 0
            while synced < 2:
                line = process.stderr.readline()
                assert line, "it runs"
                synced += "msg=synced" in line
            yield process
        finally:
            process.kill()
            process.communicate()


def look(tmp_path: Path, *arguments: str) -> Any:
    command = [*VIPWIRE, *arguments, f"--state-dir={tmp_path}", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.usefixtures("proxy")
def test_it_is_as_planned_without_a_flag(tmp_path: Path) -> None:
    status = look(tmp_path, "status")
    assert [family["state"] for family in status["families"]] == ["as planned", "as planned"]
    assert status["proxy"]["state"] == "running"
    assert status["node"] == "node-1"
    drifted = look(tmp_path, "status", "--cluster-cidr=10.9.0.0/16")
    assert drifted["families"][0]["state"] == "drifted"
    assert drifted["proxy"]["otherFlags"] == ["--cluster-cidr=10.244.0.0/16"]
    explained = look(tmp_path, "explain", "--from=203.0.113.9", "default/web")
    assert explained["kernel"]["agrees"] is True, explained["kernel"]["difference"]


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "ended"), (signal.SIGKILL, "died")])
def test_how_it_ended_is_told(
    tmp_path: Path, proxy: subprocess.Popen[str], number: signal.Signals, state: str
) -> None:
    assert look(tmp_path, "status")["proxy"]["state"] == "running"
    proxy.send_signal(number)
    proxy.communicate(timeout=60)
    status = look(tmp_path, "status")
    assert (status["proxy"]["state"], status["families"][0]["state"]) == (state, "as planned")


def test_a_record_is_not_believed_in_the_next_namespace_of_the_same_number(tmp_path: Path) -> None:
    with own_network(), claim_names((PROXY,), "a test"):
        open_record(str(tmp_path)).write(ProxyRecord(os.getpid(), 100.0, "1.2.3", "node-1", "nftables"))
        assert read_record(str(tmp_path))[0] is ProxyState.RUNNING
    for _ in range(20):  # the kernel gives the number of the inode again, sooner or later
        with own_network():
            assert read_record(str(tmp_path)) == (ProxyState.NONE, None)


@pytest.mark.usefixtures("proxy")
def test_a_namespace_and_names_alone(tmp_path: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        command = [*VIPWIRE, *arguments, f"--state-dir={tmp_path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    assert said("status", "-o", "name", "-n", "kube-system") == (0, "kube-system/away\n")
    assert said("plan", "-o=name", "-A")[1].splitlines() == [
        *("default/empty", "default/web", "default/wrong", "kube-system/away")
    ]
    assert said("status", "web", "-n", "default", "-o", "name") == (0, "default/web\n")
    assert said("status", "-n", "default", "-A")[0] == 2
    assert said("status", "kube-system/away", "-n", "default")[0] == 2
    assert said("diff", "-n", "kube-system") == (0, "")
