"""Whatever the bytes, the decoders of ctnetlink and rtnetlink return or raise DecodeError, and nothing else."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.conntrack import encode_flow

from vipwire.errors import DecodeError
from vipwire.linux.netlink.conntrack import CT_DELETE, CT_NEW, Flow, FlowDecoder, decode, decode_event
from vipwire.linux.netlink.links import decode_address, decode_link
from vipwire.linux.netlink.message import Message
from vipwire.linux.netlink.route import decode_route, decode_rule
from vipwire.model.net import parse_address

A4, A6 = parse_address("10.0.0.1"), parse_address("fd00::1")
SEEDS = [
    encode_flow(Flow(17, address, 1, address, 2, address, 3, address, 4, 5, 6, 7, 8, zone))
    for address in (A4, A6)
    for zone in (0, 9)
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a real message with some bytes changed, and perhaps cut."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=6)):
        data[at] = value
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


def outcome(payload: bytes, decoder: FlowDecoder | None) -> Flow | str:
    try:
        return (decoder.decode if decoder else decode)(memoryview(payload))
    except DecodeError as error:
        return str(error)


@given(st.lists(st.binary(max_size=200) | damaged(), max_size=6))
def test_a_flow_or_a_decode_error_and_the_same_with_memory(payloads: list[bytes]) -> None:
    decoder = FlowDecoder()
    for payload in [*SEEDS, *payloads, *payloads]:
        assert outcome(payload, decoder) == outcome(payload, None)


@given(st.binary(max_size=200) | damaged(), st.sampled_from([CT_NEW, CT_DELETE, 0]), st.integers(0, 0xFFFF))
def test_an_event_or_a_decode_error(payload: bytes, kind: int, flags: int) -> None:
    with contextlib.suppress(DecodeError):
        event = decode_event(Message(kind, flags, 0, memoryview(payload)))
        assert (event is None) is (kind == 0)


@given(st.binary(max_size=100) | st.binary(max_size=60).map(lambda tail: b"\x02\x18\x80\0\x03\0\0\0" + tail))
def test_an_address_or_a_decode_error(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        found = decode_address(memoryview(payload))
        assert found is None or len(found.address) in (4, 16)


@given(st.binary(max_size=100))
def test_a_link_or_a_decode_error(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(decode_link(memoryview(payload)).name, str)


@given(
    st.binary(max_size=100) | st.binary(max_size=60).map(lambda tail: b"\x02\x18\0\0\xfe\x04\0\x01\0\0\0\0" + tail)
)
def test_a_route_and_a_rule_or_a_decode_error(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        found = decode_route(memoryview(payload))
        assert found is None or len(found.destination.network) in (4, 16)
    with contextlib.suppress(DecodeError):
        assert decode_rule(memoryview(payload)).table >= 0
