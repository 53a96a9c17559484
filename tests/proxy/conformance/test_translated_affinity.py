"""Session affinity that programs serve, where that is asked for: whom they remember, for how long, and what is left.

That the programs did it is asked of their counters and of their memory, as in `test_translated`. Nobody waits: what
they remember is made older instead.
"""

import contextlib
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import NODE, OTHER_POD, POD
from tests.proxy.conformance.services import CLUSTER_IP, LabService
from tests.proxy.conformance.test_affinity import MANY
from tests.proxy.conformance.test_draining import Drained
from tests.proxy.conformance.test_translated import asked, counted, knocked, opened, told
from tests.proxy.conformance.translated import look

from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.namespaces import read_netns_cookie
from vipwire.model.net import Family, Protocol, format_address, format_endpoint, parse_address
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.layout import Flag, choose_family_suffix, endpoints, read_endpoint
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Port

pytestmark = [pytest.mark.conformance, pytest.mark.direct]

ENDS = ("pod-1a", "pod-2a", "pod-2b")
INNER: dict[str, Any] = {"type": "ClusterIP", "externalIPs": None, "externalTrafficPolicy": "Local"}
LOCAL = {"externalTrafficPolicy": "Local"}
SECONDS = 600
SEEN = 8
"""How large the time is at the end of what is remembered, in nanoseconds."""


def sticky(
    cluster: Cluster, name: str, pods: Sequence[str] = ENDS, ports: Sequence[Port] = (Port(80),), **spec: Any
) -> LabService:
    """Write a Service with affinity, and wait until the programs have it, which is after the rules."""
    made = written(cluster, name, pods, ports, **spec)
    ends = {cluster.lab.address_of(pod, family) for pod in pods for family in Family}

    def led() -> bool:
        targets = [made.vip(family, index) for family in Family for index in (0, len(ports) - 1)]
        held = [look(cluster.lab, cluster.node_name, each).held for each in targets]
        return all(held) and ends == {
            format_address(read_endpoint(each)[0])
            for family, value in zip((each for each in Family for _ in (0, 1)), held, strict=True)
            for each in endpoints(family, value)
        }

    until(led, lambda: f"programs lead to {name}:\n{cluster.proxy.log[-3000:]}")
    return made


def written(
    cluster: Cluster, name: str, pods: Sequence[str] = ENDS, ports: Sequence[Port] = (Port(80),), **spec: Any
) -> LabService:
    config = {"clientIP": {"timeoutSeconds": SECONDS}}
    wanted = spec or LOCAL
    hosts = cluster.pods(*pods)
    return cluster.service(name, hosts, ports, sessionAffinity="ClientIP", sessionAffinityConfig=config, **wanted)


@contextlib.contextmanager
def memory(cluster: Cluster, family: Family) -> Iterator[Map]:
    """Open what the programs of the node remember."""
    with cluster.lab.enter_namespace(cluster.node_name):
        pins = NodePins(find_node_folder(), None)
    with contextlib.closing(pins):
        found = pins.find(f"affinity{choose_family_suffix(family)}")
        assert found is not None
        yield found


def aged(cluster: Cluster, family: Family, seconds: float) -> None:
    """Have so much time pass for what is remembered of a Pod."""
    with cluster.lab.enter_namespace(POD.host):
        own = read_netns_cookie().to_bytes(8, sys.byteorder)
    with memory(cluster, family) as found:
        for key, value in [each for each in found.items() if each[0].startswith(own)]:
            seen = int.from_bytes(value[-SEEN:], sys.byteorder) - int(seconds * 1e9)
            found.write([key], [value[:-SEEN] + (seen % 2**64).to_bytes(SEEN, sys.byteorder)])


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda protocol: protocol.label)
def test_a_pod_has_an_endpoint_of_its_own_at_each_port(
    connecting: Cluster, family: Family, protocol: Protocol
) -> None:
    """As S72 and S74. What datagrams the programs lead they lead by connected sockets as by others."""
    ports = [replace(each, protocol=protocol) for each in MANY]
    service = sticky(connecting, f"loyal-{protocol.label}", ENDS, ports, **INNER)
    where: dict[str, list[str]] = {POD.host: [], OTHER_POD.host: []}
    for index in range(len(ports)):
        target = service.vip(family, index)
        before = counted(connecting, target)
        for caller in (POD, OTHER_POD):
            where[caller.host].append(connecting.sticks(caller, target, 4))
        assert counted(connecting, target) == before + 8
    assert all(len(set(pods)) > 1 for pods in where.values()), "one endpoint for all ports"
    assert where[POD.host] != where[OTHER_POD.host]
    if protocol is Protocol.UDP:
        for index in range(4):
            target = service.vip(family, index)
            before = counted(connecting, target)
            with opened(connecting, POD.host, socket.SOCK_DGRAM, family) as loose:
                answers = [asked(loose, told(target)) for _ in range(3)]
            assert {(found.pod, source) for found, source in answers} == {(where[POD.host][index], told(target))}
            assert counted(connecting, target) == before + 1, "a socket that goes on counts once"


