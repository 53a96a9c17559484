"""Takeover from kube-proxy's ipvs mode during repeated and lasting connections. In the guest.

The tests write kube-proxy's state with kube-proxy's tools and in its form: see `left_by_kube_proxy`. vipwire runs as
a separate process on the lab's second node, because the first is that of the other tests. Takeovers by other modes,
beyond tests/proxy/conformance/test_handover.py: flows that are silent meanwhile.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.waiting import PATIENCE, until
from tests.proxy.conformance.mode_ipvs import IPVS
from tests.proxy.conformance.mode_userspace import USERSPACE
from tests.proxy.conformance.proxy import Proxy
from tests.proxy.conformance.services import LabService
from tests.proxy.conformance.traffic import check_nothing_lost, check_open, pass_some, traffic

from vipwire.linux.conntrack.flows import FlowTable
from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(280)]

NODE = "node-2"
PODS = [pod for pod in DEFAULT.pods if pod.name in ("pod-1a", "pod-2a")]
PORTS = (Port(80, name="http", node_port=30080), Port(81, 80, Protocol.UDP, name="datagrams", node_port=30081))
WEB = LabService(DEFAULT, "web", 1, PORTS, NODE)
STALE = {Family.IPV4: "10.96.0.99", Family.IPV6: "fd00:10:96::99"}
"""The address of a Service that was deleted between the two proxies."""
FOREIGN = "-A -t 192.168.99.1:7777 -s wlc"
CLIENTS = (
    ("pod-2b", FrontendKind.CLUSTER_IP, 0),
    ("client", FrontendKind.NODE_PORT, 0),
    (NODE, FrontendKind.EXTERNAL_IP, 0),
)
DATAGRAMS = ("pod-2b", FrontendKind.CLUSTER_IP, 1)
ENOUGH = 3
"""Connections of each kind before and after the takeover."""

_TYPES = {
    "LOOP-BACK": "hash:ip,port,ip",
    "LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net",
    "LOAD-BALANCER-SOURCE-IP": "hash:ip,port,ip",
    "IPVS-IPS": "hash:ip",
    **dict.fromkeys(
        ("NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "HEALTH-CHECK-NODE-PORT"),
        "bitmap:port",
    ),
    **dict.fromkeys(
        (
            *("CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL"),
            *("LOAD-BALANCER-FW", "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH"),
        ),
        "hash:ip,port",
    ),
}
_RULES = """
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-PROXY-FIREWALL -m set --match-set {set}LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set {set}LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set {set}CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set {set}EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set {set}IPVS-IPS dst -j REJECT
-A KUBE-IPVS-OUT-FILTER -s {stale} -m ipvs --vaddr {stale} --vproto 6 --vport 80 -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s {loopback} -j RETURN
-A KUBE-SERVICES -m set --match-set {set}LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES ! -s {pods} -m set --match-set {set}CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set {set}EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set {set}CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p tcp -m set --match-set {set}NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p udp -m set --match-set {set}NODE-PORT-UDP dst -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m set --match-set {set}LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
"""


def set_name(family: Family, name: str) -> str:
    return f"KUBE-{name}" if family is Family.IPV4 else f"KUBE-6-{name}"[:31]


def places(family: Family) -> Iterator[tuple[str, str, str]]:
    """Yield set, address and port, as ipset writes them, of each frontend except node ports."""
    for kind, name in (
        (FrontendKind.CLUSTER_IP, "CLUSTER-IP"),
        (FrontendKind.EXTERNAL_IP, "EXTERNAL-IP"),
        (FrontendKind.LOAD_BALANCER, "LOAD-BALANCER"),
    ):
        for port in PORTS:
            yield name, WEB.address(kind, family), f"{port.protocol.label}:{port.port}"
    yield "CLUSTER-IP", STALE[family], "tcp:80"


def ipset_lines(family: Family) -> Iterator[str]:
    four = family is Family.IPV4
    for name, kind in _TYPES.items():
        how = (
            "range 0-65535"
            if kind == "bitmap:port"
            else f"family inet{'' if four else '6'} hashsize 1024 maxelem 65536"
        )
        yield f"create {set_name(family, name)} {kind} {how}"
    for name, address, port in places(family):
        yield f"add {set_name(family, name)} {address},{port}"
    yield from {f"add {set_name(family, 'IPVS-IPS')} {address}": None for _, address, _ in places(family)}
    yield f"add {set_name(family, 'NODE-PORT-TCP')} 30080"
    yield f"add {set_name(family, 'NODE-PORT-UDP')} 30081"
    here = next(each for each in PODS[1].addresses if (":" in each) is not four)
    yield from (f"add {set_name(family, 'LOOP-BACK')} {here},{protocol}:80,{here}" for protocol in ("tcp", "udp"))


def ipvsadm_lines(family: Family, nodes: list[str]) -> Iterator[str]:
    def written(address: str, port: object) -> str:
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    servers = [(address, *port.split(":")) for _, address, port in places(family) if address != STALE[family]]
    servers += [(address, *port) for address in nodes for port in (("tcp", "30080"), ("udp", "30081"))]
    for address, protocol, port in servers:
        flag = f"-{protocol[0]}"
        yield f"-A {flag} {written(address, port)} -s rr"
        for pod in PODS:
            real = next(each for each in pod.addresses if (":" in each) is (family is Family.IPV6))
            yield f"-a {flag} {written(address, port)} -r {written(real, 80)} -m -w 1"
    yield f"-A -t {written(STALE[family], 80)} -s rr"


def left_by_kube_proxy(lab: Lab) -> None:
    """Write kube-proxy's ipvs state: settings, device, ipsets, chains, virtual servers."""
    script = ["sysctl -qw net.ipv4.vs.conntrack=1", "ip link add kube-ipvs0 type dummy"]
    for family in Family:
        four = family is Family.IPV4
        own = [each for each in lab.find_host(NODE).addresses if (":" in each) is not four]
        vips = dict.fromkeys(address for _, address, _ in places(family))
        script += [f"ip address add {vip}/{family.bits} dev kube-ipvs0{'' if four else ' nodad'}" for vip in vips]
        rules = _RULES.format(
            set="KUBE-" if four else "KUBE-6-",
            stale=STALE[family],
            loopback="127.0.0.0/8" if four else "::1/128",
            pods="10.244.0.0/16" if four else "fd00:10:244::/48",
        )
        tool = f"ip{'' if four else '6'}tables-legacy-restore --noflush"
        texts = {
            "ipset restore": ipset_lines(family),
            tool: rules.strip().splitlines(),
            "ipvsadm -R": ipvsadm_lines(family, own),
        }
        script += [f"{program} <<'END'\n" + "\n".join(lines) + "\nEND" for program, lines in texts.items()]
    script.append(f"ipvsadm {FOREIGN}")
    lab.run(NODE, ["sh", "-ec", "\n".join(script)])


