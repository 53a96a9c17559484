"""What the commands say of ebpf mode on a real kernel: of programs and rules together, and where one is damaged."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.own_network import run
from tests.proxy.kernel.ebpf_maps import own_pins
from tests.proxy.kernel.test_inspect_commands import as_json, program, vipwire
from tests.proxy.unit.inspected import HTTP, PODS, make_config

from vipwire.model.net import Protocol, parse_address
from vipwire.modes.ebpf.layout import frontend_key
from vipwire.modes.ebpf.pinned import NodePins
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Backend
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = pytest.mark.kernel

VIP, POD = "10.96.0.10", PODS["pod-1a"]
ENDPOINT = next(each for each in POD.addresses if "." in each)


@pytest.fixture
def node(cgroup: Path) -> Iterator[NodePins]:
    """A node with the address of a Pod of its own."""
    with own_pins(cgroup) as pins:
        for each in ("192.168.0.1", ENDPOINT):
            run(f"ip addr add {each}/32 dev lo")
        run("ip route add default dev lo")
        yield pins


@pytest.fixture
def flags(node: NodePins, cgroup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Program one Service, whose endpoint is this process; what the commands are told."""
    del node
    monkeypatch.delenv("VIPWIRE_FLAGS", raising=False)
    ours = [f"--state-dir={tmp_path / 'state'}", "--proxy-mode=ebpf", f"--ebpf-cgroup={cgroup}"]
    web = manifests.service_manifest(DEFAULT, "web", [VIP], [HTTP], [Backend(POD)])
    program(make_config(tmp_path, web, *ours, "--ebpf-clients=node"))
    given = [f"--manifests={tmp_path}", "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16"]
    return [*given, "--nodeport-addresses=primary", *ours]


def connect(times: int) -> None:
    """Connect to the Service, as a process of the node."""
    with closing(socket.create_server((ENDPOINT, HTTP.target))) as server:
        for _ in range(times):
            with socket.create_connection((VIP, HTTP.port), timeout=15):
                server.accept()[0].close()


def test_all_commands_know_what_programs_do(flags: list[str]) -> None:
    assert [each["state"] for each in as_json("status", *flags)["families"]] == ["as planned"] * 2
    assert vipwire("diff", *flags).stdout == ""
    status = vipwire("status", *flags).stdout
    assert "9 of 9 programs, for " in status
    assert "frontends4 1 of 16384" in status
    (first, *_) = as_json("explain", "web", *flags)["kernel"]["path"]
    assert first["effect"].startswith(f"sockets of the node go to {ENDPOINT}:8080 directly; "), "Pods are left alone"
    connect(3)
    (port,) = [port for port in as_json("status", "web", *flags)["services"][0]["ports"] if port["name"] == "http"]
    assert port["counts"]["connections"] == 3
    assert vipwire("trace", "--seconds=0", *flags).stdout.strip() == "No new connection to a VIP was seen."
    (line,) = vipwire("top", "-c1", "--interval=0.1", "-o=json", *flags).stdout.splitlines()
    assert json.loads(line)["rows"] == [], "nothing has come since"


def test_a_frontend_that_is_gone_from_a_map_is_told_and_the_rules_serve_it(node: NodePins, flags: list[str]) -> None:
    held = node.find("frontends4")
    assert held is not None
    held.remove([frontend_key(parse_address(VIP), Protocol.TCP, HTTP.port)])
    (found,) = as_json("status", "web", *flags)["services"]
    assert found["kernel"][0] == {"family": "IPv4", "state": "drifted", "missing": 1, "different": 0}
    diff = vipwire("diff", *flags)
    assert diff.exit_code == 1
    assert "# + " in diff.stdout
    assert VIP in diff.stdout
    explained = vipwire("explain", "web", *flags)
    assert "nothing: see the rules below" in explained.stdout
    assert explained.exit_code == 0, "they do the same"
    connect(2)
    (port,) = as_json("status", "web", *flags)["services"][0]["ports"]
    assert port["counts"]["connections"] == 2, "by rules"
