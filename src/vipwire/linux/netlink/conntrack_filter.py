"""The socket filter by which only beginnings and bad ends come from conntrack's events.

    NEW          a flow of one of the protocols to one of the endpoints begins (TCP: with a SYN)
    DESTROYED    it ends without an answer; the kernel kills a flow at once whose only answer is a reset

Everything else that happens on the node (other addresses, ends of answered flows) never leaves the kernel. Of an
address the last four bytes are compared, so that an IPv6 address may pass by mistake. Where there are more addresses
than a program can hold, all pass.

The group of updates is not joined at all: for each of its messages, six a connection, the kernel takes over a
microsecond, whoever the connection is for.
"""

import struct
from collections.abc import Collection, Iterable
from typing import Final

from vipwire.linux.netlink.conntrack import CT_DELETE, CT_NEW, STATUS_SEEN_REPLY
from vipwire.linux.netlink.message import NLM_F_CREATE
from vipwire.linux.netlink.socket_filter import (
    DISCARD,
    PASS,
    Place,
    Program,
    assemble,
    find,
    go,
    if_any_bit,
    if_equal,
    load_byte,
    load_byte_of_attribute,
    load_half,
    load_word_of_attribute,
    pass_if_among,
)
from vipwire.model.net import Address, Protocol

MOST_ADDRESSES: Final = 1024

_TYPE, _FLAGS, _FAMILY, _ATTRIBUTES = 4, 6, 16, 20  # nlmsghdr has 16 bytes, nfgenmsg 4
_ORIGINAL, _REPLY, _STATUS, _PROTOCOL_STATE = 1, 2, 3, 4
_AF_INET = 2
_SYN_SENT = 1  # enum tcp_conntrack


def beginnings_and_ends(addresses: Collection[Address], protocols: Iterable[Protocol]) -> bytes:
    """Make the filter for endpoints at these addresses."""
    protocol = [*find(_ATTRIBUTES, _ORIGINAL, 2, 1, missing="discard"), load_byte_of_attribute()]  # CTA_PROTO_NUM
    return assemble(
        [
            *protocol,
            *(if_equal(each, "wanted") for each in sorted(protocols)),
            go("discard"),
            Place("wanted"),
            load_half(_TYPE),
            if_equal(_host(CT_DELETE), "destroyed"),
            if_equal(_host(CT_NEW), "", "discard"),
            load_half(_FLAGS),
            if_any_bit(_host(NLM_F_CREATE), "new", "discard"),
            Place("destroyed"),
            *find(_ATTRIBUTES, _STATUS, missing="discard"),
            load_word_of_attribute(),
            if_any_bit(STATUS_SEEN_REPLY, "discard", "address"),
            Place("new"),
            *protocol,
            if_equal(Protocol.TCP, "", "address"),
            *find(_ATTRIBUTES, _PROTOCOL_STATE, 1, 1, missing="discard"),  # CTA_PROTOINFO_TCP, _TCP_STATE
            load_byte_of_attribute(),
            if_equal(_SYN_SENT, "address"),
            Place("discard"),
            DISCARD,
            Place("address"),
            *_to(addresses),
        ]
    )


def _to(addresses: Collection[Address]) -> Program:
    """Pass what comes back from one of these addresses."""
    if len(addresses) > MOST_ADDRESSES:
        return [PASS]
    return [
        load_byte(_FAMILY),
        if_equal(_AF_INET, "", "IPv6"),
        *find(_ATTRIBUTES, _REPLY, 1, 1, missing="stray"),  # CTA_TUPLE_IP, CTA_IP_V4_SRC
        load_word_of_attribute(),
        go("compare"),
        Place("IPv6"),
        *find(_ATTRIBUTES, _REPLY, 1, 3, missing="stray"),  # CTA_IP_V6_SRC
        load_word_of_attribute(12),
        go("compare"),
        Place("stray"),
        DISCARD,
        Place("compare"),
        *pass_if_among(int.from_bytes(address[-4:]) for address in addresses),
    ]


def _host(number: int) -> int:
    """Turn a number that the kernel writes in its own order into what a load in network order makes of it."""
    loaded: int = struct.unpack(">H", struct.pack("=H", number))[0]
    return loaded
