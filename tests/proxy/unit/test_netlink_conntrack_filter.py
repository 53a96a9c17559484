"""The filter of conntrack's events, run here as the kernel runs it."""

import struct
from dataclasses import dataclass

import pytest
from tests.fakes.conntrack import encode_flow
from tests.fakes.values import ip

from vipwire.linux.netlink.conntrack import CT_DELETE, CT_GET, CT_NEW, STATUS_SEEN_REPLY, Flow
from vipwire.linux.netlink.message import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    collect_attributes,
    encode_attribute,
    encode_message,
    encode_nested,
)
from vipwire.linux.netlink.socket_filter import (
    LONGEST,
    MOST_ADDRESSES,
    PASS,
    assemble,
    if_equal,
    load_byte,
    pass_new_and_ended_flows,
)
from vipwire.model.net import Address, Protocol

POD, POD6, OTHER = ip("10.0.0.7"), ip("fd00::7"), ip("10.0.0.8")
FEW = (POD, POD6)
SYN_SENT, ESTABLISHED = 1, 3
FRESH = NLM_F_CREATE | NLM_F_EXCL


@dataclass
class Machine:
    """The registers of a program that runs on a message."""

    message: bytes
    a: int = 0
    x: int = 0

    def run(self, program: bytes) -> bool:
        steps = list(struct.iter_unpack("=HBBI", program))
        at = 0
        while True:
            code, yes, no, value = steps[at]
            at += 1
            if code == 0x06:
                return bool(value)
            if code == 0x05:
                at += value
            elif code & 0x07 == 0x05:
                holds = {0x15: self.a == value, 0x35: self.a >= value, 0x45: bool(self.a & value)}[code]
                at += yes if holds else no
            else:
                self.load(code, value)

    def load(self, code: int, value: int) -> None:
        if code == 0x00:
            self.a = value
        elif code in (0x01, 0x07):
            self.x = value if code == 0x01 else self.a
        elif code == 0x20:
            self.a = self.found(nested=value == 0xFFFFF000 + 16)
        else:
            base, size = (self.x if code & 0xE0 == 0x40 else 0), {0x00: 4, 0x08: 2, 0x10: 1}[code & 0x18]
            self.a = int.from_bytes(self.message[base + value : base + value + size])

    def found(self, *, nested: bool) -> int:
        """Find the attribute X, from A on or within the attribute at A; 0 if there is none."""
        start = self.a + 4 if nested else self.a
        end = self.a + struct.unpack_from("=H", self.message, self.a)[0] if nested else len(self.message)
        while start + 4 <= end:
            length, kind = struct.unpack_from("=HH", self.message, start)
            if kind & 0x3FFF == self.x:
                return start
            start += (length + 3) & ~3
        return 0


def flow(pod: Address = POD, status: int = 0, protocol: Protocol = Protocol.TCP) -> Flow:
    client, vip = (ip("10.0.0.1"), ip("10.96.0.1")) if len(pod) == 4 else (ip("fd00::1"), ip("fd96::1"))
    return Flow(protocol, client, 4000, vip, 80, pod, 8080, client, 4000, status, 0, 0, 7)


def told(kind: int, of: Flow, flags: int = 0, state: int | None = SYN_SENT) -> bytes:
    payload = encode_flow(of)
    if state is not None:
        payload += encode_nested(4, encode_nested(1, encode_attribute(1, bytes((state,)))))
    return encode_message(kind, flags, 0, payload)


def passes(message: bytes, addresses: tuple[Address, ...] = FEW, *protocols: Protocol) -> bool:
    return Machine(message).run(pass_new_and_ended_flows(addresses, protocols or (Protocol.TCP,)))


@pytest.mark.parametrize("pod", FEW)
def test_a_beginning_passes_and_an_end_without_an_answer(pod: Address) -> None:
    assert passes(told(CT_NEW, flow(pod), FRESH))
    assert passes(told(CT_DELETE, flow(pod)))


@pytest.mark.parametrize(
    "message",
    [
        told(CT_NEW, flow(OTHER), FRESH),
        told(CT_NEW, flow(), FRESH, state=ESTABLISHED),
        told(CT_NEW, flow(), FRESH, state=None),
        told(CT_NEW, flow(protocol=Protocol.UDP), FRESH),
        told(CT_NEW, flow()),
        told(CT_DELETE, flow(protocol=Protocol.UDP)),
        told(CT_NEW, flow(status=STATUS_SEEN_REPLY)),
        told(CT_DELETE, flow(status=STATUS_SEEN_REPLY)),
        told(CT_GET, flow()),
        encode_message(CT_NEW, FRESH, 0, struct.pack("=BBH", 2, 0, 0)),
        encode_message(CT_DELETE, 0, 0, struct.pack("=BBH", 10, 0, 0)),
    ],
    ids=[
        "other",
        "mid-stream",
        "stateless",
        "UDP",
        "an update",
        "UDP ended",
        "answered",
        "ended well",
        "a dump",
        "bare",
        "bare6",
    ],
)
def test_all_else_does_not(message: bytes) -> None:
    assert not passes(message)


@pytest.mark.parametrize("protocol", [Protocol.UDP, Protocol.SCTP])
def test_other_protocols_have_no_state_to_look_at(protocol: Protocol) -> None:
    assert passes(told(CT_NEW, flow(protocol=protocol), FRESH, state=None), FEW, Protocol.TCP, protocol)


def test_of_many_addresses_each_is_found_and_no_other() -> None:
    many = tuple(Address((0x0A000000 + 3 * number).to_bytes(4)) for number in range(MOST_ADDRESSES))
    assert len(pass_new_and_ended_flows(many, Protocol)) // 8 <= LONGEST
    for number in (0, 1, 7, 8, 500, MOST_ADDRESSES - 1):
        assert passes(told(CT_NEW, flow(many[number]), FRESH), many)
        assert not passes(told(CT_NEW, flow(Address((0x0A000001 + 3 * number).to_bytes(4))), FRESH), many)


def test_of_more_than_a_program_holds_all_pass() -> None:
    many = tuple(Address((0x0B000000 + number).to_bytes(4)) for number in range(MOST_ADDRESSES + 1))
    assert passes(told(CT_NEW, flow(), FRESH), many)


def test_what_the_kernel_would_refuse_is_refused_here() -> None:
    with pytest.raises(ValueError, match="at most 4096"):
        assemble([PASS] * (LONGEST + 1))
    with pytest.raises(ValueError, match="too far"):
        assemble([if_equal(1, "+300"), *[load_byte(0)] * 300, PASS])


def test_the_messages_of_this_test_are_what_they_say() -> None:
    message = told(CT_NEW, flow(), FRESH)
    assert 4 in dict(collect_attributes(memoryview(message)[20:]))