def servers(lab: Lab) -> set[str]:
    return set(lab.run(NODE, ["ipvsadm", "-Sn"]).stdout.splitlines())


def check_counts(proxy: Proxy, flags: list[str]) -> None:
    """Check that /metrics and `vipwire status` have the endpoints' open connections."""
    pattern = re.compile(r'^vipwire_endpoint_open_connections\{.*state="active"\} (\S+)$', re.MULTILINE)

    def counted() -> bool:
        numbers = pattern.findall(proxy.page("/metrics", 10249).body)
        return sum(map(float, numbers)) >= len(Family) * len(CLIENTS)

    until(counted, "open connections are counted")
    who = ("--proxy-mode=ipvs", f"--hostname-override={NODE}", *flags)
    assert "open)" in proxy.vipwire("status", "default/web", *who)


def test_what_kube_proxy_has_left_is_taken_over_and_no_connection_is_lost(lab: Lab, tmp_path: Path) -> None:
    objects = [*(manifests.node_manifest(node) for node in DEFAULT.nodes), *WEB.objects(PODS)]
    (tmp_path / "all.yaml").write_text(manifests.dump_yaml(objects))
    flags = [
        f"--manifests={tmp_path / 'all.yaml'}",
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
        "--nodeport-addresses=",
        "--counters=endpoints",
    ]
    proxy = Proxy(IPVS[0], lab, NODE, tmp_path, flags, checks="60s")
    left_by_kube_proxy(lab)
    before = servers(lab)
    with contextlib.ExitStack() as stack:
        open_ones = [
            stack.enter_context(lab.connect(host, at.address, at.port, timeout=PATIENCE))
            for host, kind, port in CLIENTS
            for at in (WEB.at(kind, family, port) for family in Family)
        ]
        streams = stack.enter_context(traffic(lab, WEB, (*CLIENTS, DATAGRAMS), interval=1.0))
        pass_some(streams, ENOUGH)
        proxy.start()
        stack.callback(proxy.end_process)
        proxy.said(0, "found no rules of other modes")
        pass_some(streams, ENOUGH)
        check_counts(proxy, flags)
        check_open(open_ones)
    check_nothing_lost(lab, streams, PODS)
    assert {line for line in before - servers(lab) if "-A" in line} == {
        f"-A -t {STALE[Family.IPV4]}:80 -s rr",
        f"-A -t [{STALE[Family.IPV6]}]:80 -s rr",
    }, "what a Service needs was kept, the rest is gone"
    assert servers(lab) <= before
    assert FOREIGN in servers(lab)
    for program in ("iptables", "ip6tables"):
        assert "KUBE-IPVS-OUT-FILTER" not in lab.run(NODE, [f"{program}-legacy-save"]).stdout
    proxy.vipwire("cleanup")
    assert servers(lab) == {FOREIGN}, "nobody's set names it"
    left = "".join(
        lab.run(NODE, command).stdout for command in (["ipset", "save"], ["iptables-legacy-save"], ["ip", "link"])
    )
    assert "KUBE" not in left
    assert "kube-ipvs0" not in left
    lab.run(NODE, ["ipvsadm", "-C"])


