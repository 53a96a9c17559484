"""Connections past the rules: `--offload-packet-threshold` under Debian's own kernel, which has flowtables.

By hand: `python -m vipwire.lab.kernel --full --memory 2048M -- python -m pytest tests/kernel/full/offloading.py`.
The whole suite can be run so, too: `… -- python -m pytest tests/conformance -k offload`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.conformance import own_cgroup
from tests.conformance.cluster import POD_CIDRS, Cluster
from tests.conformance.mode_ebpf import EBPF
from tests.conformance.mode_iptables import IPTABLES
from tests.conformance.mode_nftables import NFTABLES
from tests.conformance.packets import OUTSIDE, POD, Caller
from tests.conformance.proxy import until
from tests.conformance.services import CLUSTER_IP, EXTERNAL_IP, NODE_PORT, LabService

from vipwire.conntrack.flows import FlowTable
from vipwire.lab.continuous import Connection
from vipwire.lab.echo.answer import HELLO, Answer
from vipwire.lab.manifests import Port
from vipwire.lab.outcome import Target
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.netlink.conntrack import STATUS_OFFLOADED, Flow
from vipwire.plan.plan import FrontendKind

pytestmark = pytest.mark.kernel

THRESHOLD = 20
OFFLOAD = f"--offload-packet-threshold={THRESHOLD}"
REMOTE = "pod-2a"
WAYS = ((POD, CLUSTER_IP), (OUTSIDE, NODE_PORT), (OUTSIDE, EXTERNAL_IP))
SLOW = pytest.mark.timeout(1800)


@contextmanager
def cluster_of(mode: Any, *options: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        if mode.has_cgroup:
            stack.enter_context(own_cgroup.entered())
        made = Cluster(mode, [POD_CIDRS, *options])
        stack.callback(made.down)
        made.up()
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of(NFTABLES[0], OFFLOAD, "--counters=endpoints") as made:
        yield made


def flows(cluster: Cluster, target: Target, protocol: Protocol = Protocol.TCP) -> list[Flow]:
    """Read the node's flows to a frontend."""
    address = parse_address(target.address)
    family = Family.IPV4 if len(address) == 4 else Family.IPV6
    with cluster.lab.inside(cluster.node_name), FlowTable() as table:
        found = list(table.flows(family, protocol, target.port))
    return [flow for flow in found if flow.destination == address]


def offloaded(cluster: Cluster, target: Target) -> bool:
    found = flows(cluster, target)
    return bool(found) and all(flow.status & STATUS_OFFLOADED for flow in found)


def talk(connection: Connection, times: int = THRESHOLD) -> None:
    """Exchange data over TCP: the same must come back, also what takes several packets."""
    for number in range(times):
        said = number.to_bytes(4) * (2000 if number % 5 == 0 else 20)
        assert connection.exchange(said, 60.0) == said


def taken_over(cluster: Cluster, connection: Connection, target: Target) -> None:
    def is_taken_over() -> bool:
        talk(connection)
        return offloaded(cluster, target)

    until(is_taken_over, lambda: f"the connection is offloaded: {flows(cluster, target)}")


@contextmanager
def connected(
    cluster: Cluster, caller: Caller, service: LabService, kind: FrontendKind, family: Family
) -> Iterator[Connection]:
    """Have a connection that a flowtable carries."""
    target = service.at(kind, family)
    with cluster.connect(caller, target) as connection:
        taken_over(cluster, connection, target)
        yield connection


def accounted(cluster: Cluster, target: Target) -> int:
    """Read from connection tracking how many packets a client has sent."""
    family = "ipv6" if ":" in target.address else "ipv4"
    listed = cluster.lab.run(
        cluster.node_name,
        ["conntrack", "-L", "-f", family, "-p", "tcp", "-d", target.address, "--dport", str(target.port)],
    ).stdout
    (line,) = listed.splitlines()
    return int(next(word for word in line.split() if word.startswith("packets=")).partition("=")[2])


