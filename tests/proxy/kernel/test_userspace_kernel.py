"""Real tools of both variants and a real relay: what is written is read, packets arrive, and nothing is left."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import cidr, endpoint, ip, named, node_plan, port, service, slice_of
from tests.fakes.waiting import until

from vipwire.errors import CommitError
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.model.net import Family, Protocol
from vipwire.model.service import EndpointPort, EndpointSlice, Service, TrafficPolicy
from vipwire.modes.userspace.driver import build_backends, choose_iptables_tool
from vipwire.modes.userspace.entrance import Entrance
from vipwire.modes.userspace.kernel import UserspaceBackend, open_commit_counter
from vipwire.modes.userspace.leftovers import delete_relayed_flows
from vipwire.modes.userspace.names import Front, Key, Value
from vipwire.modes.userspace.settings import Choices
from vipwire.modes.xtables.tool import WAIT_SECONDS, IptablesTool
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.process_lifecycle.file_limits import WANTED
from vipwire.reconcile.reconciler import Reconciler
from vipwire.relay.client import Call, Remote, relay_name
from vipwire.relay.messages import Hello, RelaySettings, Welcome

pytestmark = pytest.mark.kernel

NODE = {Family.IPV4: "192.168.0.2", Family.IPV6: "2001:db8::1"}
VIP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd00:10:96::1"}
EXTERNAL = {Family.IPV4: "198.18.0.1", Family.IPV6: "2001:db8:e::1"}
RANGE = {Family.IPV4: "10.96.0.0/16", Family.IPV6: "fd00:10:96::/112"}
DATAGRAMS = 30053
"""The node port of UDP."""
_OPEN: list[UserspaceBackend] = []


@pytest.fixture(autouse=True)
def _namespace() -> Iterator[None]:
    with own_network():
        for family, bits in ((Family.IPV4, 32), (Family.IPV6, 128)):
            run(f"ip address add {NODE[family]}/{bits} dev lo" + (" nodad" if family is Family.IPV6 else ""))
            for reached in (RANGE[family], EXTERNAL[family]):
                run(f"ip route add {reached} dev lo src {NODE[family]}")
        try:
            yield
        finally:
            while _OPEN:
                _OPEN.pop().close()


def _has_relay(family: Family) -> bool:
    call = Call.find(relay_name(family))
    if call is not None:
        call.close()
    return call is not None


def opened(family: Family, choices: Choices = Choices()) -> UserspaceBackend:  # noqa: B008 - frozen
    backend = build_backends([family], choices, prepare=True)[family]
    _OPEN.append(backend)
    return backend


def planned(family: Family, server: int, name: str = "web", node_port: int = 30080) -> ServicePlan:
    """Plan a Service with a port of each kind whose only endpoint is a server on this node."""
    subject = Service(
        named(name),
        (
            port(80, "http", node_port=node_port),
            port(53, "dns", Protocol.UDP, node_port=DATAGRAMS if node_port else 0),
        ),
        (ip(VIP[family]),),
        external_ips=(ip(EXTERNAL[family]),),
        external_policy=TrafficPolicy.LOCAL,
    )
    wired = [EndpointPort(each.name, each.protocol, server) for each in subject.ports]
    here = endpoint(NODE[family], "node-1")
    return plan_service(_node(family), subject, [slice_of(name, here, family=family, ports=wired)])


def _node(family: Family) -> NodePlan:
    return node_plan(
        family,
        address=ip(NODE[family]),
        addresses=(ip(NODE[family]),),
        service_cidrs=(cidr(RANGE[family]),),
        port_ranges=False,
    )


def ranging(family: Family, first: int, last: int) -> ServicePlan:
    """Plan a Service whose ports, TCP and UDP, are served at a range, by an endpoint on this node that keeps them."""
    node = replace(_node(family), port_ranges=True)
    ports = (port(first, "stream"), port(first, "packet", Protocol.UDP))
    asked = (("vipwire.io/port-range", f"stream={first}-{last},packet={first}-{last}"),)
    subject = Service(named("rtp"), ports, (ip(VIP[family]),), annotations=asked)
    wired = [EndpointPort(each.name, each.protocol, first) for each in ports]
    here = endpoint(NODE[family], "node-1")
    return plan_service(node, subject, [slice_of("rtp", here, family=family, ports=wired)])


def started(family: Family, *plans: ServicePlan, choices: Choices = Choices()) -> Reconciler[Key, Value]:  # noqa: B008
    backend = opened(family, choices)
    reconciler: Reconciler[Key, Value] = Reconciler(backend)
    reconciler.desire_node(backend.render_node(_node(family)))
    for plan in plans:
        reconciler.desire(plan.name, plan)
    return reconciler


@pytest.fixture
def server(family: Family) -> Iterator[socket.socket]:
    kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((NODE[family], 0), family=kind) as listening:
        listening.settimeout(60)
        yield listening


def answers(server: socket.socket, address: str, number: int) -> bool:
    """Connect, and tell whether the server hears it."""
    with socket.create_connection((address, number), timeout=60) as sock:
        accepted, _ = server.accept()
        with accepted:
            sock.sendall(b"ping")
            return accepted.recv(4) == b"ping"


def rules(command: str) -> list[str]:
    """List what a program of iptables prints, without the time."""
    return [line for line in run(command).splitlines() if not line.startswith("#")]


def test_a_relay_that_dies_is_missed_and_another_takes_its_place(family: Family, server: socket.socket) -> None:
    reconciler = started(family, planned(family, server.getsockname()[1]))
    reconciler.sync()
    call = Call.find(relay_name(family))
    assert call is not None
    pid = call.ask_relay(Hello(), Welcome).pid
    call.close()
    os.kill(pid, signal.SIGKILL)
    until(reconciler.verify)
    report = reconciler.sync()
    assert report.added > 0
    assert answers(server, VIP[family], 80)


def test_flows_to_a_relay_that_is_to_end_are_forgotten_and_others_are_not(
    family: Family, server: socket.socket
) -> None:
    run("sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600")
    started(family, planned(family, server.getsockname()[1])).sync()
    with FlowTable() as table, closing(Remote(relay_name(family), RelaySettings(), starts=False)) as remote:
        kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        with socket.socket(kind, socket.SOCK_DGRAM) as other, socket.socket(kind, socket.SOCK_DGRAM) as client:
            other.bind((NODE[family], 0))
            ports = {53: VIP[family], DATAGRAMS: NODE[family], other.getsockname()[1]: NODE[family]}
            for number, address in ports.items():
                client.sendto(b"q", (address, number))
            client_port = client.getsockname()[1]

            def known() -> set[int]:
                flows = table.list_flows(family, Protocol.UDP)
                return {each.destination_port for each in flows if each.source_port == client_port}

            assert known() == ports.keys()
            delete_relayed_flows(family, remote)
            assert known() == {other.getsockname()[1]}


def test_a_taken_node_port_is_said_and_others_are_served(family: Family, server: socket.socket) -> None:
    number = server.getsockname()[1]
    kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.create_server((NODE[family], 0), family=kind) as other:
        bad = planned(family, number, "taken", other.getsockname()[1])
        good = plan_service(_node(family), service("good", VIP[family][:-1] + "9"), [_slice(family, "good", number)])
        reconciler = started(family, bad, good)
        reconciler.sync()
        (name,) = reconciler.isolated
        assert name == named("taken")
        assert "another process uses" in str(reconciler.isolated[name])
        assert answers(server, VIP[family][:-1] + "9", 80)
    reconciler.retry()
    reconciler.sync()
    assert not reconciler.isolated
    assert answers(server, VIP[family], 80)


def test_a_range_without_a_free_port_is_said_and_those_who_have_one_are_served(
    family: Family, server: socket.socket
) -> None:
    """Two ports for three frontends, and one of the two is another process's: one Service is served."""
    number, kind = server.getsockname()[1], socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    addresses = [VIP[family][:-1] + digit for digit in "789"]
    plans = [
        plan_service(
            _node(family), service(f"web-{address[-1]}", address), [_slice(family, f"web-{address[-1]}", number)]
        )
        for address in addresses
    ]
    with socket.create_server((NODE[family], 0), family=kind) as other:
        taken = other.getsockname()[1]
        few = (taken, taken + 1) if taken % 2 else (taken - 1, taken)
        reconciler = started(family, *plans, choices=Choices(ports=few))
        reconciler.sync()
        assert len(reconciler.isolated) == 2
        for reason in map(str, reconciler.isolated.values()):
            assert f"every port of {few[0]}-{few[1]} is in use: widen --proxy-port-range" in reason
        served = [a for a in addresses if named(f"web-{a[-1]}") not in reconciler.isolated]
        assert [answers(server, address, 80) for address in served] == [True]
    _OPEN.pop().close()
    wide = started(family, *plans, choices=Choices(ports=(20000, 20099)))
    wide.sync()
    assert not wide.isolated
    assert all(answers(server, address, 80) for address in addresses)


