"""From every mode to every other, while connections are made all the time and others stay open: none is lost.

A proxy in one mode ends and leaves its rules, one in another mode starts. This machine's kernel runs all modes but
ipvs. The guests of `make test` run ipvs, and of the others those that need no nftables. Ipvs with nftables needs the
kernel of the distribution, which is too slow for every run (docs/modes/changing.md has the command). To ipvs from
kube-proxy's own ipvs mode: tests/proxy/kernel/ipvs/takeover.py.
"""

import contextlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.proxy.conformance import own_cgroup
from tests.proxy.conformance.cluster import POD_CIDRS, SERVICE_CIDR
from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.mode_ebpf import EBPF
from tests.proxy.conformance.mode_iptables import IPTABLES
from tests.proxy.conformance.mode_ipvs import IPVS
from tests.proxy.conformance.mode_nftables import NFTABLES
from tests.proxy.conformance.mode_userspace import USERSPACE
from tests.proxy.conformance.packets import PATIENCE
from tests.proxy.conformance.proxy import Proxy
from tests.proxy.conformance.services import LabService
from tests.proxy.conformance.traffic import check_nothing_lost, check_open, pass_some, traffic
from tests.proxy.conformance.underlay import name_no_vip

from vipwire.model.net import Family, Protocol
from vipwire.modes.registry import find_spec
from vipwire.plan.plan import FrontendKind
from vipwire_lab import guest_kernel
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT

EMULATED = guest_kernel.current_guest_kernel() is guest_kernel.GuestKernel.DISTRIBUTION
IN_GUEST = guest_kernel.current_guest_kernel() is not None
pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800 if EMULATED else 280 if IN_GUEST else 190)]

NODE = "node-1"
PODS = [pod for pod in DEFAULT.pods if pod.name in ("pod-1a", "pod-2a")]
PORTS = (Port(80, name="http", node_port=30080), Port(81, 80, Protocol.UDP, name="datagrams", node_port=30081))
WEB = LabService(DEFAULT, "web", 1, PORTS)
KINDS = (
    ("pod-1c", FrontendKind.CLUSTER_IP, 0),
    ("client", FrontendKind.NODE_PORT, 0),
    ("client", FrontendKind.LOAD_BALANCER, 0),
    (NODE, FrontendKind.EXTERNAL_IP, 0),
    ("pod-1b", FrontendKind.CLUSTER_IP, 1),
    ("client", FrontendKind.NODE_PORT, 1),
)
"""Who connects to which frontend, and of which port; the last are UDP, of which nobody sends a lost packet again."""
ENOUGH = 4 if IN_GUEST else 5
"""Connections of each kind on each side of a change of hands, at least."""
INTERVAL = 3.0 if EMULATED else 1.0 if IN_GUEST else 0.02
"""Seconds between connections of a kind: so many that the proxies have most of a guest's CPU."""
UDP_KEPT = ["--conntrack-udp-timeout-stream=900s"] if EMULATED else []
"""A proxy's start in the emulator may take longer than the two minutes that connection tracking keeps a flow."""
WAITING = ["--udp-timeout=10s" if IN_GUEST else "--udp-timeout=2s"]
"""By default a relay forgets a client of UDP after a quarter of a second: Pods of a slow guest answer later."""

LEGACY, NFT = (tuple(mode for mode in IPTABLES if mode.variant == variant) for variant in ("legacy", "nft"))
MODES = {
    None: (*NFTABLES, *IPTABLES, *USERSPACE, *EBPF),
    guest_kernel.GuestKernel.USER_MODE: (*IPVS, *LEGACY, *USERSPACE),
    guest_kernel.GuestKernel.DISTRIBUTION: (*IPVS, *NFTABLES, *NFT, *EBPF),
}[guest_kernel.current_guest_kernel()]
WITH_PROGRAMS = any(mode.has_cgroup for mode in MODES)
PAIRS = [pair for pair in itertools.permutations(MODES, 2) if not IN_GUEST or any(mode in IPVS for mode in pair)]
TRACES: Mapping[str, str] = {
    "nftables": r"table ip6? vipwire",
    "iptables": r":KUBE-(SVC|SEP|EXT|PROXY-CANARY)\S*",
    "userspace": r":KUBE-(PORTALS|NODEPORT)-\S*",
    "ebpf": r"program connect[46]",
    "ipvs": r":KUBE-(NODE-PORT|LOAD-BALANCER|IPVS-FILTER)\b|create KUBE-\S+|inet6? \S+ scope global kube-ipvs0",
}
"""What tells each mode, of all that `everything` lists."""
ENGINES = ("legacy",) if guest_kernel.current_guest_kernel() and not EMULATED else ("nft", "legacy")
IPVS_CHAINS = r":KUBE-(NODE-PORT|LOAD-BALANCER)\b"
"""Those of ipvs mode that go at once."""
HINT = "KUBE-IPTABLES-HINT"
DONE = "found no rules of other modes"