def devices(cluster: Cluster, family: str = "ip") -> set[str]:
    listed = json.loads(cluster.lab.run(cluster.node_name, ["nft", "-j", "list", "flowtables"]).stdout)
    tables = [each["flowtable"] for each in listed["nftables"] if "flowtable" in each]
    ours = (each for each in tables if each["family"] == family and each["table"] == "vipwire")
    names: str | list[str] = next((each.get("dev", []) for each in ours), [])
    return {names} if isinstance(names, str) else set(names)


def interfaces(cluster: Cluster) -> set[str]:
    listed = json.loads(cluster.lab.run(cluster.node_name, ["ip", "-j", "link"]).stdout)
    return {each["ifname"] for each in listed} - {"lo"}


def hooked(cluster: Cluster) -> Callable[[], bool]:
    return lambda: devices(cluster) == devices(cluster, "ip6") == interfaces(cluster)


def ask(cluster: Cluster, *words: str) -> str:
    """Run a command of vipwire that is told nothing of the proxy's flags but where objects are."""
    options = [f"--manifests={cluster.manifests}", f"--hostname-override={cluster.node_name}", POD_CIDRS]
    return cluster.proxy.command(*words, f"--proxy-mode={cluster.mode.name}", *options).stdout


@SLOW
@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize(("caller", "kind"), WAYS)
def test_an_established_connection_is_carried_past_the_rules(
    cluster: Cluster, caller: Caller, kind: FrontendKind, family: Family
) -> None:
    service = cluster.service("web", cluster.pods(REMOTE))
    target = service.at(kind, family)
    with cluster.connect(caller, target) as connection:
        assert not offloaded(cluster, target), "a short connection is none of a flowtable's"
        taken_over(cluster, connection, target)
        seen = accounted(cluster, target)
        talk(connection)
        assert accounted(cluster, target) >= seen + THRESHOLD, "connection tracking counts on"
        assert offloaded(cluster, target)


@SLOW
def test_what_is_offloaded_was_counted_and_commands_know_it(cluster: Cluster) -> None:
    service = cluster.service("known", cluster.pods(REMOTE))
    with connected(cluster, POD, service, CLUSTER_IP, Family.IPV4):
        document, _ = json.JSONDecoder().raw_decode(
            ask(cluster, "status", "known", "-o", "json", "--counters=endpoints")
        )
        assert document["services"][0]["connections"] == 1
        said = ask(cluster, "status")
        assert "offloading" in said
        assert "1 connections now" in said, said
    explained = ask(cluster, "explain", service.vip(Family.IPV4).address, "--from", cluster.address(POD, Family.IPV4))
    assert f"past all rules after {THRESHOLD} packets" in explained, explained
    assert cluster.proxy.command("diff", "--proxy-mode=nftables", *_objects(cluster)).returncode == 0
    assert "can offload" in ask(cluster, "check", "-o", "wide", OFFLOAD)


def _objects(cluster: Cluster) -> list[str]:
    first = cluster.manifests.parent / "first"
    return [f"--manifests={first}", f"--manifests={cluster.manifests}", "--hostname-override=node-1", POD_CIDRS]


@SLOW
def test_a_connection_outlives_its_endpoint_and_ends_with_it(cluster: Cluster) -> None:
    service = cluster.service("going", cluster.pods(REMOTE))
    target = service.vip(Family.IPV4)
    with connected(cluster, POD, service, CLUSTER_IP, Family.IPV4) as connection:
        cluster.service("going", cluster.pods("pod-1b"))
        talk(connection)  # as without a flowtable: who is connected stays so
        assert cluster.probe(POD, target)[0].pod == "pod-1b"
        assert any(flow.status & STATUS_OFFLOADED for flow in flows(cluster, target))
    until(lambda: not offloaded(cluster, target), "what was closed is tracked as closed")


@SLOW
def test_udp_is_not_offloaded_and_moves_when_its_endpoint_goes(cluster: Cluster) -> None:
    ports = [Port(53, 80, Protocol.UDP)]
    service = cluster.service("udp", cluster.pods(REMOTE), ports)
    target = service.vip(Family.IPV4)
    with cluster.connect(POD, target, 21000) as connection:
        for _ in range(2 * THRESHOLD):
            assert Answer.decode(connection.exchange(HELLO, 60.0)).pod == REMOTE
        (flow,) = flows(cluster, target, Protocol.UDP)
        assert not flow.status & STATUS_OFFLOADED
        cluster.service("udp", cluster.pods("pod-2b"), ports)
        until(lambda: Answer.decode(connection.exchange(HELLO, 60.0)).pod == "pod-2b", "the client is led elsewhere")