def test_all_frontends_share_what_is_remembered(connecting: Cluster, family: Family) -> None:
    """As S73."""
    service = sticky(connecting, f"sharing-{family.value.lower()}", ENDS, MANY[:6])
    for index, first in enumerate((*FrontendKind, CLUSTER_IP, CLUSTER_IP)):
        pod = knocked(connecting, POD.host, service.at(first, family, index))
        for kind in FrontendKind:
            target = service.at(kind, family, index)
            before = counted(connecting, target)
            assert knocked(connecting, POD.host, target) == pod, kind
            assert counted(connecting, target) == before + 1


def test_a_pod_is_remembered_for_so_long_after_it_came_last(connecting: Cluster, family: Family) -> None:
    """As S75 and S76."""
    target = sticky(connecting, "loyal-times").vip(family)
    pod = knocked(connecting, POD.host, target)
    for _ in range(12):  # each time is the first again
        aged(connecting, family, SECONDS - 30)
        assert knocked(connecting, POD.host, target) == pod
    seen = set()
    for _ in range(40):
        aged(connecting, family, SECONDS)
        seen.add(knocked(connecting, POD.host, target))
    assert seen == set(ENDS)


def test_a_pod_stays_while_others_come_and_go_and_is_given_another_when_its_endpoint_goes(
    connecting: Cluster, family: Family
) -> None:
    """As S77 and S78."""
    name = "loyal-changes"
    target = sticky(connecting, name, ENDS[:2]).vip(family)
    pod = knocked(connecting, POD.host, target)
    before = counted(connecting, target)
    for pods in ((pod, "pod-2b"), ENDS, (pod,), ENDS[:2]):
        sticky(connecting, name, pods)
        assert {knocked(connecting, POD.host, target) for _ in range(6)} == {pod}
    assert counted(connecting, target) == before + 24
    rest = [each for each in ENDS if each != pod]
    sticky(connecting, name, rest)
    other = knocked(connecting, POD.host, target)
    assert other in rest
    sticky(connecting, name)
    assert {knocked(connecting, POD.host, target) for _ in range(6)} == {other}, "it does not go back"


def test_a_loose_socket_goes_where_its_pod_is_when_its_endpoint_was_away(connecting: Cluster, family: Family) -> None:
    name, ports = "loyal-loose", [Port(53, 80, Protocol.UDP)]
    target = sticky(connecting, name, ("pod-1a",), ports, **INNER).vip(family)
    with opened(connecting, POD.host, socket.SOCK_DGRAM, family) as loose:
        assert asked(loose, told(target))[0].pod == "pod-1a"
        sticky(connecting, name, ("pod-2a",), ports, **INNER)
        with opened(connecting, POD.host, socket.SOCK_DGRAM, family) as another:
            assert asked(another, told(target))[0].pod == "pod-2a"
        sticky(connecting, name, ("pod-1a", "pod-2a"), ports, **INNER)
        assert asked(loose, told(target))[0].pod == "pod-2a"


def test_affinity_is_switched_on_and_off(connecting: Cluster, family: Family) -> None:
    """As S80."""
    name = "loyal-switched"
    for _ in range(2):
        target = sticky(connecting, name).vip(family)
        before = counted(connecting, target)
        connecting.sticks(POD, target, 6)
        assert counted(connecting, target) == before + 6
        connecting.service(name, connecting.pods(*ENDS), externalTrafficPolicy="Local")
        connecting.answered(POD, target, ENDS)
        assert look(connecting.lab, connecting.node_name, target).held, "programs lead it"


