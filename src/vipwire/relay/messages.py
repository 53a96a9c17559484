"""The messages between the control process and a relay: MessagePack, each behind its length.

The relay is a process of its own, so that neither the relaying nor the syncing stalls the other, and that connections
outlive a restart of the proxy. It listens on a Unix socket of its network namespace (`local_sockets`), named for the
user and the family: where one answers there, it is the only one.
"""

import struct
from typing import Final, TypeAlias, TypeVar

import msgspec

from vipwire.errors import DecodeError

VERSION: Final = 3
"""Of these messages. A relay of another version is told to retire; `Hello` and `Retire` mean the same in all."""

HEAD: Final = struct.Struct("!I")
LARGEST: Final = 64 << 20
"""Bytes of one message that are believed to be meant: a batch of listeners has a hundredth."""


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An address (4 or 16 bytes) and a port; port 0 where any will do."""

    address: bytes
    port: int


NOWHERE: Final = Place(b"", 0)
"""Stands among a UDP listener's shares for clients that nobody is to have: what they send is dropped, and counted."""


class Share(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An endpoint and its weight, 1 to 100."""

    place: Place
    weight: int = 1


class Listener(msgspec.Struct, frozen=True, array_like=True):
    """One frontend in the relay: where it listens, and to which endpoints it relays.

    `name` is for people. `protocol` is the IANA number. `algorithm` is a value of `balance.Choice`. `affinity` is the
    seconds for which a client keeps its endpoint, 0 for not at all; listeners of one `group` share the memory of it,
    and where that has nothing that can be used, they ask that of the group `beside`, if there is one. If `whole`, an
    endpoint is remembered by its address, whichever of its ports is meant.
    `sources` are (network, prefix length), None for everybody. `proxy_protocol` is the version of the header that
    endpoints are sent, 0 for none. `serving` may go on to answer UDP clients that they have. `span` is the range of
    ports, first and last, that rules lead here, (0, 0) for a single one; an endpoint's port 0 is then the client's.
    """

    name: str
    protocol: int
    binds: tuple[Place, ...]
    shares: tuple[Share, ...]
    algorithm: str = "round-robin"
    affinity: int = 0
    group: str = ""
    sources: tuple[tuple[bytes, int], ...] | None = None
    proxy_protocol: int = 0
    serving: tuple[Place, ...] = ()
    beside: str = ""
    whole: bool = False
    span: tuple[int, int] = (0, 0)


class Hello(msgspec.Struct, tag=True):
    """Asks which relay runs."""


class RelaySettings(msgspec.Struct, tag="Settings", frozen=True):
    """Settings that all listeners share. The range is [first, last], [0, 0] for any; the timeout in seconds."""

    ports: tuple[int, int] = (0, 0)
    udp_timeout: float = 0.25


class Observe(msgspec.Struct, tag=True):
    """Asks for all listeners."""


class Put(msgspec.Struct, tag=True):
    """Open these listeners, in place of those with the same key: all of them, or nothing is changed.

    Those in `instead` end with it; their sockets are handed on where another wants to listen at the same place.
    """

    listeners: dict[str, Listener]
    instead: list[str] = []


class Remove(msgspec.Struct, tag=True):
    """Close these listeners. Established connections go on."""

    keys: list[str]


class AskCounters(msgspec.Struct, tag="AskCounts"):
    """Asks for the counters."""


class AskNotes(msgspec.Struct, tag=True):
    """Asks for what an operator should know; each note is told once."""


class Retire(msgspec.Struct, tag=True):
    """Close all listeners, and end with the last connection."""


class Welcome(msgspec.Struct, tag=True):
    """The answer to `Hello`: who is there."""

    version: int
    pid: int
    settings: RelaySettings


class Observed(msgspec.Struct, tag=True):
    """The answer to `Observe`. Ports are those that were given, in the order of `binds`."""

    listeners: dict[str, Listener]
    ports: dict[str, list[int]]


class Opened(msgspec.Struct, tag=True):
    """The answer to `Put`: the ports."""

    ports: dict[str, list[int]]


class Refused(msgspec.Struct, tag=True):
    """The other answer to `Put`: which listener cannot be, and why."""

    key: str
    errno: int
    why: str


class Done(msgspec.Struct, tag=True):
    """The answer where there is nothing to tell."""


class EndpointCounters(msgspec.Struct, array_like=True):
    """The traffic to one endpoint of a listener. Bytes are those of the streams and datagrams themselves."""

    place: Place
    connections: int
    open: int
    sent: int
    received: int
    failed: int
    resting: bool = False


class RelayCounters(msgspec.Struct, tag="Counted"):
    """The answer to `AskCounters`: by listener; and the connections that were refused, by reason."""

    listeners: dict[str, list[EndpointCounters]]
    refused: dict[str, int]
    links: int


class Notes(msgspec.Struct, tag=True):
    """The answer to `AskNotes`: (text, how often since it was last told)."""

    notes: list[tuple[str, int]]


Request: TypeAlias = Hello | RelaySettings | Observe | Put | Remove | AskCounters | AskNotes | Retire
Answer: TypeAlias = Welcome | Observed | Opened | Refused | Done | RelayCounters | Notes

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: "msgspec.msgpack.Decoder[Request]" = msgspec.msgpack.Decoder(Request)
_ANSWERS: "msgspec.msgpack.Decoder[Answer]" = msgspec.msgpack.Decoder(Answer)
_Message = TypeVar("_Message")


def encode(message: Request | Answer) -> bytes:
    """Write a message with its length before it."""
    body = _ENCODER.encode(message)
    return HEAD.pack(len(body)) + body


def take_body(heard: bytearray) -> bytes | None:
    """Take a message without its length off what was heard; None if it is not complete. Raise DecodeError."""
    if len(heard) < HEAD.size:
        return None
    (size,) = HEAD.unpack_from(heard)
    if size > LARGEST:
        raise DecodeError(f"a message of {size} bytes")
    end = HEAD.size + size
    if len(heard) < end:
        return None
    body = bytes(heard[HEAD.size : end])
    del heard[:end]
    return body


def decode_request(body: bytes) -> Request:
    """Read a request without its length. Raise DecodeError."""
    return _decode(_REQUESTS, body)


def decode_answer(body: bytes) -> Answer:
    """Read an answer without its length. Raise DecodeError."""
    return _decode(_ANSWERS, body)


def _decode(decoder: "msgspec.msgpack.Decoder[_Message]", body: bytes) -> "_Message":
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"not a message between proxy and relay: {error}") from error
