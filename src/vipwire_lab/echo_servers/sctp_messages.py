"""The part of SCTP that one question and answer need, for kernels without SCTP sockets.

More kernels have conntrack and NAT of SCTP than its sockets, so the lab speaks SCTP through raw sockets. One stream,
no retransmission: namespaces lose no packets. Formats: RFC 9260 sections 3 and 5.1; the checksum is CRC32c (appendix
A).

    client  INIT ->  COOKIE-ECHO + DATA (hello) ->                  ABORT ->
    server         <- INIT-ACK         <- COOKIE-ACK + SACK + DATA (answer)
"""

import errno
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from vipwire.errors import DecodeError
from vipwire_lab.echo_servers.answer import HELLO, SocketAddress

DATA, INIT, INIT_ACK, SACK, ABORT, COOKIE_ECHO, COOKIE_ACK = 0, 1, 2, 3, 6, 10, 11

_HEADER = struct.Struct("!HHI4s")  # source port, destination port, verification tag, checksum
_CHUNK = struct.Struct("!BBH")  # type, flags, length with this header
_INIT = struct.Struct("!IIHHI")  # tag, window, streams out, streams in, first sequence number
_DATA = struct.Struct("!IHHI")  # sequence number, stream, number in the stream, kind of payload
_SACK = struct.Struct("!IIHH")  # cumulative sequence number, window, gaps, duplicates
_COOKIE_PARAMETER = 7
_WHOLE = 3  # flags of DATA: first and last fragment
_WINDOW = 65536
_REMEMBERED = 10_000


def _build_crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 - the register of the CRC
        table.append(value)
    return tuple(table)


_TABLE = _build_crc_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a packet; `value` follows its four bytes of header."""

    type: int
    value: bytes = b""
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet after its IP header. `tag` proves to the receiver that the sender belongs to the association."""

    source: int
    destination: int
    tag: int
    chunks: tuple[Chunk, ...]

    def encode(self) -> bytes:
        body = b"".join(
            _CHUNK.pack(chunk.type, chunk.flags, 4 + len(chunk.value)) + chunk.value + bytes(-len(chunk.value) % 4)
            for chunk in self.chunks
        )
        crc = crc32c(_HEADER.pack(self.source, self.destination, self.tag, bytes(4)) + body)
        return _HEADER.pack(self.source, self.destination, self.tag, crc.to_bytes(4, "little")) + body

    @classmethod
    def decode(cls, data: bytes) -> "Packet":
        """Decode it; raise DecodeError if truncated or with a wrong checksum (which NAT must have corrected)."""
        if len(data) < _HEADER.size:
            raise DecodeError("SCTP packet is cut short")
        source, destination, tag, checksum = _HEADER.unpack_from(data)
        if crc32c(data[:8] + bytes(4) + data[12:]).to_bytes(4, "little") != checksum:
            raise DecodeError("SCTP packet has a wrong checksum")
        return cls(source, destination, tag, tuple(_split_chunks(data)))

    def find(self, kind: int) -> Chunk | None:
        return next((chunk for chunk in self.chunks if chunk.type == kind), None)


def _split_chunks(data: bytes) -> Iterator[Chunk]:
    at = _HEADER.size
    while at + _CHUNK.size <= len(data):
        kind, flags, length = _CHUNK.unpack_from(data, at)
        if length < _CHUNK.size or at + length > len(data):
            raise DecodeError(f"SCTP chunk at byte {at} says it is {length} bytes long")
        yield Chunk(kind, data[at + _CHUNK.size : at + length], flags)
        at += length + 3 & ~3


def _unpack(layout: struct.Struct, chunk: Chunk) -> tuple[int, ...]:
    if len(chunk.value) < layout.size:
        raise DecodeError(f"SCTP chunk of type {chunk.type} is cut short")
    return layout.unpack_from(chunk.value)


