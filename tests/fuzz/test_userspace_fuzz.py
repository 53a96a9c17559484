"""Whatever a relay or a control process is sent, and whatever iptables-save prints: a value, or a DecodeError."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.modes.userspace.script import read_rules, write_removal
from vipwire.relay.messages import (
    HEAD,
    Hello,
    Listener,
    Observed,
    Put,
    Share,
    SocketAddress,
    decode_answer,
    decode_request,
    encode_message,
)

places = st.builds(SocketAddress, st.binary(min_size=4, max_size=16), st.integers(0, 65535))
listeners = st.builds(
    Listener,
    st.text(max_size=20),
    st.sampled_from([6, 17]),
    st.lists(places, max_size=3).map(tuple),
    st.lists(st.builds(Share, places, st.integers(1, 100)), max_size=3).map(tuple),
)
lines = st.text(st.sampled_from('-A:KUBE-PORTALS_CONTAINER nat*filter"j dps 0123456789./{}\n'), max_size=300)


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_a_decode_error(data: bytes) -> None:
    for decode in (decode_request, decode_answer):
        with suppress(DecodeError):
            assert decode(data) is not None


@given(st.dictionaries(st.text(max_size=10), listeners, max_size=3))
def test_what_is_encoded_is_decoded(found: dict[str, Listener]) -> None:
    assert decode_request(encode_message(Put(found))[HEAD.size :]) == Put(found)
    assert decode_answer(encode_message(Observed(found, {}))[HEAD.size :]) == Observed(found, {})


def test_a_message_of_the_other_direction_is_an_error() -> None:
    with pytest.raises(DecodeError):
        decode_answer(encode_message(Hello())[HEAD.size :])


@given(lines)
def test_whatever_iptables_save_prints_is_read_and_can_be_removed(text: str) -> None:
    with suppress(DecodeError):
        found = read_rules(text, {("tcp", 80): "web"})
        assert isinstance(found, dict)
        assert isinstance(write_removal(text), str)