def _slice(family: Family, name: str, number: int) -> EndpointSlice:
    wired = [EndpointPort("", Protocol.TCP, number)]
    return slice_of(name, endpoint(NODE[family], "node-1"), family=family, ports=wired)


class Obstinate(IptablesTool):
    """Refuses rules for a while."""

    refuses = False

    def restore(self, text: Iterable[str], wait: int = WAIT_SECONDS) -> None:
        if self.refuses:
            raise CommitError("no", transaction="".join(text))
        super().restore(text, wait)


def test_rules_that_are_refused_leave_everything_as_it_was(family: Family, server: socket.socket) -> None:
    tool = Obstinate(family, choose_iptables_tool(family, tried=True).variant, "a test")
    backend = UserspaceBackend(family, Choices(), tool, open_commit_counter([tool]))
    _OPEN.append(backend)
    reconciler: Reconciler[Key, Value] = Reconciler(backend)
    reconciler.desire_node(backend.render_node(_node(family)))
    reconciler.sync()
    before = backend.observe()
    plan = planned(family, server.getsockname()[1])
    tool.refuses = True
    reconciler.desire(plan.name, plan)
    reconciler.sync()
    assert list(reconciler.isolated) == [plan.name]
    tool.refuses = False
    assert backend.observe() == before
    reconciler.retry()
    reconciler.sync()
    assert answers(server, VIP[family], 80)