@SLOW
def test_the_flowtable_is_at_every_interface_also_at_one_that_comes(cluster: Cluster) -> None:
    until(hooked(cluster), lambda: f"{devices(cluster)} are {interfaces(cluster)}")
    for _ in range(2):  # the second of that name is another interface
        cluster.lab.run(cluster.node_name, ["ip", "link", "add", "newpod", "type", "veth", "peer", "name", "itself"])
        until(lambda: "newpod" in devices(cluster), "what has come is hooked")
        cluster.lab.run(cluster.node_name, ["ip", "link", "delete", "newpod"])
        until(hooked(cluster), "what has gone is not")


@SLOW
@pytest.mark.parametrize(
    "harm",
    [
        "delete table ip vipwire",
        "flush ruleset",
        "flush chain ip vipwire offload",
        "delete flowtable ip vipwire fastpath { hook ingress priority 0; devices = { DEVICE }; }",
    ],
)
def test_what_somebody_has_changed_is_put_back(cluster: Cluster, harm: str) -> None:
    service = cluster.service("harmed", cluster.pods(REMOTE))
    until(hooked(cluster), "all is as it should be")
    with connected(cluster, POD, service, CLUSTER_IP, Family.IPV4) as connection:
        device = min(interfaces(cluster))
        cluster.lab.run(cluster.node_name, ["nft", harm.replace("DEVICE", device)])
        until(hooked(cluster), lambda: f"{devices(cluster)} are {interfaces(cluster)}")
        taken_over(cluster, connection, service.vip(Family.IPV4))


@SLOW
def test_a_connection_goes_on_without_it_and_in_another_mode_and_nothing_is_left() -> None:
    with cluster_of(NFTABLES[0], OFFLOAD) as cluster:
        proxy, given = cluster.proxy, cluster.proxy.options
        service = cluster.service("kept", cluster.pods(REMOTE))
        target = service.vip(Family.IPV4)
        with connected(cluster, POD, service, CLUSTER_IP, Family.IPV4) as connection:
            proxy.stop()
            talk(connection)
            assert offloaded(cluster, target), "rules and flowtable stay when the proxy ends"
            proxy.options = tuple(each for each in given if each != OFFLOAD)
            proxy.start()
            assert "fastpath" not in ruleset(cluster)
            talk(connection)
            assert not offloaded(cluster, target)
            proxy.stop()
            proxy.options = given
            proxy.start()
            taken_over(cluster, connection, target)
            proxy.stop()
            proxy.mode = next(mode for mode in IPTABLES if mode.variant == "nft")
            proxy.start()
            until(lambda: "fastpath" not in ruleset(cluster), "iptables mode has taken over")
            talk(connection)
            assert not offloaded(cluster, target)
            proxy.stop()
            proxy.mode = NFTABLES[0]
            proxy.start()
            taken_over(cluster, connection, target)
        proxy.stop()
        proxy.vipwire("cleanup")
        assert "vipwire" not in ruleset(cluster)
        proxy.start()


def ruleset(cluster: Cluster) -> str:
    return str(cluster.lab.run(cluster.node_name, ["nft", "list", "ruleset"]).stdout)


@SLOW
def test_in_ebpf_mode_what_the_rules_translate_is_offloaded() -> None:
    with cluster_of(EBPF[0], OFFLOAD) as cluster:
        service = cluster.service("mixed", cluster.pods(REMOTE))
        until(hooked(cluster), lambda: f"{devices(cluster)} are {interfaces(cluster)}")
        with connected(cluster, OUTSIDE, service, NODE_PORT, Family.IPV4):
            said = ask(cluster, "status")
            assert "offloading" in said, said
        with cluster.connect(POD, service.vip(Family.IPV4)) as direct:
            talk(direct, 2 * THRESHOLD)
            assert not flows(cluster, service.vip(Family.IPV4)), "programs lead it: nothing is translated"
