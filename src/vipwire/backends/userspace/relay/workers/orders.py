"""The messages between a relay and its workers: MessagePack behind its length, with listening sockets beside it."""

from typing import Final, TypeAlias

import msgspec

from vipwire.backends.userspace.messages import HEAD, AskNotes, Done, Listener, Remove, Retire

MOST_SOCKETS: Final = 200
"""Sockets that come with one message: the kernel takes 253 (SCM_MAX_FD)."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """A listener, how many sockets come with it (none if it keeps those it has), and its `Seats` on the board."""

    listener: Listener
    sockets: int
    turn: int
    rows: tuple[int, ...]
    seed: int


class Hand(msgspec.Struct, tag=True):
    """Have these listeners, in place of those with the same key. Their sockets come in the same order."""

    listeners: dict[str, Handed]


class Told(msgspec.Struct, tag=True):
    """The answer to `AskNotes`: what an operator should know, who was refused since the start, open connections."""

    notes: list[tuple[str, int]]
    refused: dict[str, int]
    links: int


Order: TypeAlias = Hand | Remove | AskNotes | Retire
Reply: TypeAlias = Done | Told
"""A worker says `Done` of itself once, when it is ready."""

_ENCODER: Final = msgspec.msgpack.Encoder()
ORDERS: Final["msgspec.msgpack.Decoder[Order]"] = msgspec.msgpack.Decoder(Order)
REPLIES: Final["msgspec.msgpack.Decoder[Reply]"] = msgspec.msgpack.Decoder(Reply)


def encode(message: Order | Reply) -> bytes:
    """Write a message with its length before it."""
    body = _ENCODER.encode(message)
    return HEAD.pack(len(body)) + body
