"""The sockets of DNS: questions in over UDP and TCP, answers out.

The server reads UDP directly from the socket, many datagrams at a time, and answers from memory at once; asyncio's
transports take twice as long for each. On a wildcard address the answer must leave from the address that the client
asked, so the kernel reports that address: IP_PKTINFO, ip(7), ipv6(7).

No question ends this loop: an exception is logged, counted, and answered with SERVFAIL.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from vipwire.logging import log
from vipwire.process_lifecycle.supervision import shorten_error
from vipwire_up.dns.limits import ClientLimits
from vipwire_up.dns.messages.message import SERVFAIL, Query, Refusal, Reply, encode_answer, read_query
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.sockets import IP_PKTINFO, Pair
from vipwire_up.dns.statistics import DnsStatistics

AT_ONCE: Final = 64
"""Datagrams that are read before other tasks get a turn."""
MOST_WAITING: Final = 1000
"""Questions that wait for upstream; beyond that the server answers SERVFAIL."""
MOST_CONNECTIONS: Final = 500
IDLE: Final = 10.0
"""Seconds after which a silent or slow TCP connection is closed (RFC 7766 6.2.3)."""
_MOST_TOLD: Final = 100
"""Distinct failures that are logged; all are counted."""
_FAILED: Final = Reply(SERVFAIL, authoritative=False)
_IN_PKTINFO = struct.Struct("@i4s4s")


class DnsServer:
    """Answers at sockets until closed. `tasks` holds the questions that wait for upstream."""

    def __init__(
        self,
        resolver: Resolver,
        statistics: DnsStatistics,
        tasks: asyncio.TaskGroup,
        limits: ClientLimits | None = None,
    ) -> None:
        self._resolver, self._statistics, self._tasks = resolver, statistics, tasks
        self._limits = limits or ClientLimits()
        self._told: set[str] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._closers: list[Callable[[], None]] = []

    def close(self) -> None:
        for closer in self._closers:
            closer()
        for task in (*self._waiting, *self._connections):
            task.cancel()

    async def answer_on_sockets(self, pair: Pair) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(pair.datagrams, partial(self._read_datagrams, pair.datagrams, exact=pair.exact))
        self._closers.append(partial(_close_datagrams, loop, pair.datagrams))
        server = await asyncio.start_server(self._serve_connection, sock=pair.stream, backlog=128)
        self._closers.append(server.close)

    def _read_datagrams(self, datagrams: socket.socket, *, exact: bool) -> None:
        """Answer the datagrams at a socket; at a wildcard address, from the address that each client asked."""
        now = time.monotonic()
        for _ in range(AT_ONCE):
            source: list[tuple[int, int, bytes]] = []
            try:
                if exact:
                    data, asker = datagrams.recvfrom(65535)
                else:
                    data, ancillary, _, asker = datagrams.recvmsg(65535, 64)
                    source = _source_control_message(ancillary)
            except OSError:  # no more datagrams, or an ICMP error about an earlier answer
                return
            if answer := self._answer_or_defer(data, (datagrams, asker, source), now):
                self._send_datagram(datagrams, answer, asker, source)

    def _send_datagram(self, datagrams: socket.socket, answer: bytes, asker: Any, source: Any) -> None:
        try:
            if source:
                datagrams.sendmsg((answer,), source, 0, asker)
            else:
                datagrams.sendto(answer, asker)
        except OSError:  # a full buffer or no route: the client asks again
            self._statistics.unsent += 1

    def _answer_or_defer(self, data: bytes, back: tuple[socket.socket, Any, Any], now: float) -> bytes:
        """Answer at once, or return b"" and send the answer `back` later."""
        client: str = back[1][0]
        if not self._limits.count_question(client, now):
            self._statistics.dropped["rate"] += 1
            return b""
        try:
            query = read_query(data)
            if isinstance(query, Refusal):
                self._statistics.count_refusal("udp", query.rcode)
                return query.answer
            reply = self._answer_at_once(query)
            if reply is None and (reply := self._refuse_too_many(client)) is None:
                task = self._tasks.create_task(self._answer_later(query, back))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
                return b""
            self._turn += 1
            self._statistics.count_answer("udp", query.type, reply.rcode)
            return encode_answer(
                query, reply, query.limit, turn=self._turn, recursion=self._resolver.forwarder is not None
            )
        except Exception as error:  # noqa: BLE001  # an error in one question must not stop the others
            self._log_failure(error)
            return b""

    def _answer_at_once(self, query: Query) -> Reply | None:
        try:
            return self._resolver.answer_at_once(query)
        except Exception as error:  # noqa: BLE001  # as above
            self._log_failure(error)
            return _FAILED

    def _refuse_too_many(self, client: str) -> Reply | None:
        """Count a waiting question; return the refusal if there are too many."""
        if len(self._waiting) < MOST_WAITING and self._limits.begin_wait(client):
            return None
        self._statistics.dropped["waiting"] += 1
        return _FAILED

    async def _answer_slowly(self, query: Query, client: str) -> Reply:
        try:
            return await self._resolver.answer_slowly(query)
        except Exception as error:  # noqa: BLE001  # as above
            self._log_failure(error)
            return _FAILED
        finally:
            self._limits.end_wait(client)

    def _log_failure(self, error: Exception) -> None:
        self._statistics.failures += 1
        said = shorten_error(error)
        if said not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(said)
            log.error("internal error on a query; answered SERVFAIL", error=said)

    async def _answer_later(self, query: Query, back: tuple[socket.socket, Any, Any]) -> None:
        datagrams, asker, source = back
        reply = await self._answer_slowly(query, asker[0])
        self._statistics.count_answer("udp", query.type, reply.rcode)
        try:
            self._turn += 1
            answer = encode_answer(query, reply, query.limit, turn=self._turn, recursion=True)
        except Exception as error:  # noqa: BLE001  # as above
            self._log_failure(error)
            answer = encode_answer(query, _FAILED, recursion=True)
        self._send_datagram(datagrams, answer, asker, source)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, client = asyncio.current_task(), str((writer.get_extra_info("peername") or ("",))[0])
        if task is None or len(self._connections) >= MOST_CONNECTIONS or not self._limits.begin_connection(client):
            self._statistics.dropped["connections"] += 1
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer_connection(reader, writer, client)
                writer.close()
                async with asyncio.timeout(IDLE):
                    await writer.wait_closed()
        except Exception as error:  # noqa: BLE001  # as above
            self._log_failure(error)
        finally:
            self._connections.discard(task)
            self._limits.end_connection(client)
            # close() would wait until the client has read all, perhaps for ever.
            writer.transport.abort()

    async def _answer_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> None:
        """Answer questions until the client is silent, slow, or sends no question.

        A question for upstream does not delay those behind it (RFC 7766 6.2.1.1).
        """
        pending = set[asyncio.Task[None]]()
        try:
            while True:
                async with asyncio.timeout(IDLE):
                    data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
                if not self._limits.count_question(client, time.monotonic()):
                    self._statistics.dropped["rate"] += 1
                    return
                query = read_query(data)
                if isinstance(query, Refusal):
                    self._statistics.count_refusal("tcp", query.rcode)
                    if not query.answer:
                        return
                    await _write_answer(writer, query.answer)
                    continue
                reply = self._answer_at_once(query)
                if reply is None and (reply := self._refuse_too_many(client)) is None:
                    task = self._tasks.create_task(self._answer_stream_later(query, client, writer))
                    for tasks in (pending, self._waiting):
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                else:
                    await _write_answer(writer, self._encode_reply(query, reply))
        finally:
            if pending:
                await asyncio.wait(pending)

    async def _answer_stream_later(self, query: Query, client: str, writer: asyncio.StreamWriter) -> None:
        try:
            await _write_answer(writer, self._encode_reply(query, await self._answer_slowly(query, client)))
        except (OSError, TimeoutError):
            writer.transport.abort()
        except Exception as error:  # noqa: BLE001  # as above
            self._log_failure(error)
            writer.transport.abort()

    def _encode_reply(self, query: Query, reply: Reply) -> bytes:
        """Encode an answer over TCP, where no answer is cut."""
        reply = _FAILED if reply.is_cut else reply
        self._turn += 1
        self._statistics.count_answer("tcp", query.type, reply.rcode)
        return encode_answer(query, reply, turn=self._turn, recursion=self._resolver.forwarder is not None)


async def _write_answer(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(len(answer).to_bytes(2) + answer)
    async with asyncio.timeout(IDLE):
        await writer.drain()


def _close_datagrams(loop: asyncio.AbstractEventLoop, datagrams: socket.socket) -> None:
    loop.remove_reader(datagrams)
    datagrams.close()


def _source_control_message(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
            _, _, address = _IN_PKTINFO.unpack(data[: _IN_PKTINFO.size])
            return [(level, kind, _IN_PKTINFO.pack(0, address, bytes(4)))]
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            return [(level, kind, data)]
    return []
