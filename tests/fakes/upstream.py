"""A small name server on loopback: answers over UDP and TCP with a function's results."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import dns.message
import dns.rcode
import dns.rrset

from vipwire_up.dns.upstream.exchange import UpstreamServer

Records = Callable[[dns.message.Message, str], "bytes | None"]
Answering = Callable[[dns.message.Message, str], "bytes | list[bytes] | None"]
"""Makes the answers to a question over `udp` or `tcp`; None means silence."""


@dataclass
class Upstream:
    """One server; `asked` are the questions' transports and lower-case names, `letters` the original names."""

    answering: Answering
    server: UpstreamServer = field(default=UpstreamServer("127.0.0.1"))
    asked: list[tuple[str, str]] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)

    def take(self, data: bytes, protocol: str) -> list[bytes]:
        message = dns.message.from_wire(data)
        name = message.question[0].name.to_text()
        self.asked.append((protocol, name.lower()))
        self.letters.append(name)
        made = self.answering(message, protocol)
        return made if isinstance(made, list) else [made] if made is not None else []


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        for answer in self._upstream.take(data, "udp"):
            self._transport.sendto(answer, address)


@contextlib.asynccontextmanager
async def upstream(answering: Answering) -> AsyncIterator[Upstream]:
    made = Upstream(answering)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        for answer in made.take(data, "tcp"):
            writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()
        writer.close()

    stream = await asyncio.start_server(converse, "127.0.0.1", 0)
    port = stream.sockets[0].getsockname()[1]
    datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(made), local_addr=("127.0.0.1", port)
    )
    made.server = UpstreamServer("127.0.0.1", port)
    try:
        yield made
    finally:
        datagrams.close()
        stream.close()
        await stream.wait_closed()


def records(*texts: str, rcode: int = 0, authority: tuple[str, ...] = ()) -> Records:
    """Answer everything with these records, written as in a zone file; @ is the question's name."""

    def answering(message: dns.message.Message, _protocol: str) -> bytes:
        response = dns.message.make_response(message)
        response.set_rcode(dns.rcode.Rcode(rcode))
        name = message.question[0].name.to_text()
        response.answer = [_rrset(text.replace("@", name, 1)) for text in texts]
        response.authority = [_rrset(text) for text in authority]
        return response.to_wire(max_size=65535)

    return answering


def _rrset(text: str) -> dns.rrset.RRset:
    name, ttl, _, kind, data = text.split(None, 4)
    return dns.rrset.from_text(name, int(ttl), "IN", kind, data)