def test_who_is_with_an_endpoint_that_is_drained_is_given_another(
    cluster_with: ClusterWith, state: str, family: Family
) -> None:
    """As S136 and S137."""
    cluster = cluster_with([POD_CIDRS, "--ebpf-affinity", f"--state-dir={state}"], "draining")
    target = sticky(cluster, "loyal-leaving", ("pod-1b", "pod-2a", "pod-2b")).vip(family)
    pod = knocked(cluster, POD.host, target)
    drained = Drained(cluster)
    where = drained.address(pod, family)
    before = counted(cluster, target)
    drained.done(where, "--force")  # from outside nobody else may be local
    try:
        other = cluster.sticks(POD, target, 6)
    finally:
        drained.undo_all()
    assert other != pod
    assert cluster.sticks(POD, target, 6) == other, "it does not go back"
    assert counted(cluster, target) == before + 12


def test_a_pod_that_may_meet_itself_is_the_rules_from_then_on(connecting: Cluster, family: Family) -> None:
    """Of the two that remember clients one leads it."""
    target = sticky(connecting, "loyal-own", (POD.host, "pod-2a"), **INNER).vip(family)
    seen = set()
    for _ in range(30):
        before = counted(connecting, target)
        connecting.sticks(POD, target, 4)
        seen.add(counted(connecting, target) - before)
        if len(seen) > 1:
            break
        aged(connecting, family, SECONDS)
    assert seen == {0, 4}, "led by the rules, or by the programs"


def test_a_restart_forgets_no_pod(connecting: Cluster, family: Family) -> None:
    """As S79."""
    service = sticky(connecting, "loyal-restart", ENDS, MANY[:6], **INNER)

    def visits() -> list[str]:
        return [knocked(connecting, POD.host, service.vip(family, index)) for index in range(6)]

    before = visits()
    connecting.proxy.stop()
    assert visits() == before
    connecting.proxy.start()
    assert visits() == before
    assert look(connecting.lab, connecting.node_name, service.vip(family)).connections == 3


def test_the_node_is_left_to_the_rules(connecting: Cluster, family: Family) -> None:
    target = sticky(connecting, "loyal-node", **INNER).vip(family)
    before = look(connecting.lab, connecting.node_name, target)
    assert before.flags & (Flag.NODE | Flag.POD) == Flag.POD
    pod = connecting.sticks(NODE, target)
    assert knocked(connecting, NODE.host, target) in ENDS
    assert pod in ENDS
    assert look(connecting.lab, connecting.node_name, target) == before


@pytest.mark.parametrize(
    ("name", "protocol", "spec"),
    [
        ("cluster", Protocol.TCP, {"externalTrafficPolicy": "Cluster"}),
        ("inner", Protocol.TCP, {**LOCAL, "internalTrafficPolicy": "Local"}),
        ("loose", Protocol.UDP, LOCAL),
    ],
)
def test_what_rules_serve_in_part_they_serve_as_a_whole(
    connecting: Cluster, family: Family, name: str, protocol: Protocol, spec: dict[str, Any]
) -> None:
    service = written(connecting, f"loyal-{name}", ("pod-1a", "pod-2a"), [Port(80, protocol=protocol)], **spec)
    for kind in FrontendKind:
        assert look(connecting.lab, connecting.node_name, service.at(kind, family)).held == b""
    connecting.sticks(POD, service.vip(family))


def test_explain_says_who_is_remembered(connecting: Cluster, family: Family) -> None:
    target = sticky(connecting, "loyal-told").vip(family)
    source = connecting.lab.address_of(POD.host, family)
    where = format_endpoint(parse_address(target.address), target.port)
    said = connecting.proxy.vipwire("explain", where, f"--from={source}", "--output=wide")
    assert f"those of one network namespace to one, which is remembered for {SECONDS} s" in " ".join(said.split())
    status = connecting.proxy.vipwire("status", "--output=wide")
    assert f"affinity{choose_family_suffix(family)} " in " ".join(status.split()), status
