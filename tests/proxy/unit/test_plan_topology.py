"""Which endpoints may answer, as one table. An endpoint is written `3 here zones=a,b`: the last octet of its address,
then what is special about it.

    here        on this node            unready     neither ready nor serving
    leaving     terminates and serves   failing     not ready, but serving: its readiness probe fails
    dying       terminates, no longer   lingering   terminates, yet ready (publishNotReadyAddresses)
    zones= nodes=    its topology hints
"""

from typing import Any

import pytest
from tests.fakes.values import ELSEWHERE, HERE, endpoint, ip, node_plan, port_name, slice_of

from vipwire.model.net import Family, Protocol
from vipwire.model.service import Endpoint, EndpointPort
from vipwire.plan.plan import Pool
from vipwire.plan.topology import Endpoints, categorize, list_candidates

STATES: dict[str, dict[str, Any]] = {
    "unready": {"ready": False, "serving": False},
    "failing": {"ready": False},
    "leaving": {"ready": False, "terminating": True},
    "dying": {"ready": False, "serving": False, "terminating": True},
    "lingering": {"terminating": True},
}


def written(text: str) -> Endpoint:
    octet, *words = text.split()
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            fields[name] = tuple(value.split(","))
        else:
            fields.update({"node": HERE} if word == "here" else STATES[word])
    return endpoint(f"10.0.0.{octet}", **fields)


def sorted_out(*endpoints: str, zone: str = "a", name: str = HERE) -> Endpoints:
    pieces = [slice_of("web", *map(written, endpoints))]
    node = node_plan(zone=zone, name=name)
    return categorize(list_candidates(port_name(), Family.IPV4, pieces, name), node)


def octets(pool: Pool) -> list[int]:
    return [target.address[-1] for target in pool]


@pytest.mark.parametrize(
    ("endpoints", "cluster", "local", "anywhere"),
    [
        pytest.param([], [], [], False, id="none"),
        pytest.param(["1", "2"], [1, 2], [], True, id="ready elsewhere"),
        pytest.param(["1 here", "2"], [1, 2], [1], True, id="ready here and elsewhere"),
        pytest.param(["1 here", "2 here"], [1, 2], [1, 2], True, id="all here"),
        pytest.param(["1 unready", "2 here unready"], [], [], False, id="none ready"),
        pytest.param(["1 failing"], [], [], False, id="serving counts only while terminating"),
        pytest.param(["1 dying", "2 here dying"], [], [], False, id="none serves"),
        pytest.param(["1", "2 failing", "3 leaving", "4 dying"], [1], [], True, id="only the ready one of all kinds"),
        pytest.param(["1 lingering", "2"], [1, 2], [], True, id="ready though terminating"),
        pytest.param(
            ["1 leaving", "2 leaving", "3 dying"], [1, 2], [], True, id="none ready: those that still serve"
        ),
        pytest.param(["1 leaving", "2 here leaving"], [1, 2], [2], True, id="none ready: those that serve, here too"),
        pytest.param(["1", "2 here leaving"], [1], [2], True, id="ready elsewhere, serving here"),
        pytest.param(["1", "2 here dying"], [1], [], True, id="ready elsewhere, none serving here"),
        pytest.param(["1 here", "2 here leaving", "3"], [1, 3], [1], True, id="ready here beats serving here"),
        pytest.param(["1 leaving", "2 here dying"], [1], [], True, id="serving elsewhere only"),
        pytest.param(["1 here leaving"], [1], [1], True, id="serving here only"),
    ],
)
def test_readiness_and_termination(
    endpoints: list[str], cluster: list[int], local: list[int], *, anywhere: bool
) -> None:
    found = sorted_out(*endpoints)
    assert (octets(found.cluster), octets(found.local), found.anywhere) == (cluster, local, anywhere)


@pytest.mark.parametrize(
    ("zone", "endpoints", "cluster"),
    [
        pytest.param("a", ["1 zones=a", "2 zones=b"], [1], id="our zone's"),
        pytest.param("b", ["1 zones=a", "2 zones=a,b", "3 zones=b"], [2, 3], id="a hint may name several zones"),
        pytest.param("c", ["1 zones=a", "2 zones=b"], [1, 2], id="no hint names our zone"),
        pytest.param("", ["1 zones=a", "2 zones=b"], [1, 2], id="our zone is not known"),
        pytest.param("a", ["1 zones=a", "2"], [1, 2], id="one ready endpoint has no hint"),
        pytest.param("a", ["1 zones=a", "2 zones=b", "3 unready"], [1], id="an unready one needs none"),
        pytest.param("a", ["1 zones=b", "2 zones=a unready"], [1], id="an unready one's does not count"),
        pytest.param("a", ["1 zones=b leaving", "2 zones=a leaving"], [1, 2], id="not among those that terminate"),
        pytest.param("a", ["1 zones=a", "2 zones=b", "3 zones=a leaving"], [1], id="never one that terminates"),
        pytest.param("a", ["1 nodes=node-1", "2 nodes=node-2"], [1], id="our node's"),
        pytest.param("a", ["1 nodes=node-1,node-2", "2 nodes=node-2"], [1], id="a hint may name several nodes"),
        pytest.param("a", ["1 nodes=node-2", "2 nodes=node-2"], [1, 2], id="no hint names our node"),
        pytest.param("", ["1 nodes=node-1", "2 nodes=node-2"], [1], id="our node's, without a zone"),
        pytest.param("a", ["1 nodes=node-1", "2"], [1, 2], id="one ready endpoint has no node hint"),
        pytest.param(
            "a", ["1 nodes=node-1 zones=b", "2 nodes=node-2 zones=a"], [1], id="the node goes before the zone"
        ),
        pytest.param(
            "a", ["1 nodes=node-2 zones=b", "2 nodes=node-2 zones=a"], [2], id="the zone where no hint names our node"
        ),
        pytest.param("a", ["1 nodes=node-1 zones=b", "2 zones=a"], [2], id="the zone where a node hint is missing"),
        pytest.param("c", ["1 nodes=node-2 zones=b", "2 nodes=node-2 zones=a"], [1, 2], id="neither names us"),
    ],
)
def test_topology_hints(zone: str, endpoints: list[str], cluster: list[int]) -> None:
    assert octets(sorted_out(*endpoints, zone=zone).cluster) == cluster


