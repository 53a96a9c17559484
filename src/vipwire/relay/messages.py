"""The messages between the control process and a relay: MessagePack, each after its length.

The relay is a separate process, so that relaying and syncing do not delay each other, and connections survive a
restart of the proxy. It listens on a Unix socket of its network namespace (`local_sockets`), named for the user and
the family, which makes it the only one.
"""

import struct
from typing import Final, TypeAlias, TypeVar

import msgspec

from vipwire.errors import DecodeError

VERSION: Final = 3
"""The version of these messages. A relay of another version is told to retire; every version reads `Hello` and
`Retire`.
"""

HEAD: Final = struct.Struct("!I")
LARGEST: Final = 64 << 20
"""The most bytes of one message; a batch of listeners has a hundredth."""


class SocketAddress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An address (4 or 16 bytes) and a port; port 0 for any."""

    address: bytes
    port: int


NOWHERE: Final = SocketAddress(b"", 0)
"""The target, among a UDP listener's shares, of clients whose datagrams the relay drops and counts."""


class Share(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An endpoint and its weight, 1 to 100."""

    place: SocketAddress
    weight: int = 1


class Listener(msgspec.Struct, frozen=True, array_like=True):
    """One frontend in the relay: its sockets and its endpoints.

    `name` is for users. `protocol` is the IANA number. `algorithm` is a value of `balance.Choice`. `affinity` is the
    seconds for which a client keeps its endpoint, 0 for none. Listeners of one `group` share their clients'
    endpoints; if the group has no usable endpoint for a client, they ask the group `beside`. If `whole`, affinity
    remembers only an endpoint's address, for all its ports.

    `sources` are (network, prefix length), None for any client. `proxy_protocol` is the version of the header for
    endpoints, 0 for none. Endpoints in `serving` keep the UDP clients that they have. `span` is the range of ports,
    first and last, that rules translate to this listener, (0, 0) for a single one; an endpoint with port 0 gets the
    client's port.
    """

    name: str
    protocol: int
    binds: tuple[SocketAddress, ...]
    shares: tuple[Share, ...]
    algorithm: str = "round-robin"
    affinity: int = 0
    group: str = ""
    sources: tuple[tuple[bytes, int], ...] | None = None
    proxy_protocol: int = 0
    serving: tuple[SocketAddress, ...] = ()
    beside: str = ""
    whole: bool = False
    span: tuple[int, int] = (0, 0)


class Hello(msgspec.Struct, tag=True):
    """Asks for the relay's version."""


class RelaySettings(msgspec.Struct, tag="Settings", frozen=True):
    """Settings of all listeners. The range of ports is [first, last], [0, 0] for any; the timeout in seconds."""

    ports: tuple[int, int] = (0, 0)
    udp_timeout: float = 0.25


class Observe(msgspec.Struct, tag=True):
    """Asks for all listeners."""


class Put(msgspec.Struct, tag=True):
    """Open these listeners, replacing those with the same key; if one fails, nothing changes.

    Closes the listeners in `instead`, and reuses their sockets for new listeners at the same address and port.
    """

    listeners: dict[str, Listener]
    instead: list[str] = []


class Remove(msgspec.Struct, tag=True):
    """Close these listeners. Established connections continue."""

    keys: list[str]


class AskCounters(msgspec.Struct, tag="AskCounts"):
    """Asks for the counters."""


class AskNotes(msgspec.Struct, tag=True):
    """Asks for the notes for the operator; the relay returns each note once."""


class Retire(msgspec.Struct, tag=True):
    """Close all listeners, and exit after the last connection."""


class Welcome(msgspec.Struct, tag=True):
    """The answer to `Hello`: the relay's version and process."""

    version: int
    pid: int
    settings: RelaySettings


class Observed(msgspec.Struct, tag=True):
    """The answer to `Observe`. Ports are the assigned ones, in the order of `binds`."""

    listeners: dict[str, Listener]
    ports: dict[str, list[int]]


class Opened(msgspec.Struct, tag=True):
    """The answer to `Put`: the assigned ports."""

    ports: dict[str, list[int]]


class Refused(msgspec.Struct, tag=True):
    """The other answer to `Put`: the listener that failed, and the error."""

    key: str
    errno: int
    why: str


class Done(msgspec.Struct, tag=True):
    """The empty answer."""


class EndpointCounters(msgspec.Struct, array_like=True):
    """The traffic to one endpoint of a listener. Bytes are payload only."""

    place: SocketAddress
    connections: int
    open: int
    sent: int
    received: int
    failed: int
    ejected: bool = False


class RelayCounters(msgspec.Struct, tag="Counted"):
    """The answer to `AskCounters`: the traffic by listener, and refused connections by reason."""

    listeners: dict[str, list[EndpointCounters]]
    refused: dict[str, int]
    links: int


class Notes(msgspec.Struct, tag=True):
    """The answer to `AskNotes`: (text, number of times since the last answer)."""

    notes: list[tuple[str, int]]


Request: TypeAlias = Hello | RelaySettings | Observe | Put | Remove | AskCounters | AskNotes | Retire
Answer: TypeAlias = Welcome | Observed | Opened | Refused | Done | RelayCounters | Notes

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: "msgspec.msgpack.Decoder[Request]" = msgspec.msgpack.Decoder(Request)
_ANSWERS: "msgspec.msgpack.Decoder[Answer]" = msgspec.msgpack.Decoder(Answer)
_Message = TypeVar("_Message")


def encode_message(message: Request | Answer) -> bytes:
    body = _ENCODER.encode(message)
    return HEAD.pack(len(body)) + body


def take_body(heard: bytearray) -> bytes | None:
    """Remove one message from `heard` and return it without its length; None if incomplete. Raise DecodeError."""
    if len(heard) < HEAD.size:
        return None
    (size,) = HEAD.unpack_from(heard)
    if size > LARGEST:
        raise DecodeError(f"a message has {size} bytes (allowed: at most {LARGEST})")
    end = HEAD.size + size
    if len(heard) < end:
        return None
    body = bytes(heard[HEAD.size : end])
    del heard[:end]
    return body


def decode_request(body: bytes) -> Request:
    return _decode_message(_REQUESTS, body)


def decode_answer(body: bytes) -> Answer:
    return _decode_message(_ANSWERS, body)


def _decode_message(decoder: "msgspec.msgpack.Decoder[_Message]", body: bytes) -> "_Message":
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"not a message between proxy and relay: {error}") from error