@dataclass
class Stage:
    """The lab, and where its proxies find objects and write their log."""

    lab: Lab
    folder: Path

    def proxy(self, mode: Mode) -> Proxy:
        """Prepare a proxy in a mode."""
        flags = [f"--manifests={self.folder / 'manifests'}", POD_CIDRS, *UDP_KEPT, *(WAITING if mode.relays else [])]
        return Proxy(mode, self.lab, NODE, self.folder, flags, checks="60s")

    def prefer(self, variant: str) -> None:
        """Do what kubelet does where it uses one engine of iptables."""
        for engine in ENGINES:
            how = "-N" if variant == engine or len(ENGINES) == 1 else "-X"
            self.lab.run(NODE, [f"iptables-{engine}", "-w", "5", "-t", "mangle", how, HINT], check=False)

    def everything(self, engines: tuple[str, ...] = ENGINES) -> str:
        """List all that any mode makes, with both engines of iptables or one."""
        tools = [f"{program}-{engine}-save" for engine in engines for program in ("iptables", "ip6tables")]
        commands = [[tool] for tool in tools] + [
            ["nft", "list", "tables"],
            ["ipset", "save"],
            ["ip", "-o", "address"],
            *(
                [[sys.executable, "-m", "tests.proxy.conformance.ebpf_harm", "hooks", "IPv4"]]
                if WITH_PROGRAMS
                else []
            ),
        ]
        said = []
        for command in commands:
            with contextlib.suppress(FileNotFoundError):
                said.append(self.lab.run(NODE, command, check=False).stdout)
        return re.sub(r"kube-ipvs0 +(inet6? \S+) .*", r"\1 scope global kube-ipvs0", "\n".join(said))

    def traces(self, mode: Mode) -> list[str]:
        """Find what a mode has here."""
        engines = (mode.variant,) if mode.variant else ENGINES
        return [found[0] for found in re.finditer(TRACES[mode.name], self.everything(engines))]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("handover")
    (folder / "manifests").mkdir()
    objects = [*(manifests.node_manifest(node) for node in DEFAULT.nodes), SERVICE_CIDR, *WEB.objects(PODS)]
    (folder / "manifests" / "all.yaml").write_text(manifests.dump_yaml(objects))
    with own_cgroup.entered() if WITH_PROGRAMS else contextlib.nullcontext(), Lab(DEFAULT) as lab:
        name_no_vip(lab)
        made = Stage(lab, folder)
        yield made
        made.proxy(MODES[0]).vipwire("cleanup")


def opened(lab: Lab, stack: contextlib.ExitStack, port: int) -> list[Connection]:
    """Open connections in all ways that lead to a port."""
    return [
        stack.enter_context(lab.connect(host, target.address, target.port, target.protocol, timeout=PATIENCE))
        for family in Family
        for host, kind, which in KINDS
        if which == port
        for target in [WEB.at(kind, family, port)]
    ]


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{before}-to-{after}" for before, after in PAIRS])
def test_no_connection_is_lost_from_one_mode_to_another(stage: Stage, before: Mode, after: Mode) -> None:
    lab = stage.lab
    stage.prefer(before.variant)
    old, new = stage.proxy(before), stage.proxy(after)
    kept = before.name in find_spec(after.name).includes
    with contextlib.ExitStack() as stack:
        if (
            guest_kernel.current_guest_kernel()
        ):  # what IPVS has connections for would stay for minutes, whatever comes next
            stack.callback(new.vipwire, "cleanup")
        began = len(old.log)
        old.start()
        stack.callback(old.end_process)
        old.said(began, DONE)
        assert stage.traces(before), "what is looked for is what this mode makes"
        with contextlib.ExitStack() as connections:
            open_ones, flows = (opened(lab, connections, port) for port in range(len(PORTS)))
            streams = connections.enter_context(traffic(lab, WEB, KINDS, interval=INTERVAL))
            assert old.stop() == 0
            pass_some(streams, ENOUGH)
            check_open(flows)  # conntrack has them for two minutes from now on, for they have lasted for some seconds
            stage.prefer(after.variant)
            since = len(new.log)
            new.start()
            stack.callback(new.end_process)
            if not kept:
                new.said(since, "removed another mode's rules", f"left_by={before.name}")
            pass_some(streams, ENOUGH)
            check_open(open_ones)
            check_open(flows)
        check_nothing_lost(lab, streams, PODS, new.log[since:])
        if before in IPVS:  # it takes minutes until IPVS takes the last connection for ended
            new.said(since, "keeping another mode's rules while connections use them", "left_by=ipvs")
            assert not [each for each in stage.traces(before) if re.match(IPVS_CHAINS, each)]
        else:
            new.said(since, DONE)
            assert kept or stage.traces(before) == []
        assert stage.traces(after)
    if guest_kernel.current_guest_kernel():
        assert stage.traces(before) == []
