"""What annotations ask for, and what is said of bad ones."""

from dataclasses import replace

import pytest

from vipwire.model.names import ObjectName
from vipwire.model.net import Prefix, parse_address
from vipwire.model.service import Service
from vipwire.model.spread import Algorithm
from vipwire.modes.iptables.mode import LACKS as IPTABLES
from vipwire.modes.ipvs.mode import LACKS as IPVS
from vipwire.modes.nftables.mode import LACKS as NFTABLES
from vipwire.modes.userspace.mode import LACKS as USERSPACE
from vipwire.plan.annotations import (
    NOTHING,
    Balancing,
    ForwardingMethod,
    Lack,
    Wishes,
    find_ineffective,
    read_weights,
    read_wishes,
)
from vipwire.plan.annotations.words import WORDS


def asking(**annotations: str) -> Service:
    pairs = tuple((f"vipwire.io/{key.replace('_', '-')}", value) for key, value in annotations.items())
    return Service(ObjectName("default", "web"), (), (parse_address("10.96.0.1"),), annotations=pairs)


def test_a_service_without_annotations_asks_for_nothing() -> None:
    assert read_wishes(asking()) is NOTHING


def test_fewest_connections_are_the_modes_matter_and_the_proxy_protocol_has_two_versions() -> None:
    assert read_wishes(asking(algorithm="least-connections")).algorithm is Algorithm.RANDOM
    assert read_wishes(asking(algorithm="least-connections")).problems == ()
    assert read_wishes(asking(algorithm="least-connections")).balancing is Balancing.LEAST_CONNECTIONS
    assert [read_wishes(asking(proxy_protocol=text)).proxy_protocol for text in ("v1", " v2")] == [1, 2]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_can_be_asked_for(algorithm: Algorithm) -> None:
    assert read_wishes(asking(algorithm=algorithm.value)).algorithm is algorithm


def test_weights_are_by_address() -> None:
    found = read_wishes(asking(weights='{"10.0.1.5": 3, "fd00::1": 0}')).weights
    assert found == {parse_address("10.0.1.5"): 3, parse_address("fd00::1"): 0}


def test_node_port_sources_are_prefixes() -> None:
    found = read_wishes(asking(nodeport_source_ranges="10.0.0.0/8, 192.168.1.0/24")).node_port_sources
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
        ("forwarding", "dsrr", "allowed: nat, dsr, tunnel"),
        ("drain-seconds", "30s", "whole seconds from 0 to 86400, without a unit, such as 30"),
        ("drain-seconds", "9" * 5000, "whole seconds"),
        ("scheduler", "wlcc", "allowed: rr, wrr, lc"),
        ("scheduler-flags", "mh-fallbak", "allowed: flag-1, flag-2, flag-3, ops, mh-fallback"),
        ("slow-start", "30", "allowed: 1s to 60m"),
        ("port-range", "20000-10000", "is no range of ports"),
        ("weights", "[" * 100000, "is not JSON"),
    ],
)
def test_a_bad_value_is_reported_with_its_annotation_and_counts_as_absent(
    annotation: str, text: str, said: str
) -> None:
    found = read_wishes(asking(**{annotation: text}))
    (problem,) = found.problems
    assert problem.field == f"metadata.annotations[vipwire.io/{annotation}]"
    assert said in problem.message
    assert replace(found, problems=()) == NOTHING


def test_one_bad_value_does_not_spoil_the_others() -> None:
    found = read_wishes(asking(algorithm="maglev", weights="3"))
    assert found.algorithm is Algorithm.MAGLEV
    assert len(found.problems) == 1


def asking_kube_router(word: str, value: str) -> Wishes:
    pairs = ((f"kube-router.io/service.{word}", value),)
    return read_wishes(Service(ObjectName("default", "web"), (), (parse_address("10.96.0.1"),), annotations=pairs))


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        ("scheduler", "bogus", "is no scheduler of the kernel"),
        ("schedflags", "flag-4", "allowed: flag-1, flag-2, flag-3"),
        ("dsr", "tunel", "allowed: tunnel"),
        ("local", "yes", "allowed: true, false"),
    ],
)
def test_a_bad_value_of_kube_routers_words_is_reported_too(word: str, value: str, said: str) -> None:
    found = asking_kube_router(word, value)
    (problem,) = found.problems
    assert problem.field == f"metadata.annotations[kube-router.io/service.{word}]"
    assert said in problem.message
    assert replace(found, problems=()) == NOTHING