class Asker:
    """The client of an association: `receive` returns the next packet and, at the end, the answer."""

    def __init__(self, source: int, destination: int, tag: int) -> None:
        self._ports = (source, destination)
        self._tag = tag
        self._peer_tag = 0

    def first_packet(self) -> bytes:
        return self._build_packet(Chunk(INIT, _INIT.pack(self._tag, _WINDOW, 1, 1, self._tag)))

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Handle a packet; return the packet to send and the answer, each b"" if absent.

        Raise ConnectionRefusedError if the server aborts. Skips other packets, which a raw socket also sees.
        """
        packet = Packet.decode(data)
        if (packet.destination, packet.source) != self._ports or packet.tag != self._tag:
            return b"", b""
        if packet.find(ABORT):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "aborted")
        if opening := packet.find(INIT_ACK):
            self._peer_tag = _unpack(_INIT, opening)[0]
            cookie = opening.value[_INIT.size + 4 :]
            hello = Chunk(DATA, _DATA.pack(self._tag, 0, 0, 0) + HELLO, _WHOLE)
            return self._build_packet(Chunk(COOKIE_ECHO, cookie), hello), b""
        if data_chunk := packet.find(DATA):
            _unpack(_DATA, data_chunk)
            return self._build_packet(Chunk(ABORT)), data_chunk.value[_DATA.size :]
        return b"", b""

    def _build_packet(self, *chunks: Chunk) -> bytes:
        return Packet(*self._ports, self._peer_tag, chunks).encode()


class Responder:
    """The server's side, for all ports of a host. `answer` makes the line from the client's and the own address."""

    def __init__(self, answer: Callable[[SocketAddress, SocketAddress], bytes], new_tag: Callable[[], int]) -> None:
        self.ports: set[int] = set()
        self._answer, self._new_tag = answer, new_tag
        self._tags: dict[tuple[SocketAddress, SocketAddress], tuple[int, int]] = {}
        """The tags (theirs, ours) of each association, the oldest first."""

    @property
    def associations(self) -> Collection[tuple[SocketAddress, SocketAddress]]:
        """The associations as (client, server), the oldest first."""
        return self._tags.keys()

    def receive(self, data: bytes, peer_address: str, local_address: str) -> bytes:
        """Handle a packet; return the reply, b"" for none. Raise DecodeError for another format."""
        packet = Packet.decode(data)
        peer, local = SocketAddress(peer_address, packet.source), SocketAddress(local_address, packet.destination)
        if opening := packet.find(INIT):
            return self._open_association(peer, local, _unpack(_INIT, opening)[0])
        theirs, ours = self._tags.get((peer, local), (0, 0))
        if not ours or packet.tag != ours:
            return b""
        if packet.find(ABORT):
            del self._tags[peer, local]
            return b""
        chunks: list[Chunk] = [Chunk(COOKIE_ACK)] if packet.find(COOKIE_ECHO) else []
        if asked := packet.find(DATA):
            chunks.append(Chunk(SACK, _SACK.pack(_unpack(_DATA, asked)[0], _WINDOW, 0, 0)))
            chunks.append(Chunk(DATA, _DATA.pack(ours, 0, 0, 0) + self._answer(peer, local), _WHOLE))
        return self._build_packet(peer, local, theirs, chunks) if chunks else b""

    def _open_association(self, peer: SocketAddress, local: SocketAddress, theirs: int) -> bytes:
        if local.port not in self.ports:
            return self._build_packet(peer, local, theirs, [Chunk(ABORT)])
        if len(self._tags) >= _REMEMBERED:
            del self._tags[next(iter(self._tags))]
        ours = self._new_tag()
        self._tags[peer, local] = (theirs, ours)
        cookie = struct.pack("!HHI", _COOKIE_PARAMETER, 8, ours)
        return self._build_packet(
            peer, local, theirs, [Chunk(INIT_ACK, _INIT.pack(ours, _WINDOW, 1, 1, ours) + cookie)]
        )

    @staticmethod
    def _build_packet(peer: SocketAddress, local: SocketAddress, tag: int, chunks: Sequence[Chunk]) -> bytes:
        return Packet(local.port, peer.port, tag, tuple(chunks)).encode()
