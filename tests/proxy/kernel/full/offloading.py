"""Connections that bypass the rules: `--offload-packet-threshold` under Debian's kernel, which has flowtables.

By hand: `python -m vipwire_lab.guest_kernel --full --memory 1024M -- python -m pytest` with this file. One process
owns all sockets and rules, which is quick in an emulator. The conformance suite can run with the flag too: `… --
python -m pytest tests/proxy/conformance -k offload`.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bench.datapath import inside
from tests.fakes.own_network import run
from tests.fakes.values import endpoint, node_plan, port, service, slice_of
from tests.fakes.waiting import until

from vipwire.config.configuration import Config
from vipwire.config.sections import NFTables
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.netlink.conntrack import STATUS_OFFLOADED, Flow
from vipwire.model.net import Family, Protocol
from vipwire.model.service import EndpointPort
from vipwire.modes.nftables.driver import DRIVER
from vipwire.modes.nftables.explain.explainer import INSPECTION
from vipwire.modes.nftables.table import fastpath
from vipwire.plan.planner import Planner
from vipwire.reconcile.counts import AdoptsSettings, Measure
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.reconciler import Reconciler
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT, Pod

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(900)]

THRESHOLD = 20
ASKED = replace(Config(), nftables=NFTables(offload_packet_threshold=THRESHOLD))
CLIENT = {Family.IPV4: ("10.244.0.2", "10.244.0.1", 24), Family.IPV6: ("fd00:10:244::2", "fd00:10:244::1", 64)}
SERVER = {Family.IPV4: ("10.245.0.2", "10.245.0.1", 24), Family.IPV6: ("fd00:10:245::2", "fd00:10:245::1", 64)}
OTHER = {Family.IPV4: "10.245.0.3", Family.IPV6: "fd00:10:245::3"}
VIP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd00:10:96::1"}
NODE_PORT = 30080
ENDPOINT_PORTS = (EndpointPort("tcp", Protocol.TCP, 8080), EndpointPort("udp", Protocol.UDP, 8080))
RESET = struct.pack("ii", 1, 0)
FAMILIES = pytest.mark.parametrize("family", Family)


def flag(family: Family) -> str:
    return "-4" if family is Family.IPV4 else "-6"


@dataclass
class Line:
    """One family's rules and their sources, written by the current backend."""

    family: Family
    backend: Any
    reconciler: Reconciler[Any, Any]
    planner: Planner
    store: Store = field(default_factory=Store)

    def sync(self) -> None:
        """Do as the proxy does: plan, compare, commit, then housekeep."""
        for name, change in self.planner.update(self.store.take_touched(), self.store.view).items():
            self.reconciler.desire(name, change.new)
        self.reconciler.verify()
        self.reconciler.sync()
        self.backend.housekeep()

    def served_by(self, *addresses: str) -> None:
        made = slice_of("web", *map(endpoint, addresses), family=self.family, ports=ENDPOINT_PORTS)
        self.store.apply(Upserted(made))
        self.sync()


@dataclass
class Node:
    """A node between a client and a server, each in a network namespace; this process is in the node's."""

    client: int
    listener: socket.socket
    lines: dict[Family, Line] = field(default_factory=dict)

    def program(self, config: Config) -> None:
        for line in self.lines.values():
            line.backend.close()
        for family, backend in DRIVER.build(config, Family, prepare=True).items():
            reconciler, planner = Reconciler[Any, Any](backend), Planner(node_plan(family))
            reconciler.desire_node(backend.render_node(planner.node))
            line = self.lines[family] = Line(family, backend, reconciler, planner)
            ports = (port(80, "tcp", node_port=NODE_PORT), port(80, "udp", Protocol.UDP))
            line.store.apply(Upserted(service("web", VIP[family], *ports)))
            line.served_by(SERVER[family][0])

    @contextmanager
    def connected(self, family: Family, address: str = "", number: int = 80) -> Iterator["Talk"]:
        """Open a connection from the client to the Service for the block."""
        kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        with inside(self.client):
            near = socket.socket(kind)
        with closing(near):
            near.settimeout(60)
            near.connect((address or VIP[family], number))
            far, _ = self.listener.accept()
            with closing(far):
                far.settimeout(60)
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                yield Talk(family, near, far)


