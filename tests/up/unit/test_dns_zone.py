"""The zone follows its objects: each event moves the names of its own Service, and nobody else's."""

import gc
import sys

import pytest
from tests.fakes.names import endpoint, external, headless, piece, service

from vipwire.model.names import ObjectName
from vipwire.model.net import parse_address
from vipwire.model.problem import Problem
from vipwire.watched_objects import event
from vipwire_up.dns.messages.names import (
    encode_name,
    encode_reverse_name,
    format_name,
    parent_names,
    parse_dashed_address,
    parse_name,
)
from vipwire_up.dns.objects import DnsEvent, DnsKind, DnsService, DnsSlice
from vipwire_up.dns.records import SOA, SRV, A
from vipwire_up.dns.zone import Zone


def changed(item: DnsService | DnsSlice, *problems: Problem) -> DnsEvent:
    return event.Upserted(item, problems)


def gone(kind: DnsKind, name: ObjectName) -> DnsEvent:
    return event.Deleted(kind, name)


def listed(kind: DnsKind, *items: DnsService | DnsSlice, problems: tuple[Problem, ...] = ()) -> DnsEvent:
    return event.Listed(kind, items, problems)


def zone(*items: DnsService | DnsSlice) -> Zone:
    made = Zone("cluster.local")
    for item in items:
        made.apply(changed(item))
    return made


def ask(where: Zone, name: str, kind: int = A) -> tuple[bytes, ...] | None:
    """Give the data of the records of a name, None where it does not exist."""
    wire = parse_name(name)
    reply = where.answer_name(wire, kind)
    if reply is None:
        return () if where.exists(wire) else None
    return tuple(record[12:] for record in reply.answers)


def test_a_service_that_goes_takes_its_names_and_only_those() -> None:
    ours = zone(service("web", "10.96.0.1"), service("api", "10.96.0.2"))
    ours.apply(gone(DnsKind.SERVICE, ObjectName("shop", "web")))
    assert ask(ours, "web.shop.svc.cluster.local") is None
    assert ask(ours, "api.shop.svc.cluster.local") == (parse_address("10.96.0.2"),)
    assert ours.answer_reverse(encode_reverse_name(parse_address("10.96.0.1"))) is None
    ours.apply(gone(DnsKind.SERVICE, ObjectName("shop", "api")))
    assert ask(ours, "shop.svc.cluster.local") is None
    assert ours.sizes == {"services": 0, "names": zone().sizes["names"]}


def test_a_change_keeps_the_answers_of_others() -> None:
    ours = zone(service("web", "10.96.0.1"), service("api", "10.96.0.2"))
    name = encode_name(("api", "shop", "svc"), ours.name)
    before = ours.answer_name(name, A)
    ours.apply(changed(service("web", "10.96.0.9")))
    assert ours.answer_name(name, A) is before
    assert ask(ours, "web.shop.svc.cluster.local") == (parse_address("10.96.0.9"),)


