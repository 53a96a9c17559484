"""The sockets: questions in over UDP and TCP, answers out.

UDP is read straight from the socket, many datagrams at a time, and answered at once where the answer is in memory;
asyncio's own transports take twice as long for each. On a wildcard address the answer must leave from the address
that was asked (the asker's socket takes no other), so the kernel is asked which it was: IP_PKTINFO, ip(7), ipv6(7).
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from vipwire.dns.message import FORMERR, SERVFAIL, Query, Refusal, Reply, read_query, render
from vipwire.dns.resolver import Resolver
from vipwire.dns.sockets import IP_PKTINFO, Pair
from vipwire.dns.statistics import Tally

AT_ONCE: Final = 64
"""Datagrams that are read before other work has its turn."""
MOST_WAITING: Final = 1000
"""Questions that wait for upstream; beyond, SERVFAIL is the answer."""
MOST_CONNECTIONS: Final = 500
IDLE: Final = 10.0
"""Seconds after which a silent or slow TCP connection is closed (RFC 7766 6.2.3)."""
_IN_PKTINFO = struct.Struct("@i4s4s")


class DnsServer:
    """Answers at sockets until it is left, as a context. `tasks` holds what waits for upstream."""

    def __init__(self, resolver: Resolver, tally: Tally, tasks: asyncio.TaskGroup) -> None:
        self._resolver, self._tally, self._tasks = resolver, tally, tasks
        self._waiting: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._closers: list[Callable[[], None]] = []

    def close(self) -> None:
        """Close the sockets and end what is under way."""
        for closer in self._closers:
            closer()
        for task in (*self._waiting, *self._connections):
            task.cancel()

    async def answer(self, pair: Pair) -> None:
        """Answer what comes in at an address, until this server is closed, and the sockets with it."""
        loop = asyncio.get_running_loop()
        loop.add_reader(pair.datagrams, self._read_exact if pair.exact else self._read_any, pair.datagrams)
        self._closers.append(partial(_forget, loop, pair.datagrams))
        server = await asyncio.start_server(self._connected, sock=pair.stream, backlog=128)
        self._closers.append(server.close)

    def _read_exact(self, datagrams: socket.socket) -> None:
        """Answer what has come to a socket that is bound to one address."""
        for _ in range(AT_ONCE):
            try:
                data, asker = datagrams.recvfrom(65535)
            except OSError:  # nothing more; or an ICMP error about an earlier answer, which is nobody's matter
                return
            answer = self._answer(data, "udp", (datagrams, asker, ()))
            if answer:
                self._send(datagrams, answer, asker, ())

    def _read_any(self, datagrams: socket.socket) -> None:
        """Answer what has come to a socket that is bound to all addresses, from the one that was asked."""
        for _ in range(AT_ONCE):
            try:
                data, ancillary, _, asker = datagrams.recvmsg(65535, 64)
            except OSError:
                return
            source = _source(ancillary)
            answer = self._answer(data, "udp", (datagrams, asker, source))
            if answer:
                self._send(datagrams, answer, asker, source)

    def _send(self, datagrams: socket.socket, answer: bytes, asker: Any, source: Any) -> None:
        try:
            if source:
                datagrams.sendmsg((answer,), source, 0, asker)
            else:
                datagrams.sendto(answer, asker)
        except OSError:  # a full buffer or no way back: the asker asks again
            self._tally.unsent += 1

    def _answer(self, data: bytes, protocol: str, back: tuple[socket.socket, Any, Any]) -> bytes:
        """Answer at once, or give nothing and see to it that the answer is sent `back` later."""
        query = read_query(data)
        if isinstance(query, Refusal):
            self._tally.refused(protocol, query.rcode)
            return query.answer
        reply = self._resolver.quick(query)
        if reply is not None:
            self._turn += 1
            self._tally.answered(protocol, query.type, reply.rcode)
            return render(query, reply, query.limit, turn=self._turn, recursion=self._resolver.forwarder is not None)
        if len(self._waiting) >= MOST_WAITING:
            self._tally.answered(protocol, query.type, SERVFAIL)
            return render(query, Reply(SERVFAIL, authoritative=False), recursion=True)
        task = self._tasks.create_task(self._answer_later(query, back))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return b""

    async def _answer_later(self, query: Query, back: tuple[socket.socket, Any, Any]) -> None:
        reply = await self._resolver.slow(query)
        self._tally.answered("udp", query.type, reply.rcode)
        datagrams, asker, source = back
        self._send(datagrams, render(query, reply, query.limit, recursion=True), asker, source)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._converse(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer question after question, in order, until the asker is silent, slow, or sends what is none."""
        while True:
            async with asyncio.timeout(IDLE):
                data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            answer = await self._answer_stream(data)
            if not answer:
                return
            writer.write(len(answer).to_bytes(2) + answer)
            async with asyncio.timeout(IDLE):
                await writer.drain()

    async def _answer_stream(self, data: bytes) -> bytes:
        query = read_query(data)
        if isinstance(query, Refusal):
            self._tally.refused("tcp", query.rcode)
            return query.answer if query.rcode != FORMERR else b""
        reply = self._resolver.quick(query)
        if reply is None:
            reply = await self._resolver.slow(query)
        self._turn += 1
        self._tally.answered("tcp", query.type, reply.rcode)
        return render(query, reply, turn=self._turn, recursion=self._resolver.forwarder is not None)


def _forget(loop: asyncio.AbstractEventLoop, datagrams: socket.socket) -> None:
    loop.remove_reader(datagrams)
    datagrams.close()


def _source(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Turn what the kernel said about a datagram's way here into what it must be told for the way back."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            _, _, address = _IN_PKTINFO.unpack(data[: _IN_PKTINFO.size])
            return [(level, kind, _IN_PKTINFO.pack(0, address, bytes(4)))]
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            return [(level, kind, data)]
    return []
