"""`vipwire check --leave-ipvs` beside what kube-proxy's ipvs mode has on a node. In the guest."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.kernel.ipvs.takeover import FOREIGN, NODE, PODS, WEB, left_by_kube_proxy

from vipwire.model.net import Family
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(280)]

CONFIG = """apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
iptables: {masqueradeAll: true}
ipvs: {excludeCIDRs: [192.168.99.0/24], tcpTimeout: 2h0m0s}
"""
MORE = """
ipvsadm -E -t 10.96.0.1:80 -s lc -p 600
ipvsadm --set 7200 0 0
sysctl -qw net.ipv4.vs.conn_reuse_mode=0
"""
LESS = """
ipvsadm -C; ipvsadm --set 900 120 300; sysctl -qw net.ipv4.vs.conn_reuse_mode=1; ip link del kube-ipvs0
for each in iptables ip6tables; do for table in filter nat; do
    $each-legacy -t $table -F; $each-legacy -t $table -X
done; done
ipset destroy
"""


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Leave a node as kube-proxy does, with a process that looks like it; yield the manifests' folder."""
    folder = tmp_path_factory.mktemp("kube-proxy")
    objects = [*(manifests.node_manifest(each) for each in DEFAULT.nodes), *WEB.objects(PODS)]
    (folder / "all.yaml").write_text(manifests.dump_yaml(objects))
    (folder / "config.conf").write_text(CONFIG)
    program = folder / "kube-proxy"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o700)
    left_by_kube_proxy(lab)
    lab.run(NODE, ["sh", "-ec", MORE.replace("10.96.0.1", vip())])
    process = lab.popen(NODE, [str(program), f"--config={folder / 'config.conf'}"], stdin=subprocess.PIPE)
    try:
        yield folder
    finally:
        process.communicate()
        lab.run(NODE, ["sh", "-ec", LESS])


def vip() -> str:
    return WEB.address(FrontendKind.CLUSTER_IP, Family.IPV4)


def asked(lab: Lab, folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Run the command on the node; return exit status and document."""
    command = [sys.executable, "-m", "vipwire", "check", "--leave-ipvs", "-o", "json", f"--hostname-override={NODE}"]
    done = lab.run(NODE, [*command, f"--manifests={folder / 'all.yaml'}", *flags], check=False)
    with contextlib.suppress(ValueError):
        return done.returncode, json.loads(done.stdout)
    pytest.fail(f"no document: {done.stdout}{done.stderr}")


def test_it_reads_the_configuration_and_the_kernel_and_says_what_will_be_otherwise(lab: Lab, node: Path) -> None:
    status, document = asked(lab, node, "--proxy-mode=nftables")
    assert status == 1
    assert document["kubeProxy"]["mode"] == "ipvs"
    assert document["kubeProxy"]["where"].startswith(f"{node / 'config.conf'} of process ")
    said: dict[str, list[dict[str, str]]] = {}
    for each in document["changes"]:
        said.setdefault(each["area"], []).append(each)
    assert "refuses" in said["mode"][0]["then"], "this kernel has no tables of nftables"
    assert vip() in said["ping"][0]["now"]
    assert [each["level"] for each in said["ping"]] == ["otherwise", "otherwise"]
    scheduled = {each["now"].split()[0]: each for each in said["scheduler"]}
    assert (scheduled["rr"]["level"], scheduled["lc"]["level"]) == ("note", "otherwise")
    assert "default/web:http" in scheduled["lc"]["now"]
    assert "600 s" in said["affinity"][0]["now"]
    assert "default/web:http" in said["node ports"][0]["now"]
    assert said["masquerading"][0]["todo"] == "write nftables.masqueradeAll: true"
    assert said["timeouts"][0]["now"].startswith("IPVS forgets an idle TCP connection after 7200 s")
    assert FOREIGN.split()[2] in said["foreign"][0]["now"]
    assert "in excludeCIDRs 192.168.99.0/24" in said["foreign"][0]["now"]
    assert "net.ipv4.vs.conntrack=1" in said["settings"][0]["now"]
    assert said["objects"][0]["now"].endswith("chains KUBE-…")
    assert "34 ipsets" in said["objects"][0]["now"]


def test_staying_with_ipvs_is_the_same(lab: Lab, node: Path) -> None:
    status, document = asked(lab, node, "--proxy-mode=ipvs", f"--config={node / 'config.conf'}")
    assert [each for each in document["changes"] if each["level"] == "otherwise"] == []
    assert status == 0


def test_the_commands_that_the_document_replaces_are_those_of_ipvs_mode(lab: Lab, node: Path) -> None:
    del node
    text = (Path(__file__).parents[4] / "docs/leave-ipvs.md").read_text()
    rows = (line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))
    commands = [each for row in rows for each in re.findall(r"`((?:ipvsadm|ipset|ip) [^`…]+)`", row)]
    assert len(commands) >= 6
    for each in commands:
        assert lab.run(NODE, each.split()).stdout, each