def test_looking_starts_no_relay(family: Family) -> None:
    backend = build_backends([family], Choices(), prepare=False)[family]
    try:
        assert not any(isinstance(key, Front) for key in backend.observe())
        assert not _has_relay(family)
        assert relay_name(family).endswith(family.value.lower())
    finally:
        backend.close()


def test_flows_to_a_service_are_answered_at_its_own_listeners(family: Family, server: socket.socket) -> None:
    plans = [planned(family, server.getsockname()[1], name, 0) for name in ("web", "other")]
    streams = tuple(each for each in plans[1].frontends if each.key.protocol is not Protocol.UDP)
    plans[1] = replace(plans[1], frontends=streams)
    started(family, *plans).sync()
    (backend,) = _OPEN
    places = backend.relayed(plans)
    assert {address for address, _ in places} == {ip(NODE[family])}
    assert backend.relayed(plans[:1]) == places
    assert backend.relayed(plans[1:]) == frozenset()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_endpoint_is_told_of_the_client_and_the_vip_that_rules_have_translated(
    family: Family, server: socket.socket, version: str
) -> None:
    wanted = service("web", VIP[family], annotations=(("vipwire.io/proxy-protocol", version),))
    number = server.getsockname()[1]
    started(family, plan_service(_node(family), wanted, [_slice(family, "web", number)])).sync()
    with socket.create_connection((VIP[family], 80), timeout=60) as sock:
        sock.sendall(b"GET /")
        client, port = sock.getsockname()[:2]
        accepted, _ = server.accept()
        with accepted:
            accepted.settimeout(60)
            got = b""
            while not got.endswith(b"GET /"):
                piece = accepted.recv(4096)
                assert piece
                got += piece
    if version == "v1":
        name = "TCP4" if family is Family.IPV4 else "TCP6"
        expected = f"PROXY {name} {client} {VIP[family]} {port} 80\r\n".encode()
    else:
        addresses = ip(client) + ip(VIP[family]) + port.to_bytes(2) + (80).to_bytes(2)
        kind = b"\x21\x11" if family is Family.IPV4 else b"\x21\x21"
        expected = b"\r\n\r\n\0\r\nQUIT\n" + kind + len(addresses).to_bytes(2) + addresses
    assert got == expected + b"GET /"


