"""A DNS server in the test's own process, on loopback, and a client that sends it bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from vipwire_up.dns.limits import ClientLimits
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.server import DnsServer
from vipwire_up.dns.sockets import open_pairs
from vipwire_up.dns.statistics import DnsStatistics


class Client(asyncio.DatagramProtocol):
    """Sends datagrams, and keeps the answers."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, _address: Any) -> None:
        self.answers.put_nowait(data)

    def send(self, data: bytes) -> None:
        self.transport.sendto(data)

    async def ask(self, wire: bytes) -> bytes:
        """Send a question and wait for the answer with its id."""
        self.send(wire)
        while (answer := await self.answers.get())[:2] != wire[:2]:
            pass
        return answer


@dataclass(frozen=True)
class Here:
    """The server, and its counts."""

    port: int
    tally: DnsStatistics
    client: Client

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def dns_here(resolver: Resolver, limits: ClientLimits | None = None) -> AsyncIterator[Here]:
    tally = DnsStatistics()
    async with asyncio.TaskGroup() as tasks:
        server = DnsServer(resolver, tally, tasks, limits)
        (pair,) = open_pairs(("127.0.0.1",), 0)
        await server.answer_on_sockets(pair)
        transport, client = await asyncio.get_running_loop().create_datagram_endpoint(
            Client, remote_addr=("127.0.0.1", pair.port)
        )
        try:
            yield Here(pair.port, tally, client)
        finally:
            transport.close()
            server.close()
