"""Laws of the zone: whatever happened before, it answers as one that was made of what is true now."""

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.names import endpoint, external, headless, piece, service

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.watched_objects import event
from vipwire_up.dns.messages.names import (
    encode_reverse_name,
    format_dashed_address,
    format_name,
    is_below,
    parent_names,
    parse_dashed_address,
    parse_name,
)
from vipwire_up.dns.objects import DnsEvent, DnsKind, DnsService, DnsSlice
from vipwire_up.dns.records import AAAA, CNAME, PTR, SRV, A
from vipwire_up.dns.zone import Zone

NAMES = ("a", "b", "c")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "fd00::1")
FORMS = st.one_of(
    st.builds(service, st.sampled_from(NAMES), st.sampled_from(ADDRESSES)),
    st.builds(headless, st.sampled_from(NAMES)),
    st.builds(external, st.sampled_from(NAMES), st.sampled_from(("example.org", "a.shop.svc.cluster.local"))),
)
ENDPOINTS = st.builds(endpoint, st.sampled_from(ADDRESSES), st.sampled_from(("", "h", "k")), ready=st.booleans())
SLICES = st.builds(
    lambda of, endpoints, name: piece(of, *endpoints, name=name),
    st.sampled_from(NAMES),
    st.lists(ENDPOINTS, max_size=3),
    st.sampled_from(("x", "y")),
)
GONE = st.tuples(st.sampled_from(DnsKind), st.sampled_from((*NAMES, "x", "y")))


def told(item: DnsService | DnsSlice) -> DnsEvent:
    return event.Upserted(item)


def contents(zone: Zone) -> dict[tuple[bytes, int], object]:
    """Everything that a zone answers, but for its serial number."""
    found: dict[tuple[bytes, int], object] = {}
    for name in zone.existing_names() - {zone.name}:
        for kind in (A, AAAA, SRV, CNAME):
            reply = zone.answer_name(name, kind)
            found[name, kind] = reply and (reply.answers, sorted(reply.additional))
        reply = zone.answer_reverse(name)
        found[name, PTR] = reply and sorted(reply.answers)
    return found


@given(st.lists(FORMS | SLICES | GONE, max_size=20))
def test_a_zone_is_what_its_objects_are_whatever_came_before(
    steps: list[DnsService | DnsSlice | tuple[DnsKind, str]],
) -> None:
    zone, objects = Zone("cluster.local"), dict[tuple[DnsKind, ObjectName], DnsService | DnsSlice]()
    for step in steps:
        if isinstance(step, tuple):
            kind, name = step[0], ObjectName("shop", step[1])
            objects.pop((kind, name), None)
            zone.apply(event.Deleted(kind, name))
        else:
            objects[DnsKind.SERVICE if isinstance(step, DnsService) else DnsKind.SLICE, step.name] = step
            zone.apply(told(step))
    fresh = Zone("cluster.local")
    for item in objects.values():
        fresh.apply(told(item))
    assert contents(zone) == contents(fresh)
    for kind, name in objects:
        zone.apply(event.Deleted(kind, name))
    assert contents(zone) == contents(Zone("cluster.local")), "nothing is left of what has gone"


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16))
def test_an_address_with_dashes_is_read_back(data: bytes) -> None:
    address = Address(data)
    if data[:12] == bytes(10) + b"\xff\xff":  # an IPv4 address in IPv6's form is the IPv4 address
        address = Address(data[12:])
    assert parse_dashed_address(format_dashed_address(Address(data)).encode()) == address
    assert len(list(parent_names(encode_reverse_name(address)))) == (5 if len(address) == 4 else 33)


@given(st.lists(st.from_regex(r"[a-z0-9]{1,10}", fullmatch=True), min_size=1, max_size=6))
def test_names_are_below_their_parents_and_no_others(labels: list[str]) -> None:
    name = parse_name(".".join(labels))
    assert format_name(name) == ".".join(labels) + "."
    assert all(is_below(name, above) for above in parent_names(name))
    assert not any(is_below(above, name) for above in parent_names(name))
