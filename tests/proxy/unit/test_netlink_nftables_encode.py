import struct

import pytest

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attributes, walk
from vipwire.linux.netlink.message import NLM_F_ACK, messages
from vipwire.linux.netlink.nftables import decode, encode, userdata, wire
from vipwire.linux.netlink.nftables.elements import element
from vipwire.linux.netlink.nftables.encode import NetfilterHook
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.model.net import Family

FAMILY = Family.IPV4


def test_a_transaction_is_numbered_without_gaps_and_asks_once_for_an_answer() -> None:
    operations = [encode.new_chain(FAMILY, "t", name) for name in ("a", "b", "c")]
    sent = list(messages(encode.transaction(operations, 7)))
    assert [message.sequence for message in sent] == [7, 8, 9, 10, 11]
    assert [message.type for message in sent] == [0x10, *[MessageType.NEWCHAIN] * 3, 0x11]
    assert [bool(message.flags & NLM_F_ACK) for message in sent] == [False, False, False, True, False]
    assert [bytes(message.payload) for message in sent[1:-1]] == [operation.payload for operation in operations]


def test_a_refusal_leads_to_its_operation() -> None:
    operations = [encode.new_chain(FAMILY, "t", name) for name in ("a", "b")]
    found = [encode.find_refused(operations, 7, sequence) for sequence in (6, 7, 8, 9, 10)]
    assert found == [None, None, operations[0], operations[1], None]


def test_elements_are_packed_so_that_no_attribute_is_too_long() -> None:
    blobs = [element(struct.pack(">4I", number, 0, 0, 0), bytes(8)) for number in range(5000)]
    packed = encode.new_elements(FAMILY, "vipwire", "endpoints", blobs)
    members: list[bytes] = []
    for operation in packed:
        found = attributes(operation.payload, 4)[wire.ELEMENTS_LIST]
        assert 0 < len(found) <= encode.ELEMENTS_PER_MESSAGE
        members += [bytes(value) for _, value in walk(found)]
    assert members == [blob[4:] for blob in blobs]
    assert encode.new_elements(FAMILY, "vipwire", "endpoints", []) == []


def test_what_was_encoded_can_be_decoded() -> None:
    table = encode.new_table(Family.IPV6, "vipwire", "Services")
    assert decode.decode_table(memoryview(table.payload)) == decode.ListedTable(10, "vipwire", 0)
    hook = NetfilterHook("filter", encode.HOOKS["input"], -110, "drop")
    chain = encode.new_chain(FAMILY, "vipwire", "in", hook)
    assert decode.chain(memoryview(chain.payload)) == decode.ListedChain(2, "vipwire", "in", 0, hook)
    rule = encode.new_rule(FAMILY, "vipwire", "in", b"\4\0\1\0")
    assert decode.rule(memoryview(rule.payload)) == decode.ListedNftRule(2, "vipwire", "in", 0, b"\4\0\1\0")


@pytest.mark.parametrize(
    "read", [decode.decode_table, decode.chain, decode.rule, decode.declaration, decode.generation]
)
def test_messages_that_lack_what_they_must_have_are_refused(read: object) -> None:
    assert callable(read)
    for payload in (b"", b"\2\0\0", wire.header(2)):
        with pytest.raises(DecodeError):
            read(memoryview(payload))


def test_a_base_chain_without_a_priority_is_refused() -> None:
    chain = encode.new_chain(FAMILY, "vipwire", "in", NetfilterHook("nat", 0, 0)).payload
    damaged = chain.replace(struct.pack("=HHI", 8, wire.HOOK_PRIORITY, 0), struct.pack("=HHI", 8, 99, 0))
    with pytest.raises(DecodeError, match="priority"):
        decode.chain(memoryview(damaged))


def test_a_comment_that_is_too_long_is_cut() -> None:
    assert userdata.comment_of(userdata.comment("x" * 500)) == "x" * userdata.LONGEST_COMMENT


def test_userdata_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="255"):
        userdata.entry(0, bytes(256))
    with pytest.raises(DecodeError):
        userdata.entries(b"\0\5abc")