@dataclass
class Talk:
    """A connection with both ends in this process."""

    family: Family
    near: socket.socket
    far: socket.socket

    def turn(self, times: int = 1) -> None:
        """Send in both directions and compare, also where data takes several packets."""
        for number in range(times):
            said = os.urandom(4000 if number % 5 == 4 else 40)
            for one, other in ((self.near, self.far), (self.far, self.near)):
                one.sendall(said)
                assert received(other, len(said)) == said

    @property
    def flow(self) -> Flow:
        number = self.near.getsockname()[1]
        (found,) = (each for each in flows(self.family, Protocol.TCP) if each.source_port == number)
        return found

    def offloaded(self) -> bool:
        return bool(self.flow.status & STATUS_OFFLOADED)

    @property
    def accounted(self) -> int:
        """The number of the client's packets that conntrack counted."""
        name, number = self.family.value.lower(), self.near.getsockname()[1]
        listed = run(f"conntrack -L -f {name} -p tcp --sport {number}")
        return int(next(word for word in listed.split() if word.startswith("packets=")).partition("=")[2])

    def carried(self) -> None:
        """Send until a flowtable carries it, which must happen soon."""
        self.turn(2 * THRESHOLD)
        assert self.offloaded()


def received(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += end.recv(size - len(found))
    return found


def flows(family: Family, protocol: Protocol) -> list[Flow]:
    with FlowTable() as table:
        return list(table.list_flows(family, protocol))


def devices(family: Family = Family.IPV4) -> set[str]:
    """Return the interfaces of vipwire's flowtable, by nft."""
    word = "ip" if family is Family.IPV4 else "ip6"
    listed = json.loads(run("nft -j list flowtables"))["nftables"]
    tables = (each["flowtable"] for each in listed if "flowtable" in each)
    names: str | list[str] = next((each.get("dev", []) for each in tables if each["family"] == word), [])
    return {names} if isinstance(names, str) else set(names)


def all_but_loopback() -> set[str]:
    """Return the node's interfaces; a kernel with a tunnel module has one in each namespace."""
    return {each["ifname"] for each in json.loads(run("ip -j link"))} - {"lo"}


def places() -> str:
    return f"at {len(all_but_loopback())} interfaces"


@contextmanager
def namespace(name: str) -> Iterator[int]:
    """Make a named network namespace; a guest has no other users of the name."""
    run(f"ip netns add {name}")
    run(f"ip -n {name} link set lo up")
    made = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield made
    finally:
        os.close(made)
        run(f"ip netns delete {name}")


def join(host: str, near: str, ways: dict[Family, tuple[str, str, int]]) -> None:
    """Make the node, by its interface `near`, a host's router."""
    run(f"ip -n {host} link add eth0 type veth peer name {near} netns node")
    for where, device in ((host, "eth0"), ("node", near)):
        run(f"ip -n {where} link set {device} up")
    for family, (address, gateway, length) in ways.items():
        nodad = " nodad" * (family is Family.IPV6)
        run(f"ip {flag(family)} -n {host} addr add {address}/{length} dev eth0{nodad}")
        run(f"ip {flag(family)} -n node addr add {gateway}/{length} dev {near}{nodad}")
        run(f"ip {flag(family)} -n {host} route add default via {gateway}")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with ExitStack() as stack:
        middle, client, server = (stack.enter_context(namespace(name)) for name in ("node", "client", "server"))
        join("client", "c", CLIENT)
        join("server", "s", SERVER)
        run("ip -n server addr add 10.245.0.3/24 dev eth0")
        with inside(server):
            listener = stack.enter_context(
                socket.create_server(("::", 8080), family=socket.AF_INET6, dualstack_ipv6=True)
            )
        stack.enter_context(inside(middle))
        run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        made = Node(client, listener)
        made.program(ASKED)
        yield made
        for line in made.lines.values():
            line.backend.close()


@FAMILIES
@pytest.mark.parametrize("at", ["Service", "node port"])
def test_an_established_connection_is_carried_past_the_rules(node: Node, family: Family, at: str) -> None:
    where = ("", 80) if at == "Service" else (CLIENT[family][1], NODE_PORT)
    with node.connected(family, *where) as talk:
        talk.turn(2)
        assert not talk.offloaded(), "a short connection is none of a flowtable's"
        talk.carried()
        before = talk.accounted
        talk.turn(THRESHOLD)
        assert talk.accounted >= before + THRESHOLD, "connection tracking counts on"
        assert talk.offloaded()


def test_packets_of_a_carried_connection_meet_no_rule(node: Node) -> None:
    """Somebody's rule counts what is forwarded: nothing, while hundreds of packets pass."""
    run("nft -f -", "table ip theirs { chain c { type filter hook forward priority -300; counter; }; }")
    with node.connected(Family.IPV4) as talk:
        talk.carried()
        before = run("nft list table ip theirs")
        talk.turn(5 * THRESHOLD)
        assert run("nft list table ip theirs") == before
    run("nft delete table ip theirs")


@FAMILIES
def test_connections_are_counted_once_whoever_carries_them(node: Node, family: Family) -> None:
    line = node.lines[family]

    def counted() -> int:
        found = line.backend.read_counts(line.planner.plans.values(), endpoints=False)
        return sum(found.get(Measure.CONNECTIONS, {}).values())

    before = counted()
    with node.connected(family) as talk:
        talk.carried()
        assert counted() == before + 1
    said = [each.said for each in INSPECTION.standing(Config()) if family.value in each.said]
    assert said == [f"{family.value}: {places()}, 0 connections now"], "a reset has ended it"


def test_status_says_how_many_are_carried(node: Node) -> None:
    with node.connected(Family.IPV4) as one, node.connected(Family.IPV4) as other:
        one.carried()
        other.carried()
        said = [each.said for each in INSPECTION.standing(Config())]
        assert f"IPv4: {places()}, 2 connections now" in said
    assert "this kernel can offload connections" in [each.said for each in INSPECTION.remarks(ASKED)]


def test_a_connection_stays_with_its_endpoint_and_new_ones_go_elsewhere(node: Node) -> None:
    line = node.lines[Family.IPV4]
    with node.connected(Family.IPV4) as talk:
        talk.carried()
        line.served_by(OTHER[Family.IPV4])
        talk.turn(THRESHOLD)
        assert talk.offloaded()
        with node.connected(Family.IPV4) as fresh:
            assert fresh.far.getsockname()[0] == f"::ffff:{OTHER[Family.IPV4]}"
    line.served_by(SERVER[Family.IPV4][0])


def test_udp_is_never_carried_so_that_its_flow_can_be_deleted(node: Node) -> None:
    with inside(node.client):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with closing(client), ExitStack() as stack:
        client.settimeout(60)
        client.connect((VIP[Family.IPV4], 80))
        home = os.open("/run/netns/server", os.O_RDONLY)
        stack.callback(os.close, home)
        with inside(home):
            server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            server.bind(("", 8080))
        server.settimeout(60)
        for _ in range(2 * THRESHOLD):
            client.send(b"question")
            _, whom = server.recvfrom(100)
            server.sendto(b"answer", whom)
            assert client.recv(100) == b"answer"
        (flow,) = (each for each in flows(Family.IPV4, Protocol.UDP) if each.destination_port == 80)
        assert not flow.status & STATUS_OFFLOADED
        with FlowTable() as table:
            assert table.delete([flow]) == 1
        client.send(b"again")
        assert server.recvfrom(100)[0] == b"again"


def test_the_flowtable_is_at_every_interface_also_at_one_that_comes(node: Node) -> None:
    backends = [line.backend for line in node.lines.values()]
    interfaces = all_but_loopback()
    assert devices() == devices(Family.IPV6) == interfaces
    for _ in range(2):  # the second one is a new interface of the same name
        run("ip link add new type veth peer name itself")
        for backend in backends:
            backend.housekeep()
        assert devices() == devices(Family.IPV6) == {*interfaces, "new", "itself"}
        run("ip link delete new")
        assert devices() == interfaces


@pytest.mark.parametrize(
    "harm",
    [
        "delete table ip vipwire",
        "flush ruleset",
        "flush chain ip vipwire filter-forward-offload",
        "delete flowtable ip vipwire fastpath { hook ingress priority 0; devices = { c }; }",
        "add flowtable ip vipwire another { hook ingress priority 5; devices = { lo }; }",
    ],
)
def test_what_somebody_has_changed_is_put_back(node: Node, harm: str) -> None:
    with node.connected(Family.IPV4) as talk:
        talk.carried()
        run("nft -f -", harm)
        for line in node.lines.values():
            line.sync()
        assert devices() == devices(Family.IPV6) == all_but_loopback()
        assert "another" not in run("nft list flowtables")
        talk.carried()


def test_a_flowtable_at_another_place_is_replaced(node: Node) -> None:
    run("nft delete table ip vipwire")
    run("nft -f -", "table ip vipwire { flowtable fastpath { hook ingress priority 7; }; }")
    node.lines[Family.IPV4].sync()
    assert "priority 7" not in run("nft list flowtables")
    with node.connected(Family.IPV4) as talk:
        talk.carried()


@pytest.mark.usefixtures("node")
def test_what_looks_knows_what_the_proxy_does() -> None:
    with closing(DRIVER.build(Config(), (Family.IPV4,), prepare=False)[Family.IPV4]) as looking:
        assert isinstance(looking, AdoptsSettings)
        looking.adopt_settings(frozenset())
        rendered = looking.render_node(node_plan())
        assert rendered.items() <= looking.observe().items(), "no difference"
        assert fastpath.KEY in rendered
        explainer = INSPECTION.explainer(Family.IPV4, looking)
        assert explainer is not None
        delta = "\n".join(explainer.write_script(Delta(added=dict(rendered))))
    assert "add flowtable ip vipwire fastpath { hook ingress priority 0; counter; }" in delta


def test_a_restart_a_change_of_the_flag_and_the_end_lose_no_connection(node: Node) -> None:
    with node.connected(Family.IPV4) as talk:
        talk.carried()
        node.program(ASKED)
        talk.turn()
        assert talk.offloaded(), "a new proxy finds what the old one has left"
        node.program(Config())
        assert "flowtable" not in run("nft list ruleset")
        talk.turn(THRESHOLD)
        assert not talk.offloaded()
        node.program(ASKED)
        talk.carried()


def test_cleanup_leaves_nothing(node: Node) -> None:
    for family, line in node.lines.items():
        assert line.backend.delete(), family
    assert "vipwire" not in run("nft list ruleset")
    assert not [each.said for each in INSPECTION.standing(Config())]
    node.program(ASKED)


def vipwire(*arguments: str) -> str:
    """Run a command of vipwire in the node's namespace; return its output."""
    done = subprocess.run(
        ["nsenter", "--net=/run/netns/node", sys.executable, "-m", "vipwire", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", ["nftables", "ebpf"])
def test_a_whole_proxy_offloads_and_status_knows_it(node: Node, tmp_path: Path, mode: str) -> None:
    for line in node.lines.values():
        line.backend.delete()
    if mode == "ebpf":
        run("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    pods = [Pod("server", "node-2", (SERVER[Family.IPV4][0],), (8080,))]
    objects = manifests.build_service_with_slices(DEFAULT, "web", [VIP[Family.IPV4]], [Port(80, 8080)], pods)
    (tmp_path / "all.yaml").write_text(manifests.dump_yaml(objects))
    source = [f"--manifests={tmp_path}", "--hostname-override=node-1", f"--state-dir={tmp_path / 'state'}"]
    flags = [f"--proxy-mode={mode}", *source, "--cluster-cidr=10.244.0.0/16", "--oom-score-adj=0"]
    flags += ["--ebpf-clients=node"] if mode == "ebpf" else []
    command = [sys.executable, "-m", "vipwire", "proxy", *flags, f"--offload-packet-threshold={THRESHOLD}"]
    with subprocess.Popen(["nsenter", "--net=/run/netns/node", *command], stderr=subprocess.PIPE, text=True) as proxy:
        try:
            until(lambda: devices() == all_but_loopback(), lambda: f"{devices()} are all interfaces", 300.0)
            run("ip link add new type veth peer name itself")
            until(lambda: devices() == all_but_loopback(), "what has come is hooked", 60.0)
            with node.connected(Family.IPV4) as talk:
                talk.carried()
                said = vipwire("status", *flags)
                assert f"IPv4: {places()}, " in said, said  # so slow an emulator may have taken 30 s
                assert "IPv4: as planned" in said, said
                assert "IPv6: as planned" in said, said
                proxy.send_signal(signal.SIGTERM)
                assert proxy.wait(120) == 0
        finally:
            proxy.kill()
            said = proxy.stderr.read() if proxy.stderr else ""
            subprocess.run(["ip", "link", "delete", "new"], check=False)
            vipwire("cleanup")
    assert "Traceback" not in said, said
    node.program(ASKED)
