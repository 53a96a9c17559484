"""Whatever a datagram holds: messages, attributes and acknowledgements of it, or a DecodeError."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    NLMSG_ERROR,
    collect_attributes,
    decode_acknowledgement,
    encode_message,
    encode_nested,
    encode_string,
    encode_u32be,
    split_messages,
    walk_attributes,
)

_WHOLE = st.builds(
    encode_message, st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.binary(max_size=40)
)
_ERRORS = st.builds(
    lambda flags, body: encode_message(NLMSG_ERROR, flags, 1, body),
    st.sampled_from((0, 0x100, 0x200, 0x300)),
    st.binary(max_size=60),
)
_ATTRIBUTES = st.lists(
    st.one_of(
        st.builds(encode_u32be, st.integers(0, 40), st.integers(0, 0xFFFFFFFF)),
        st.builds(encode_string, st.integers(0, 40), st.text(max_size=8)),
        st.builds(encode_nested, st.integers(0, 40), st.binary(max_size=12)),
        st.binary(max_size=8),
    ),
    max_size=6,
).map(b"".join)


@given(st.binary(max_size=200) | st.lists(_WHOLE | _ERRORS | st.binary(max_size=20), max_size=4).map(b"".join))
def test_a_datagram_is_split_or_refused(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        for message in split_messages(data):
            assert len(message.payload) <= len(data) - 16
            if message.type == NLMSG_ERROR:
                with contextlib.suppress(DecodeError):
                    assert isinstance(decode_acknowledgement(message).text, str)


@given(st.binary(max_size=200) | _ATTRIBUTES, st.integers(0, 20))
def test_attributes_are_walked_or_refused(data: bytes, at: int) -> None:
    with contextlib.suppress(DecodeError):
        found = list(walk_attributes(data, at))
        assert sum(len(value) + 4 for _, value in found) <= max(0, len(data) - at)
        assert collect_attributes(data, at).keys() == {kind for kind, _ in found}