def remembered(lab: Lab, port: int) -> int:
    """Return the number of IPVS' connections for a node port of UDP."""
    lines = lab.run(NODE, ["cat", "/proc/net/ip_vs_conn"]).stdout.splitlines()[1:]
    return sum(fields[0] == "UDP" and int(fields[4], 16) == port for fields in map(str.split, lines))


def test_a_flow_that_was_silent_for_longer_than_is_tracked_is_answered_after_ipvs(lab: Lab, tmp_path: Path) -> None:
    """IPVS remembers it for five minutes, connection tracking for half a minute: here it is told to forget it."""
    objects = [*(manifests.node_manifest(node) for node in DEFAULT.nodes), *WEB.objects(PODS)]
    (tmp_path / "all.yaml").write_text(manifests.dump_yaml(objects))
    flags = [f"--manifests={tmp_path / 'all.yaml'}", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"]
    old, new = (Proxy(mode, lab, NODE, tmp_path, flags, checks="60s") for mode in (*IPVS, *USERSPACE))
    port = WEB.node_port(1)
    with contextlib.ExitStack() as stack:
        stack.callback(new.vipwire, "cleanup")
        old.start()
        stack.callback(old.end_process)
        targets = [WEB.at(FrontendKind.NODE_PORT, family, 1) for family in Family for _ in PODS]
        flows = [
            stack.enter_context(lab.connect("client", at.address, at.port, at.protocol, timeout=PATIENCE))
            for at in targets
        ]
        assert {each.answer.pod for each in flows} == {pod.name for pod in PODS}, "one of them is on another node"
        assert old.stop() == 0
        began = len(new.log)
        new.start()
        stack.callback(new.end_process)
        new.said(began, "removed another mode's rules", "left_by=ipvs")
        assert remembered(lab, port) >= len(flows)
        with lab.enter_namespace(NODE), FlowTable() as table:
            for family in Family:
                table.delete(list(table.list_flows(family, Protocol.UDP, port)))
        check_open(flows)
