"""Every command as root without a single capability: what is missing is named, and what can be done is done."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.daemon import service_of, slice_for
from tests.fakes.own_network import own_network

pytestmark = pytest.mark.kernel
BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
MODES = ("nftables", "iptables", "ipvs")


def bare(folder: Path, *arguments: str, mode: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of vipwire without capabilities, in a network namespace of its own."""
    objects = {
        "Service": {"apiVersion": "v1", "kind": "Service", **service_of("web", "10.96.0.1")},
        "EndpointSlice": {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            **slice_for("web", "10.244.0.1", "10.244.0.2"),
        },
    }
    for kind, content in objects.items():
        (folder / f"{kind}.json").write_text(json.dumps(content))
    flags = [
        f"--manifests={folder}",
        f"--state-dir={folder / 'state'}",
        "--hostname-override=node",
        "--oom-score-adj=0",
    ]
    command = [*BARE, sys.executable, "-m", "vipwire", *arguments, *flags, f"--proxy-mode={mode}"]
    with own_network():
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", ["proxy", "cleanup"])
def test_what_writes_ends_at_once_and_says_what_works(tmp_path: Path, command: str) -> None:
    done = bare(tmp_path, command, mode="iptables")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith(f"error: vipwire {command} needs the capability CAP_NET_ADMIN: ")
    assert "`vipwire status`" in line


@pytest.mark.parametrize("mode", MODES)
def test_status_shows_the_plan_and_calls_the_kernel_unknown(tmp_path: Path, mode: str) -> None:
    done = bare(tmp_path, "status", mode=mode)
    assert done.returncode == 0, done.stderr
    assert "2/2" in done.stdout
    assert "Traceback" not in done.stderr
    assert "unknown" in done.stdout
    assert "CAP_NET_ADMIN" in done.stdout or "ip_vs" in done.stdout, "the reason, with a remedy"


def test_plan_and_explain_need_no_rights(tmp_path: Path) -> None:
    assert "used: ready" in bare(tmp_path, "plan", mode="nftables").stdout
    explained = bare(tmp_path, "explain", "10.96.0.1:80", "--from", "10.244.0.9", mode="nftables")
    assert explained.returncode == 0
    assert "10.244.0.2" in explained.stdout
    assert "kernel: unknown: " in explained.stdout


@pytest.mark.parametrize("arguments", [("trace", "--seconds=1"), ("top", "--count=1")], ids=lambda words: words[0])
def test_what_listens_to_the_kernel_names_the_capability(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = bare(tmp_path, *arguments, mode="nftables")
    assert done.returncode == 1
    assert "CAP_NET_ADMIN; `vipwire status`" in done.stderr


def test_check_names_the_capability_and_judges_the_rest(tmp_path: Path) -> None:
    done = bare(tmp_path, "check", mode="nftables")
    assert done.returncode == 1
    assert "without CAP_NET_ADMIN vipwire shows plans" in done.stdout
    assert "Linux" in done.stdout


def test_diff_cannot_tell(tmp_path: Path) -> None:
    done = bare(tmp_path, "diff", mode="nftables")
    assert done.returncode == 2
    assert "CAP_NET_ADMIN" in done.stdout


def test_what_is_drained_is_listed_and_written_where_the_folder_may_be_written(tmp_path: Path) -> None:
    done = bare(tmp_path, "drain", "10.244.0.1", mode="nftables")
    assert done.returncode == 0
    assert "kernel: unknown" in done.stdout
    assert "CAP_NET_ADMIN" in done.stderr
    assert "10.244.0.1" in bare(tmp_path, "drain", "--list", mode="nftables").stdout
    assert bare(tmp_path, "drain", "--list", "-o=name", mode="nftables").stdout == "10.244.0.1\n"