def test_a_key_that_is_no_word_is_reported_with_the_one_that_was_meant() -> None:
    (problem,) = read_wishes(asking(algoritm="maglev")).problems
    assert problem.field == "metadata.annotations[vipwire.io/algoritm]"
    assert "did you mean vipwire.io/algorithm?" in problem.message
    assert read_wishes(asking(color="blue")).problems[0].message == "is not an annotation of Services"
    assert (
        "did you mean kube-router.io/service.scheduler?" in asking_kube_router("schedular", "lc").problems[0].message
    )
    assert asking_kube_router("hairpin", "true").problems == (), "for kube-router itself"
    assert asking_kube_router("advertise.externalip", "true").problems == ()


def test_our_word_counts_beside_kube_routers_unless_it_cannot_be_read() -> None:
    def chosen(ours: str) -> str:
        pairs = (("kube-router.io/service.scheduler", "lc"), ("vipwire.io/scheduler", ours))
        return read_wishes(replace(asking(), annotations=pairs)).scheduler

    assert [chosen("wlc"), chosen("wlcc")] == ["wlc", "lc"]


def test_a_bad_entry_of_a_list_costs_itself_only() -> None:
    found = read_wishes(
        asking(
            weights='{"10.0.0.1": 3, "10.0.0.2": 101, "nobody": 1}',
            nodeport_source_ranges="10.0.0.0/8, 192.168.0.0",
            port_range="rtp=10-20,ctl=9",
            scheduler_flags="ops,nothing",
        )
    )
    assert found.weights == {parse_address("10.0.0.1"): 3}
    assert found.node_port_sources == (Prefix.parse("10.0.0.0/8"),)
    assert found.port_ranges == (("rtp", (10, 20)),)
    assert found.scheduler_flags is not None
    assert len(found.scheduler_flags) == 1
    assert len(found.problems) == 5


def test_weights_alone_are_read_by_the_same_function() -> None:
    text = '{"10.0.0.1": 3, "10.0.0.2": 101}'
    assert read_weights({"vipwire.io/weights": text})[0] == read_wishes(asking(weights=text)).weights
    assert len(read_weights({"vipwire.io/weights": text})[1]) == 1
    assert read_weights({}) == ({}, ())


def test_a_wish_that_a_mode_does_not_fulfil_is_told_by_the_key_that_made_it() -> None:
    lacks = (Lack("forwarding", "packets are translated", (ForwardingMethod.TUNNEL,)), Lack("drain_seconds", "never"))
    name = ObjectName("default", "web")
    (problem,) = find_ineffective(name, asking_kube_router("dsr", "tunnel"), lacks)
    assert str(problem) == (
        "Service default/web: metadata.annotations[kube-router.io/service.dsr]: packets are translated"
    )
    assert list(find_ineffective(name, read_wishes(asking(forwarding="nat")), lacks)) == []
    assert len(list(find_ineffective(name, read_wishes(asking(drain_seconds="0")), lacks))) == 1


def test_every_word_fills_a_wish_that_there_is() -> None:
    assert {word.wish for word in WORDS} <= set(Wishes.__dataclass_fields__)


ASKED = {
    "algorithm": "least-connections",
    "affinity_scope": "service",
    "proxy_protocol": "v2",
    "scheduler": "wlc",
    "scheduler_flags": "ops",
    "forwarding": "tunnel",
    "drain_seconds": "30",
}


@pytest.mark.parametrize(
    ("lacks", "told"),
    [
        (NFTABLES, {"algorithm", "proxy-protocol", "scheduler", "scheduler-flags", "forwarding", "drain-seconds"}),
        (IPTABLES, {"algorithm", "proxy-protocol", "scheduler", "scheduler-flags", "forwarding", "drain-seconds"}),
        (IPVS, {"affinity-scope", "proxy-protocol"}),
        (USERSPACE, {"scheduler", "scheduler-flags", "forwarding", "drain-seconds"}),
    ],
    ids=["nftables", "iptables", "ipvs", "userspace"],
)
def test_what_a_mode_has_not_is_told(lacks: tuple[Lack, ...], told: set[str]) -> None:
    problems = find_ineffective(ObjectName("default", "web"), read_wishes(asking(**ASKED)), lacks)
    assert {problem.field for problem in problems} == {f"metadata.annotations[vipwire.io/{word}]" for word in told}