def test_what_the_operator_chooses_reaches_a_relay_that_runs_and_its_limit_is_raised(family: Family) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        for choices in (Choices(udp_timeout=1.5), Choices(ports=(30000, 30999), udp_timeout=0.5)):
            opened(family, choices).observe()
            call = Call.find(relay_name(family))
            assert call is not None
            welcome = call.ask_relay(Hello(), Welcome)
            call.close()
            assert (welcome.settings.ports, welcome.settings.udp_timeout) == (choices.ports, choices.udp_timeout)
            assert resource.prlimit(welcome.pid, resource.RLIMIT_NOFILE)[0] >= min(WANTED, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_socket_of_a_client_reaches_every_port_of_a_range_that_it_names(family: Family) -> None:
    """Its flows have the same ends as the relay sees them, were it not for the kernel, which gives them new ports."""
    kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.socket(kind, socket.SOCK_DGRAM)) for _ in range(3)]
        for each in servers:
            each.bind((NODE[family], 0))
            each.settimeout(60)
        numbers = sorted(each.getsockname()[1] for each in servers)
        started(family, ranging(family, numbers[0], numbers[-1])).sync()
        client = stack.enter_context(socket.socket(kind, socket.SOCK_DGRAM))
        client.settimeout(60)
        for each in servers:
            number = each.getsockname()[1]
            client.sendto(b"to %d" % number, (VIP[family], number))
            data, peer = each.recvfrom(64)
            assert data == b"to %d" % number
            each.sendto(b"from %d" % number, peer)
            answer, sender = client.recvfrom(64)
            assert (answer, sender[:2]) == (b"from %d" % number, (VIP[family], number))


def test_whoever_comes_to_the_listener_of_a_range_past_the_rules_is_refused(
    family: Family, server: socket.socket
) -> None:
    number = server.getsockname()[1]
    plan = ranging(family, number, number + 1)
    started(family, plan).sync()
    assert answers(server, VIP[family], number)
    (wide,) = (each for each in plan.ranges if each.key.protocol is Protocol.TCP)
    listening = _OPEN[-1].port_of(Entrance(wide.frontend, wide).name_front())
    # The reset may come before `connect` has returned.
    with pytest.raises(ConnectionResetError), socket.create_connection((NODE[family], listening), timeout=60) as sock:
        sock.recv(1)


STRANGER = """
import os, socket, sys
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(60)
"""


@pytest.mark.attack
def test_no_other_user_tells_a_relay_what_to_do(family: Family, server: socket.socket) -> None:
    started(family, planned(family, server.getsockname()[1])).sync()
    (path,) = {line.split()[-1] for line in sockets().splitlines() if relay_name(family) in line}
    ask = f"sock.connect('{path}')\nprint(sock.recv(1))"
    done = subprocess.run([sys.executable, "-c", STRANGER + ask], capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr, done.stderr
    assert _has_relay(family)
    assert answers(server, VIP[family], 80)


def sockets() -> str:
    """List the Unix sockets of this network namespace."""
    return Path("/proc/thread-self/net/unix").read_text()


@pytest.mark.attack
def test_who_takes_the_name_that_early_versions_had_neither_stops_nor_hears_anything(family: Family) -> None:
    take = f"sock.bind('\\0{relay_name(family)}'); sock.listen(); print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STRANGER + take], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started(family).sync()
        assert _has_relay(family)
        assert process.stdin is not None
        process.stdin.close()


EARLIER = """
import socket, sys
from vipwire.relay import __main__
sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0" + sys.argv[1])
sock.listen()
__main__.listen_at_name = lambda name: sock
__main__.main()
"""
"""A relay of a version that had abstract sockets."""


def test_the_relay_of_an_earlier_version_leaves_its_place(family: Family, server: socket.socket) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-c", EARLIER, relay_name(family), str(write)]
    subprocess.run(command, pass_fds=(write,), check=True, stdin=subprocess.DEVNULL)
    os.close(write)
    assert os.read(read, 1024) == b"", "it listens"
    os.close(read)
    assert f"@{relay_name(family)}" in sockets()
    started(family, planned(family, server.getsockname()[1])).sync()
    assert answers(server, VIP[family], 80)
    assert f"@{relay_name(family)}" not in sockets()
