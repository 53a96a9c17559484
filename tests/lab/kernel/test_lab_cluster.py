"""The lab on the real kernel: who reaches whom, seen as whom; what a failed build and a finished lab leave behind."""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PosixPath

import pytest
from tests.proxy.conformance.lost import traces

from vipwire.errors import DecodeError
from vipwire.model.net import Family, Protocol
from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Continuous
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target, count_pods
from vipwire_lab.cluster.probe import probe
from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId
from vipwire_lab.namespaces.topology import DEFAULT, make_topology

pytestmark = pytest.mark.kernel

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
PROTOCOLS = pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
VIPS = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::10"}
AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
NOBODY = {Family.IPV4: "10.244.1.99", Family.IPV6: "fd00:10:244:1::99"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as built:
        yield built


def only(results: list[ProbeResult]) -> ProbeResult:
    assert len(results) == 1
    return results[0]


@FAMILIES
@pytest.mark.parametrize(
    ("client", "server"),
    [
        ("pod-1a", "pod-1b"),
        ("pod-1a", "pod-2a"),
        ("pod-2b", "pod-1c"),
        ("node-1", "pod-1a"),
        ("node-1", "pod-2a"),
        ("client", "pod-1a"),
        ("client", "pod-2a"),
    ],
)
def test_a_pod_is_reached_without_nat(lab: Lab, family: Family, client: str, server: str) -> None:
    for protocol in Protocol:
        result = only(lab.probe(client, lab.address_of(server, family), 80, protocol))
        assert result.pod == server, f"{protocol.name}: {result}"
        assert result.saw == lab.address_of(client, family)
        assert result.answer is not None
        assert result.answer.saw == result.source
        assert (result.answer.local.address, result.answer.local.port) == (lab.address_of(server, family), 80)
        assert result.answer.node == lab.topology.node_of(server)
        assert result.answer.protocol == protocol.name


def nft_vip(vip: str, pod: str, protocol: Protocol = Protocol.TCP) -> list[str]:
    """Write the rules that a hairpin takes: DNAT on the node, and masquerade of a Pod that talks to itself."""
    family, service, source = ("ip6", f"[{pod}]:80", pod) if ":" in vip else ("ip", f"{pod}:80", pod)
    rules = (
        f"add table {family} t;"
        f"add chain {family} t pre {{ type nat hook prerouting priority -100; }};"
        f"add rule {family} t pre {family} daddr {vip} {protocol.label} dport 80 dnat to {service};"
        f"add chain {family} t post {{ type nat hook postrouting priority 100; }};"
        f"add rule {family} t post {family} saddr {source} {family} daddr {source} masquerade"
    )
    return ["nft", rules]


@FAMILIES
@PROTOCOLS
def test_a_pod_reaches_itself_through_its_node(lab: Lab, family: Family, protocol: Protocol) -> None:
    pod = lab.address_of("pod-1a", family)
    lab.run("node-1", nft_vip(VIPS[family], pod, protocol))
    try:
        result = only(lab.probe("pod-1a", VIPS[family], 80, protocol))
        assert result.pod == "pod-1a", str(result)
        assert result.saw == lab.address_of("node-1", family)
        results = lab.probe("client", VIPS[family], 80, protocol, count=20)
        assert count_pods(results) == {"pod-1a": 20}
        assert {each.saw for each in results} == {lab.address_of("client", family)}
    finally:
        lab.run("node-1", ["nft", f"delete table {'ip6' if family is Family.IPV6 else 'ip'} t"])


@FAMILIES
def test_a_forgotten_masquerade_breaks_a_connection_to_a_remote_pod(lab: Lab, family: Family) -> None:
    lab.run("node-1", nft_vip(VIPS[family], lab.address_of("pod-2a", family)))
    try:
        assert only(lab.probe("client", VIPS[family], 80, timeout=0.2)).outcome is not Outcome.ANSWERED
    finally:
        lab.run("node-1", ["nft", f"delete table {'ip6' if family is Family.IPV6 else 'ip'} t"])


def told(lab: Lab, host: str, target: Target) -> set[Outcome]:
    """Connect until something is heard: a router tells one host five times, then once a second, that it has no route.

    That is net.ipv4.route.error_burst and error_cost, which no namespace has of its own. UDP asks once.
    """
    heard = set[Outcome]()
    for _ in range(15):
        heard.add(only(lab.probe(host, target.address, target.port, target.protocol, timeout=2)).outcome)
        if heard != {Outcome.TIMED_OUT}:
            break
    return heard - {Outcome.TIMED_OUT}


@FAMILIES
@PROTOCOLS
@pytest.mark.parametrize("host", ["client", "pod-1a", "node-1", "pod-2a"])
def test_closed_dropped_rejected_and_unknown_are_told_apart(
    lab: Lab, family: Family, protocol: Protocol, host: str
) -> None:
    pod = lab.address_of("pod-1b", family)
    assert only(lab.probe(host, pod, 81, protocol)).outcome is Outcome.REFUSED
    assert only(lab.probe(host, NOBODY[family], 80, protocol, timeout=0.1)).outcome is Outcome.TIMED_OUT
    assert told(lab, host, Target(VIPS[family], 80, protocol)) == {Outcome.UNREACHABLE}
    rules = "add table inet r; add chain inet r in { type filter hook input priority 0; };"
    rules += (
        f"add rule inet r in {protocol.label} dport 80 reject; add rule inet r in {protocol.label} dport 8080 drop"
    )
    lab.run("pod-1b", ["nft", rules])
    try:
        assert only(lab.probe(host, pod, 80, protocol)).outcome is Outcome.REFUSED
        assert only(lab.probe(host, pod, 8080, protocol, timeout=0.1)).outcome is Outcome.TIMED_OUT
    finally:
        lab.run("pod-1b", ["nft", "delete table inet r"])


@FAMILIES
def test_a_hundred_rejections_are_a_hundred_rejections(lab: Lab, family: Family) -> None:
    results = lab.probe("client", lab.address_of("node-1", family), 9, Protocol.UDP, count=100)
    assert count_pods(results) == {"(refused)": 100}


@FAMILIES
def test_a_client_may_choose_its_address_and_port(lab: Lab, family: Family) -> None:
    second = [each for each in lab.find_host("client").addresses if (":" in each) is (family is Family.IPV6)][1]
    results = lab.probe("client", lab.address_of("pod-1a", family), 80, source=second, source_port=4711, count=3)
    assert [(result.saw, result.answer and result.answer.saw.port) for result in results] == [(second, 4711)] * 3


def test_a_foreign_source_address_is_an_error_and_not_an_outcome(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"cannot probe from 10\.9\.9\.9"):
        lab.probe("client", "10.244.1.11", 80, source="10.9.9.9")


@FAMILIES
def test_a_node_can_serve_for_a_host_network_pod_on_each_address(lab: Lab, family: Family) -> None:
    lab.start_echo_servers("node-2", [9000])
    try:
        for address in lab.find_host("node-2").addresses:
            if (":" in address) is not (family is Family.IPV6):
                continue
            for protocol in Protocol:
                result = only(lab.probe("client", address, 9000, protocol))
                assert result.pod == "node-2", f"{protocol.name}: {result}"
                assert result.answer is not None
                assert result.answer.local.address == address
        with pytest.raises(LabError, match="node-2 cannot listen"):
            lab.start_echo_servers("node-2", [9000])
    finally:
        lab.stop_echo_servers("node-2")
    assert only(lab.probe("client", lab.address_of("node-2", family), 9000)).outcome is Outcome.REFUSED


def test_a_pod_goes_and_comes(lab: Lab) -> None:
    with lab.connect("client", "10.244.1.13", 8080) as connection:
        assert connection.answer.pod == "pod-1c"
        lab.stop_echo_servers("pod-1c", [8080])
        with pytest.raises(ConnectionResetError):
            connection.exchange(b"are you there?\n")
    assert only(lab.probe("client", "10.244.1.13", 8080)).outcome is Outcome.REFUSED
    assert only(lab.probe("client", "10.244.1.13", 80)).outcome is Outcome.ANSWERED
    lab.stop_echo_servers("pod-1c")
    lab.start_pod("pod-1c")
    assert only(lab.probe("client", "10.244.1.13", 8080)).pod == "pod-1c"


@FAMILIES
def test_a_long_connection_echoes_whatever_its_size(lab: Lab, family: Family) -> None:
    data = b"0123456789abcdef" * 4000
    with lab.connect("client", lab.address_of("pod-2a", family), 80) as connection:
        for _ in range(20):
            assert connection.exchange(data) == data


def test_a_pod_answers_http(lab: Lab) -> None:
    answer = json.loads(lab.run("client", ["curl", "-sS", "http://10.244.1.11/"]).stdout)
    assert answer["pod"] == "pod-1a"
    assert answer["saw"]["address"] == "203.0.113.2"
    answer = json.loads(lab.run("client", ["curl", "-sS", "-g", "http://[fd00:10:244:1::11]:8080/"]).stdout)
    assert answer["saw"]["address"] == "2001:db8:113::2"


def test_continuous_connections_report_those_that_failed(lab: Lab) -> None:
    # One connection more than is looked for: that which is under way at a change may be of before it.
    with lab.connect_continuously("client", "10.244.1.12", 80, interval=0.001, timeout=10) as stream:
        stream.wait_for(10)
        assert stream.report.failures == ()
        lab.stop_echo_servers("pod-1b")
        stream.wait_for(11)
        lab.start_pod("pod-1b")
        stream.wait_for(11)
    report = stream.report
    assert report.attempts == sum(report.pods.values()) + len(report.failures)
    outcomes = Counter(failure.outcome for failure in report.failures)
    assert outcomes[Outcome.REFUSED] >= 10
    assert set(outcomes) <= {Outcome.REFUSED, Outcome.RESET}, "who was being served when the port closed is reset"
    assert report.pods["pod-1b"] >= 20


@FAMILIES
def test_what_times_out_says_how_far_it_came(lab: Lab, family: Family) -> None:
    dropped = only(lab.probe("client", NOBODY[family], 80, timeout=0.1))
    assert str(dropped) == "timed out (no answer to the SYN, not sent again)"
    with lab.enter_namespace("pod-1a"):
        silent = socket.create_server(("", 99), family=AF[family])
    with silent:
        result = only(lab.probe("client", lab.address_of("pod-1a", family), 99, timeout=0.3))
    assert str(result) == "timed out (connected, the request is acknowledged, 0 bytes received)"
    assert only(lab.probe("client", NOBODY[family], 80, Protocol.UDP, timeout=0.1)).progress == ""


def test_hosts_tell_what_became_of_a_connection_that_timed_out(lab: Lab) -> None:
    assert traces(lab, lab.probe("client", lab.address_of("pod-1a"), 80)) == ""
    with lab.enter_namespace("pod-1a"):
        full = socket.create_server(("", 98), backlog=0)
    with full:
        results = lab.probe("client", lab.address_of("pod-1a"), 98, count=3, timeout=0.2)
        told = traces(lab, results)
    lost = [result.source for result in results if result.outcome is Outcome.TIMED_OUT and result.source]
    assert all(f"from port {source.port}:" in told for source in lost[:3]), told
    assert "  pod-1a socket: " in told, "the one that was not accepted"
    (counted,) = (line for line in told.splitlines() if line.startswith("  pod-1a: "))
    assert "ListenOverflows" in counted, counted


def test_time_in_which_the_client_stands_still_does_not_count(lab: Lab) -> None:
    pause, opened = threading.Event(), itertools.count(1)

    class SlowToOpen(PosixPath):
        def __fspath__(self) -> str:
            if next(opened) == 2:
                pause.wait(1.6)
            return str(self)

    options = ProbeOptions(timeout=1.5, count=2)
    results = probe(SlowToOpen(lab.namespace_of("client")), Target(lab.address_of("pod-1a"), 80), options)
    assert [result.pod for result in results] == ["pod-1a"] * 2
    assert results[0].duration > 1.5


def test_an_error_of_continuous_connections_is_raised_where_it_was_asked() -> None:
    stream = Continuous(Path("/run/netns/no-such"), Target("10.244.1.12", 80), ProbeOptions())
    with pytest.raises(LabError, match="no network namespace"), stream:
        stream.wait_for(1)


def test_what_answers_otherwise_is_no_echo_server(lab: Lab) -> None:
    program = "import socket; s = socket.create_server(('', 99)); print(flush=True); s.accept()[0].sendall(b'hi\\n')"
    with lab.popen("node-2", [sys.executable, "-c", program], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"\n"
        with pytest.raises(DecodeError, match="not the answer of an echo server: b'hi"):
            lab.probe("client", "192.168.0.2", 99)


def test_an_unknown_host_is_refused_with_what_is_near(lab: Lab) -> None:
    with pytest.raises(LabError, match="no host 'pod1a': did you mean pod-1a"):
        lab.probe("pod1a", "10.244.1.11", 80)
    with pytest.raises(LabError, match="is not a Pod"):
        lab.start_pod("node-1")


def namespaces(lab: str) -> set[str]:
    return {path.name for path in netns.DIRECTORY.iterdir() if path.name.startswith(f"vipwire-{lab}-")}


def test_a_lab_that_is_down_leaves_nothing() -> None:
    lab = Lab(make_topology(pods=(1,)))
    lab.up()
    directory = state.directory_of(lab.name)
    servers = ProcessId.read(directory / "echo.pid")
    sleeper = lab.popen("pod-1a", ["sleep", "600"])
    assert servers is not None
    hosts = ("underlay", "node-1", "pod-1a", "client")
    assert namespaces(lab.name) == {f"vipwire-{lab.name}-{host}" for host in hosts}
    assert Lab.attach(lab.name).topology == lab.topology
    with pytest.raises(LabError, match="is already up"):
        Lab(lab.topology, lab.name).up()
    assert only(lab.probe("client", "10.244.1.11", 80)).pod == "pod-1a"
    lab.down()
    assert namespaces(lab.name) == set()
    assert not directory.exists()
    assert ProcessId.of(servers.pid) != servers
    assert sleeper.returncode == -15
    lab.down()
    with pytest.raises(LabError, match=f"no lab named {lab.name}"):
        Lab.attach(lab.name)


def test_a_lab_that_cannot_be_finished_is_removed() -> None:
    lab = Lab(make_topology(pods=(1,)))
    taken = f"vipwire-{lab.name}-client"
    netns.create_namespace(taken)
    try:
        with pytest.raises(LabError, match=f"{taken} already exists"):
            lab.up()
        assert not state.directory_of(lab.name).exists()
        assert namespaces(lab.name) == {taken}, "it is not ours to remove"
    finally:
        netns.delete_namespace(taken)


def test_a_lab_whose_build_fails_half_way_is_removed() -> None:
    pods = (DEFAULT.pods[0], replace(DEFAULT.pods[1], ports=(80, 80)))  # the second listener finds its port taken
    lab = Lab(replace(DEFAULT, pods=pods))
    with pytest.raises(LabError, match=r"pod-1b cannot listen .*80/TCP"):
        lab.up()
    assert namespaces(lab.name) == set()
    assert not state.directory_of(lab.name).exists()


def test_a_half_built_lab_of_a_killed_command_is_removed() -> None:
    name = f"half{os.getpid()}"
    state.create_state(name, DEFAULT)
    netns.create_namespace(f"vipwire-{name}-underlay")
    netns.namespace_path(f"vipwire-{name}-node-1").touch()  # created, and killed before it was mounted
    Lab.attach(name).down()
    assert namespaces(name) == set()
    assert name not in state.list_labs()


def test_labs_do_not_see_each_other(lab: Lab) -> None:
    pods = [replace(DEFAULT.pods[0], ports=(80,))]
    with Lab(replace(DEFAULT, pods=tuple(pods)), lab.name + "-b") as other:
        other.stop_echo_servers("pod-1a")
        assert only(other.probe("client", "10.244.1.11", 80)).outcome is Outcome.REFUSED
        assert only(lab.probe("client", "10.244.1.11", 80)).outcome is Outcome.ANSWERED
    assert only(lab.probe("client", "10.244.1.11", 80)).outcome is Outcome.ANSWERED


def test_an_address_of_a_missing_family_is_an_error(lab: Lab) -> None:
    with pytest.raises(LabError, match="no host"):
        lab.address_of("nobody")
    node = replace(DEFAULT.nodes[0], addresses=("192.168.0.1",), pod_cidrs=())
    with pytest.raises(LabError, match="node-1 has no IPv6 address"):
        Lab(replace(DEFAULT, nodes=(node,), pods=())).address_of("node-1", Family.IPV6)
