"""`vipwire lab up --proxy-mode`, `compare` and `tour`: real modes in real labs, and one in a guest."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from vipwire.cli.main import main
from vipwire.config.modes import list_mode_names
from vipwire.linux.bpf.namespaces import read_cookie_of
from vipwire.linux.bpf.pins import build_node_path
from vipwire_lab.cluster import state
from vipwire_lab.compare.measure import format_more, render_document
from vipwire_lab.compare.staged import find_guest_obstacle
from vipwire_lab.compare.tour import SIGHTS

pytestmark = pytest.mark.kernel
OUTSIDE, POD, NODE, NODE_PORT, BALANCER, EMPTY = range(6)


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIPWIRE_FLAGS", raising=False)


def lab(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lab", *arguments], catch_exceptions=False)


def compared(*arguments: str) -> dict[str, Any]:
    result = lab("compare", "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    return {each["mode"]: each for each in json.loads(result.stdout)["modes"]}


def same_for_all(measured: dict[str, Any]) -> None:
    assert len(measured["paths"][OUTSIDE]["pods"]) == 5
    assert measured["paths"][OUTSIDE]["saw"] == ["node-1"]
    assert set(measured["paths"][BALANCER]["pods"]) == {"pod-1a", "pod-1b", "pod-1c"}
    assert measured["paths"][EMPTY]["outcomes"] == {"refused": 40}
    assert measured["written"]["objects"] > 10
    assert measured["change"]["objects"] > 0
    assert measured["connection"]["toServiceMicroseconds"] > 0
    assert measured["explained"]["agrees"] is True
    assert measured["explained"]["path"]


@pytest.mark.slow
def test_modes_are_compared_on_the_same_packets() -> None:
    found = compared("--proxy-mode=nftables", "--proxy-mode=userspace")
    for measured in found.values():
        same_for_all(measured)
    assert "pod-1a" in found["nftables"]["paths"][POD]["saw"]
    assert found["userspace"]["paths"][POD]["saw"] == ["node-1"]
    assert found["nftables"]["paths"][BALANCER]["saw"] == ["client"]
    assert found["userspace"]["paths"][BALANCER]["saw"] == ["node-1"]


@pytest.mark.slow
def test_a_mode_that_this_kernel_lacks_runs_in_a_guest() -> None:
    if why := find_guest_obstacle():
        pytest.skip(why)
    (measured,) = compared("--proxy-mode=ipvs").values()
    same_for_all(measured)
    assert measured["kernel"].endswith("in a guest")


def test_the_tour_shows_a_mode_with_its_own_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = lab("tour", "--proxy-mode=nftables")
    assert result.exit_code == 0, result.output
    assert "10.96.0.10 . tcp . 80 . 0:5 : 10.244.2.12 . 80" in result.output
    assert "5 Pods answer, and see 192.168.0.1" in " ".join(result.output.split())
    prose, _, _ = result.output.partition("node-1# ")
    assert max(map(len, prose.splitlines()[1:])) <= 80


def drain_in(name: str, pod: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vipwire", "lab", "exec", "-l", name, "node-1", "--", "vipwire", "drain", pod]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def ours_in_bpffs(name: str) -> list[Path]:
    """Find what the nodes of a lab have in bpffs; the namespaces may be gone by the time that it is looked for."""
    cookies = [read_cookie_of(path) for path in Path("/run/netns").glob(f"vipwire-{name}-node-*")]
    return [path for path in map(build_node_path, cookies) if path.exists()]


@pytest.mark.parametrize("mode", ["nftables", "ebpf"])
def test_a_lab_with_proxies_serves_its_service_and_ends_with_it(mode: str) -> None:
    name = f"with-{os.getpid()}"
    try:
        # A process of its own, which leaves its children behind.
        command = [sys.executable, "-m", "vipwire", "lab", "up", "-l", name, f"--proxy-mode={mode}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert result.returncode == 0, result.stderr
        assert f"vipwire lab probe --name {name} client 10.96.0.10:80" in result.stdout
        probed = lab("probe", "-l", name, "pod-2a", "10.96.0.10:80", "-n", "40", "-o", "json")
        assert probed.exit_code == 0, probed.output
        assert len({each["answer"]["pod"] for each in json.loads(probed.output)}) == 5
        if mode == "nftables":
            drained = drain_in(name, "10.244.1.12")
            assert "10.244.1.12 is drained on node-1" in drained.stdout, drained.stderr
            assert (state.directory_of(name) / "state" / "drained-node-1.json").exists(), "it goes with the lab"
        outlasting = ours_in_bpffs(name)
        assert len(outlasting) == (2 if mode == "ebpf" else 0)
    finally:
        down = lab("down", "-l", name)
    assert down.output == f"The lab {name} is down.\n"
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [each for each in running if f"vipwire-lab/{name}/".encode() in each]
    assert not [each for each in outlasting if each.exists()], "programs would be called for ever"


def test_a_proxy_that_cannot_run_leaves_no_lab_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"without-{os.getpid()}"
    monkeypatch.setenv("VIPWIRE_FLAGS", "--conntrack-min=x")
    refused = lab("up", "-l", name, "--proxy-mode=nftables")
    assert refused.exit_code == 1
    assert "the proxy of node-1 ended" in refused.output
    assert "conntrack-min" in refused.output
    assert lab("show", "-l", name).exit_code == 1


EVIL = "<script>alert(1)</script>"


def made_up() -> dict[str, Any]:
    path = {"who": "a client", "to": EVIL, "at": "10.0.0.1:80", "outcomes": {"answered": 39, "refused": 1}}
    ran = {
        "mode": "nftables",
        "kernel": "Linux 6.1",
        "written": {"objects": 100, "bytes": 2000},
        "paths": [path | {"pods": {"pod-1a": 39}, "saw": [EVIL]}],
        "connection": {"toPodMicroseconds": 100.0, "toServiceMicroseconds": 120.0},
        "change": {"objects": 4, "bytes": 100, "milliseconds": 1.25},
        "explained": {"agrees": True, "why": [], "path": [{"object": "chain a", "text": EVIL, "effect": "drops"}]},
    }
    return {"kind": "Comparison", "modes": [ran, {"mode": "ipvs", "kernel": None, "reason": EVIL}]}


def test_the_page_of_an_earlier_version_is_refused_with_what_to_do() -> None:
    result = lab("compare", "--html=modes.html")
    assert result.exit_code == 2
    assert "-o json" in result.output


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_fits_a_terminal(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(
        render_document(made_up(), wide=True), crop=False
    )
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any("answered by 1 Pod, 1 refused" in line for line in lines)
    assert any("+20 µs" in line for line in lines)
    assert any(line.startswith("ipvs cannot run here:") for line in lines)


@pytest.mark.parametrize(("more", "said"), [(20.0, "+20 µs"), (-13.0, "nothing"), (0.4, "nothing")])
def test_what_cannot_be_seen_to_cost_anything_costs_nothing(more: float, said: str) -> None:
    assert format_more(more) == said


def test_every_mode_has_a_sight() -> None:
    assert set(list_mode_names()) == set(SIGHTS)
