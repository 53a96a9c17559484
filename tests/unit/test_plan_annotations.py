"""What annotations ask for, and what is said of bad ones."""

import pytest

from vipwire.model.names import ObjectName
from vipwire.model.net import Prefix, parse_address
from vipwire.model.service import Service
from vipwire.plan.annotations import NOTHING, wishes
from vipwire.plan.spread import Algorithm


def asking(**annotations: str) -> Service:
    pairs = tuple((f"vipwire.io/{key.replace('_', '-')}", value) for key, value in annotations.items())
    return Service(ObjectName("default", "web"), (), (parse_address("10.96.0.1"),), annotations=pairs)


def test_a_service_without_annotations_asks_for_nothing() -> None:
    assert wishes(asking()) is NOTHING


def test_fewest_connections_are_the_modes_matter_and_the_proxy_protocol_has_two_versions() -> None:
    assert wishes(asking(algorithm="least-connections")).algorithm is Algorithm.RANDOM
    assert wishes(asking(algorithm="least-connections")).problems == ()
    assert [wishes(asking(proxy_protocol=text)).proxy_protocol for text in ("v1", " v2")] == [1, 2]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_can_be_asked_for(algorithm: Algorithm) -> None:
    assert wishes(asking(algorithm=algorithm.value)).algorithm is algorithm


def test_weights_are_by_address() -> None:
    found = wishes(asking(weights='{"10.0.1.5": 3, "fd00::1": 0}')).weights
    assert found == {parse_address("10.0.1.5"): 3, parse_address("fd00::1"): 0}


def test_node_port_sources_are_prefixes() -> None:
    found = wishes(asking(nodeport_source_ranges="10.0.0.0/8, 192.168.1.0/24")).node_port_sources
    assert found == (Prefix.parse("10.0.0.0/8"), Prefix.parse("192.168.1.0/24"))


@pytest.mark.parametrize(
    ("annotation", "text", "said"),
    [
        ("algorithm", "fastest", "allowed: random, round-robin, source-hash, maglev"),
        ("proxy-protocol", "3", "allowed: v1, v2"),
        ("weights", "3", "must be a JSON object"),
        ("weights", "{", "is not JSON"),
        ("weights", '{"10.0.1.5": 101}', "whole numbers from 0 to 100"),
        ("weights", '{"10.0.1.5": true}', "whole numbers from 0 to 100"),
        ("weights", '{"nobody": 1}', "is not an IP address"),
        ("affinity-scope", "node", "allowed: port, service"),
        ("nodeport-source-ranges", "10.0.0.0", "is not a CIDR"),
    ],
)
def test_a_bad_value_is_reported_with_its_annotation_and_counts_as_absent(
    annotation: str, text: str, said: str
) -> None:
    found = wishes(asking(**{annotation: text}))
    (problem,) = found.problems
    assert problem.field == f"metadata.annotations[vipwire.io/{annotation}]"
    assert said in problem.message
    assert (found.algorithm, found.weights, found.shared_affinity, found.node_port_sources) == (
        Algorithm.RANDOM,
        {},
        False,
        (),
    )


def test_one_bad_value_does_not_spoil_the_others() -> None:
    found = wishes(asking(algorithm="maglev", weights="3"))
    assert found.algorithm is Algorithm.MAGLEV
    assert len(found.problems) == 1
