"""Asking other servers: over UDP, over TCP where the answer was cut, the next server where one does not answer.

Every question has a socket, and so a port, and a number of its own, as RFC 5452 wants it against forged answers;
what does not answer it exactly is ignored. Equal questions that come while one is asked wait for its answer.
"""

import asyncio
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from vipwire.dns.message import CD, DO, HEADER, OPT, OURS, RD, SERVFAIL, Query
from vipwire.dns.upstream.answer import Answer, answers, failure, is_truncated, read_answer
from vipwire.dns.upstream.cache import Cache, Key, key_of
from vipwire.errors import DecodeError

ROUNDS: Final = 2
PENALTY: Final = 10.0
"""Seconds for which a server that did not answer is asked after the others."""


class Server(NamedTuple):
    """Where to ask."""

    host: str
    port: int = 53

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Asked(NamedTuple):
    """One try: which server, how, what came of it (`answered`, `failed`), and after how many seconds."""

    server: str
    protocol: str
    result: str
    seconds: float


def _ignored(_asked: Asked) -> None:
    """Tell nobody."""


class Forwarder:
    """Asks servers in their order, and keeps answers. `patience` is how long one may take, in seconds."""

    def __init__(
        self,
        servers: Sequence[Server],
        cache: Cache,
        *,
        patience: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        witness: Callable[[Asked], None] = _ignored,
    ) -> None:
        self.cache = cache
        self._servers, self._patience = tuple(servers), patience
        self._clock, self._witness = clock, witness
        self._failed: dict[Server, float] = {}
        self._asking: dict[Key, asyncio.Future[Answer]] = {}

    def now(self) -> float:
        """Tell the time by which answers grow old, in seconds."""
        return self._clock()

    def known(self, query: Query) -> Answer | None:
        """Find the answer to a question in the cache."""
        return self.cache.find(key_of(query), self._clock())

    async def ask(self, query: Query) -> Answer:
        """Find the answer to a question, upstream if need be. Where nobody answers it says SERVFAIL."""
        key = key_of(query)
        found = self.cache.find(key, self._clock())
        if found is not None:
            return found
        waiting = self._asking.get(key)
        if waiting is not None:
            return await asyncio.shield(waiting)
        result: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asking[key] = result
        answer = None
        try:
            answer = await self._ask_all(query)
            self.cache.keep(key, answer)
            return answer
        finally:
            del self._asking[key]
            result.set_result(answer or failure(self._clock()))

    async def _ask_all(self, query: Query) -> Answer:
        refused: Answer | None = None
        for _ in range(ROUNDS):
            for server in sorted(self._servers, key=self._is_resting):
                answer = await self._try(server, query)
                if answer is None:
                    self._failed[server] = self._clock()
                elif answer.rcode == SERVFAIL:
                    refused = refused or answer
                else:
                    self._failed.pop(server, None)
                    return answer
            if refused is not None:
                return refused
        return failure(self._clock())

    def _is_resting(self, server: Server) -> bool:
        failed = self._failed.get(server)
        return failed is not None and self._clock() - failed < PENALTY

    async def _try(self, server: Server, query: Query) -> Answer | None:
        for protocol, exchange in (("udp", _over_udp), ("tcp", _over_tcp)):
            number, began = secrets.randbelow(65536), time.perf_counter()
            message = question(query, number)
            try:
                async with asyncio.timeout(self._patience):
                    data = await exchange(server, message, number, _small(query.question))
                if protocol == "udp" and is_truncated(data):
                    continue
                answer = read_answer(data, query, self._clock())
            except (OSError, TimeoutError, DecodeError, asyncio.IncompleteReadError):
                self._witness(Asked(str(server), protocol, "failed", time.perf_counter() - began))
                return None
            self._witness(Asked(str(server), protocol, "answered", time.perf_counter() - began))
            return answer
        return None


def question(query: Query, number: int) -> bytes:
    """Make the message that asks upstream, with a number of its own."""
    do = DO if query.edns is not None and query.edns.do else 0
    header = HEADER.pack(number, RD | (query.flags & CD), 1, 0, 0, 1)
    return header + _small(query.question) + struct.pack("!BHHBBHH", 0, OPT, OURS, 0, 0, do, 0)


def _small(question_: bytes) -> bytes:
    return question_[:-4].lower() + question_[-4:]


class _Exchange(asyncio.DatagramProtocol):
    """Waits for the datagram that answers; whatever else comes is not ours."""

    def __init__(self, number: int, asked: bytes) -> None:
        self._number, self._asked = number, asked
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _address: object) -> None:
        if not self.answer.done() and answers(data, self._number, self._asked):
            self.answer.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def _over_udp(server: Server, message: bytes, number: int, asked: bytes) -> bytes:
    transport, exchange = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Exchange(number, asked), remote_addr=(server.host, server.port)
    )
    try:
        transport.sendto(message)
        return await exchange.answer
    finally:
        transport.close()


async def _over_tcp(server: Server, message: bytes, number: int, asked: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(len(message).to_bytes(2) + message)
        await writer.drain()
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    finally:
        writer.close()
    if not answers(data, number, asked):
        raise DecodeError("an answer to another question")
    return data