def test_hints_do_not_matter_among_the_endpoints_on_this_node() -> None:
    found = sorted_out("1 here zones=b", "2 zones=a", zone="a")
    assert (octets(found.cluster), octets(found.local)) == ([2], [1])


def test_a_proxy_that_does_not_know_its_node_has_no_local_endpoints_and_no_node_hints() -> None:
    piece = slice_of("web", endpoint("10.0.0.1", ""), endpoint("10.0.0.2", "", nodes=("",)))
    found = categorize(list_candidates(port_name(), Family.IPV4, [piece], ""), node_plan(name=""))
    assert (octets(found.cluster), octets(found.local)) == ([1, 2], [])


def test_ready_addresses_of_this_node_are_counted_once_and_without_those_that_terminate() -> None:
    ports = [EndpointPort("", Protocol.TCP, 8080)]
    other = [EndpointPort("", Protocol.TCP, 9090)]
    here = [endpoint("10.0.0.1", HERE), endpoint("10.0.0.2", HERE, ready=False, terminating=True)]
    pieces = [slice_of("web", *here, name="one", ports=ports), slice_of("web", *here, name="two", ports=other)]
    found = categorize(list_candidates(port_name(), Family.IPV4, pieces, HERE), node_plan())
    assert found.ready_local == {ip("10.0.0.1")}


def test_candidates_come_sorted_and_once_for_an_address_and_port() -> None:
    pieces = [
        slice_of("web", endpoint("10.0.0.9"), endpoint("10.0.0.10"), name="one"),
        slice_of("web", endpoint("10.0.0.9"), endpoint("9.0.0.1"), name="two"),
    ]
    found = list_candidates(port_name(), Family.IPV4, pieces, HERE)
    assert [str(candidate.target) for candidate in found] == ["9.0.0.1:8080", "10.0.0.9:8080", "10.0.0.10:8080"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({}, {"ready": False}),
        ({"ready": False}, {"ready": False, "serving": False}),
        ({"node": HERE}, {"node": ELSEWHERE}),
        ({"node": ELSEWHERE}, {"node": HERE, "ready": False}),
    ],
    ids=["ready", "serving", "local", "ready elsewhere before unready here"],
)
def test_of_two_entries_for_one_endpoint_the_better_counts(
    better: dict[str, Any], worse: dict[str, Any], *, swapped: bool
) -> None:
    good, bad = endpoint("10.0.0.1", **better), endpoint("10.0.0.1", **worse)
    pieces = [slice_of("web", good, name="one"), slice_of("web", bad, name="two")]
    (found,) = list_candidates(port_name(), Family.IPV4, pieces[::-1] if swapped else pieces, HERE)
    assert found.endpoint == good


def test_only_the_ports_of_this_name_and_protocol_and_the_slices_of_this_family_count() -> None:
    ports = [
        EndpointPort("dns", Protocol.UDP, 53),
        EndpointPort("dns", Protocol.TCP, 5353),
        EndpointPort("metrics", Protocol.UDP, 9153),
    ]
    pieces = [
        slice_of("dns", endpoint("10.0.0.1"), ports=ports),
        slice_of("dns", endpoint("fd00::1"), ports=ports, name="six", family=Family.IPV6),
    ]
    name = port_name("dns", "dns", Protocol.UDP)
    found = {family: [str(c.target) for c in list_candidates(name, family, pieces, HERE)] for family in Family}
    assert found == {Family.IPV4: ["10.0.0.1:53"], Family.IPV6: ["[fd00::1]:53"]}


def test_a_named_target_port_may_be_another_number_in_every_slice() -> None:
    pieces = [
        slice_of("web", endpoint("10.0.0.1"), name="old", ports=[EndpointPort("", Protocol.TCP, 80)]),
        slice_of("web", endpoint("10.0.0.2"), name="new", ports=[EndpointPort("", Protocol.TCP, 8080)]),
    ]
    found = list_candidates(port_name(), Family.IPV4, pieces, HERE)
    assert [str(candidate.target) for candidate in found] == ["10.0.0.1:80", "10.0.0.2:8080"]
