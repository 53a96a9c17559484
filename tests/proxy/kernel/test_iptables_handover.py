"""From kube-proxy's rules to ours and back, while connections are made all the time and others stay open.

kube-proxy's rules are written as it writes them: its order of words, its flat chains, its jumps before all others.
"""

import contextlib
import hashlib
from base64 import b32encode
from pathlib import Path

import pytest
from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.mode_iptables import IPTABLES
from tests.proxy.conformance.proxy import Proxy
from tests.proxy.conformance.services import LabService
from tests.proxy.conformance.traffic import check_nothing_lost, check_open, pass_some, traffic

from vipwire.model.net import Family, format_endpoint, parse_address
from vipwire.modes.iptables.nfacct import ensure_counters
from vipwire.modes.iptables.rules.names import INVALID_COUNTER
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = pytest.mark.kernel

NODE = "node-1"
PODS = [pod for pod in DEFAULT.pods if pod.name in ("pod-1a", "pod-2a")]
WEB = LabService(DEFAULT, "web", 1, (Port(80, node_port=30080),))
PROGRAM = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
CLUSTER_CIDR = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/48"}
WAYS = (
    ("pod-1c", FrontendKind.CLUSTER_IP, 0),
    ("client", FrontendKind.NODE_PORT, 0),
    (NODE, FrontendKind.EXTERNAL_IP, 0),
)
ENOUGH = 15
"""Connections of each kind on each side of a change of hands."""

_NEW = "-m conntrack --ctstate NEW"
JUMPS = (
    ("filter", "INPUT", "KUBE-EXTERNAL-SERVICES", _NEW, "externally-visible service portals"),
    ("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES", _NEW, "externally-visible service portals"),
    ("filter", "INPUT", "KUBE-NODEPORTS", "", "health check service ports"),
    ("filter", "FORWARD", "KUBE-SERVICES", _NEW, "service portals"),
    ("filter", "OUTPUT", "KUBE-SERVICES", _NEW, "service portals"),
    ("filter", "FORWARD", "KUBE-FORWARD", "", "forwarding rules"),
    ("filter", "INPUT", "KUBE-PROXY-FIREWALL", _NEW, "load balancer firewall"),
    ("filter", "OUTPUT", "KUBE-PROXY-FIREWALL", _NEW, "load balancer firewall"),
    ("filter", "FORWARD", "KUBE-PROXY-FIREWALL", _NEW, "load balancer firewall"),
    ("nat", "OUTPUT", "KUBE-SERVICES", "", "service portals"),
    ("nat", "PREROUTING", "KUBE-SERVICES", "", "service portals"),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", "", "postrouting rules"),
)
CHAINS = {
    "mangle": ("KUBE-PROXY-CANARY",),
    "filter": (
        *("KUBE-PROXY-CANARY", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS"),
        "KUBE-PROXY-FIREWALL",
    ),
    "nat": ("KUBE-PROXY-CANARY", "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"),
}


def chain(kind: str, *more: str) -> str:
    digest = hashlib.sha256("".join(("default/web", "tcp", *more)).encode()).digest()
    return f"KUBE-{kind}-{b32encode(digest).decode()[:16]}"


def restore_text(family: Family) -> str:
    """Write what a kube-proxy gives to iptables-restore for the one Service."""
    pods = [next(each for each in pod.addresses if (":" in each) is (family is Family.IPV6)) for pod in PODS]
    ends = [format_endpoint(parse_address(each), 80) for each in pods]
    words = {f"pod{at}": each for at, each in enumerate(pods)}
    words |= {f"end{at}": each for at, each in enumerate(ends)}
    words |= {f"sep{at}": chain("SEP", each) for at, each in enumerate(ends)}
    return (
        (Path(__file__).parent / "kube_proxy_sync.txt")
        .read_text(encoding="utf-8")
        .format(
            svc=chain("SVC"),
            ext=chain("EXT"),
            pods=CLUSTER_CIDR[family],
            cluster=WEB.at(FrontendKind.CLUSTER_IP, family).address,
            external=WEB.at(FrontendKind.EXTERNAL_IP, family).address,
            balancer=WEB.at(FrontendKind.LOAD_BALANCER, family).address,
            node=WEB.at(FrontendKind.NODE_PORT, family).address,
            **words,
        )
    )


def kube_proxy(lab: Lab, variant: str) -> None:
    """Do what kube-proxy does at its first sync, whatever is there: its chains, its jumps, its rules."""
    with lab.enter_namespace(NODE):
        assert not ensure_counters([INVALID_COUNTER])
    for family, program in PROGRAM.items():
        tool = f"{program}-{variant}"
        for table, chains in CHAINS.items():
            for each in chains:
                lab.run(NODE, [tool, "-w", "-t", table, "-N", each], check=False)
        for table, source, target, match, note in JUMPS:
            rule = [*match.split(), "-m", "comment", "--comment", f"kubernetes {note}", "-j", target]
            if lab.run(NODE, [tool, "-w", "-t", table, "-C", source, *rule], check=False).returncode:
                lab.run(NODE, [tool, "-w", "-t", table, "-I", source, *rule])
        restore = [f"{tool}-restore", "-w", "5", "--noflush", "--counters"]
        lab.run(NODE, restore, input=restore_text(family))


def translated(lab: Lab, variant: str) -> dict[str, int]:
    """Tell how many connections each endpoint's chain has translated."""
    found: dict[str, int] = {}
    for program in PROGRAM.values():
        for line in lab.run(NODE, [f"{program}-{variant}-save", "-c", "-t", "nat"]).stdout.splitlines():
            if " -j DNAT " in line:
                count, _, name, *_ = line.split(" ")
                found[name] = int(count[1:].partition(":")[0])
    return found


@pytest.mark.parametrize("mode", IPTABLES, ids=str)
def test_no_connection_is_lost_from_kube_proxy_to_us_and_back(mode: Mode, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    objects = [*(manifests.node_manifest(node) for node in DEFAULT.nodes), *WEB.objects(PODS)]
    (folder / "all.yaml").write_text(manifests.dump_yaml(objects))
    with Lab(DEFAULT) as lab, contextlib.ExitStack() as stack:
        for command in mode.prepare:
            lab.run(NODE, command)
        kube_proxy(lab, mode.variant)
        flags = [f"--manifests={folder}", f"--cluster-cidr={','.join(CLUSTER_CIDR.values())}"]
        proxy = Proxy(mode, lab, NODE, tmp_path, flags)
        open_ones = [
            stack.enter_context(lab.connect(host, WEB.vip(family).address, 80))
            for family in Family
            for host in ("pod-1c", "client", NODE)
        ]
        streams = stack.enter_context(traffic(lab, WEB, WAYS))
        pass_some(streams, ENOUGH)
        before = translated(lab, mode.variant)
        assert len(before) == 4
        proxy.start()
        stack.callback(proxy.end_process)
        pass_some(streams, ENOUGH)
        after = translated(lab, mode.variant)
        assert all(after[name] > count > 0 for name, count in before.items()), "these chains were left as they were"
        assert proxy.stop() == 0
        pass_some(streams, ENOUGH)
        kube_proxy(lab, mode.variant)
        pass_some(streams, ENOUGH)
        check_open(open_ones)
        check_nothing_lost(lab, streams, PODS)
        listing = lab.run(NODE, [f"iptables-{mode.variant}-save"]).stdout
        assert "KUBE-SVCS-" not in listing, "few Services need no tree"