def calls(ours: Zone, *events: DnsEvent) -> int:
    """Count the functions that are called for events."""
    count = 0

    def note(_frame: object, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    gc.disable()  # what is finalized meanwhile is of other tests
    sys.setprofile(note)
    try:
        for each in events:
            ours.apply(each)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def test_an_event_costs_the_same_among_few_and_among_many() -> None:
    events = (
        changed(service("web", "10.96.0.1")),
        changed(service("web", "10.96.0.2")),
        changed(headless("db")),
        changed(piece("db", endpoint("10.1.0.1"))),
        changed(piece("db", endpoint("10.1.0.1", ready=False))),
        gone(DnsKind.SLICE, ObjectName("shop", "db-slice")),
        gone(DnsKind.SERVICE, ObjectName("shop", "web")),
    )
    few, many = (
        zone(*(service(f"s{number}", f"10.97.{number // 250}.{number % 250}") for number in range(count)))
        for count in (2, 500)
    )
    assert calls(few, *events) == calls(many, *events)


def test_readiness_moves_an_endpoint_in_and_out_whichever_object_comes_first() -> None:
    ours = zone(piece("db", endpoint("10.1.0.1", "db-0"), endpoint("10.1.0.2", "db-1", ready=False)))
    assert ask(ours, "db.shop.svc.cluster.local") is None
    ours.apply(changed(headless("db")))
    assert ask(ours, "db.shop.svc.cluster.local") == (parse_address("10.1.0.1"),)
    ours.apply(changed(piece("db", endpoint("10.1.0.1", "db-0", ready=False), endpoint("10.1.0.2", "db-1"))))
    assert ask(ours, "db.shop.svc.cluster.local") == (parse_address("10.1.0.2"),)
    assert ask(ours, "db-0.db.shop.svc.cluster.local") is None
    ours.apply(gone(DnsKind.SLICE, ObjectName("shop", "db-slice")))
    assert ask(ours, "db.shop.svc.cluster.local") is None


def test_a_slice_that_changes_its_service_leaves_the_old_one() -> None:
    ours = zone(headless("db"), headless("cache"), piece("db", endpoint("10.1.0.1"), name="s"))
    ours.apply(changed(piece("cache", endpoint("10.1.0.1"), name="s")))
    assert ask(ours, "db.shop.svc.cluster.local") is None
    assert ask(ours, "cache.shop.svc.cluster.local") == (parse_address("10.1.0.1"),)


def test_an_address_of_two_services_has_two_names() -> None:
    ours = zone(headless("db"), headless("db-peers"))
    ours.apply(changed(piece("db", endpoint("10.1.0.1", "n"), name="a")))
    ours.apply(changed(piece("db-peers", endpoint("10.1.0.1", "n"), name="b")))
    found = ours.answer_reverse(encode_reverse_name(parse_address("10.1.0.1")))
    assert found is not None
    assert sorted(format_name(record[12:]) for record in found.answers) == [
        "n.db-peers.shop.svc.cluster.local.",
        "n.db.shop.svc.cluster.local.",
    ]
    ours.apply(gone(DnsKind.SLICE, ObjectName("shop", "b")))
    left = ours.answer_reverse(encode_reverse_name(parse_address("10.1.0.1")))
    assert left is not None
    assert len(left.answers) == 1


def test_a_list_replaces_all_and_ends_the_wait() -> None:
    ours = zone(service("old", "10.96.0.1"))
    synced = [ours.synced]
    for told in (listed(DnsKind.SERVICE, service("web", "10.96.0.2")), listed(DnsKind.SLICE)):
        ours.apply(told)
        synced.append(ours.synced)
    assert synced == [False, False, True]
    assert ask(ours, "old.shop.svc.cluster.local") is None
    assert ask(ours, "web.shop.svc.cluster.local") == (parse_address("10.96.0.2"),)


def test_the_serial_grows_with_changes_that_change_answers() -> None:
    ours = zone(service("web", "10.96.0.1"))
    before = ours.serial
    ours.apply(changed(service("web", "10.96.0.1")))
    ours.apply(changed(piece("web", endpoint("10.1.0.1"))))
    assert ours.serial == before, "endpoints of a ClusterIP are no matter of DNS"
    ours.apply(changed(external("out", "example.org")))
    assert ours.serial > before
    soa = ours.answer_name(ours.name, SOA)
    assert soa is not None
    assert int.from_bytes(soa.answers[0][-20:-16]) == ours.serial
    assert ours.unknown.authority[0][-20:-16] == soa.answers[0][-20:-16]


def test_problems_are_told_once_until_they_change() -> None:
    ours, name = zone(), ObjectName("shop", "web")
    problem = Problem("Service", name, "spec.clusterIPs[1]", "is no address")
    assert ours.apply(changed(service("web", "10.96.0.1"), problem)) == (problem,)
    assert ours.apply(changed(service("web", "10.96.0.2"), problem)) == ()
    assert ours.apply(listed(DnsKind.SERVICE, service("web", "10.96.0.2"), problems=(problem,))) == ()
    assert ours.apply(changed(service("web", "10.96.0.2"))) == ()
    assert ours.apply(changed(service("web", "10.96.0.2"), problem)) == (problem,)


def test_srv_brings_the_addresses_of_its_targets() -> None:
    ours = zone(headless("db"), piece("db", endpoint("10.1.0.1", "db-0"), endpoint("10.1.0.2"), port=5432))
    reply = ours.answer_name(parse_name("_main._tcp.db.shop.svc.cluster.local"), SRV)
    assert reply is not None
    assert {record[-4:] for record in reply.additional} == {parse_address("10.1.0.1"), parse_address("10.1.0.2")}
    assert len(reply.answers) == 2


def test_a_name_that_would_be_too_long_is_not_there() -> None:
    label = "x" * 63
    domain = ".".join(["y" * 60] * 2)
    ours = Zone(domain)
    ours.apply(changed(headless(label, namespace=label)))
    ours.apply(changed(piece(label, endpoint("10.1.0.1", label), namespace=label)))
    assert all(len(name) <= 255 for name in ours.existing_names())


def test_a_zone_ends_at_a_label() -> None:
    ours = zone()
    assert ours.contains(parse_name("a.cluster.local"))
    assert ours.contains(ours.name)
    assert not ours.contains(b"\x09x" + ours.name)
    assert not ours.contains(parse_name("local"))
    assert [format_name(above) for above in parent_names(parse_name("a.b.c"))] == ["b.c.", "c."]


@pytest.mark.parametrize(
    ("label", "address"),
    [
        ("10-0-0-1", "10.0.0.1"),
        ("fd00--1", "fd00::1"),
        ("--1", "::1"),
        ("10-0-0", None),
        ("web", None),
        ("1-2-3-4-5", None),
    ],
)
def test_a_pods_address_in_its_name(label: str, address: str | None) -> None:
    assert parse_dashed_address(label.encode()) == (None if address is None else parse_address(address))
