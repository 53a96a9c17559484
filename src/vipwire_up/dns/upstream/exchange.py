"""Asks upstream servers: over UDP, over TCP if the answer was truncated or looks forged, then the next server.

Against forged answers from off the path (RFC 5452), each question has a random port, a random ID, and the name in
random mixed case (draft-vixie-dnsext-dns0x20), which the answer must repeat. After an answer with the right ID but
another case, or after too many wrong answers, vipwire asks over TCP. A server that changes the case over TCP, too,
gets lower case for an hour.

A server that refuses EDNS is asked without it, for an hour; one that is silent, in the second round, and for a minute
if it answers then (RFC 6891 6.2.2, 7). The next server is asked if one fails, refuses, or is lame.

Equal questions share one question upstream. All tries of a question together take `deadline`.
"""

import asyncio
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire_up.dns.messages.message import CD, DO, HEADER, OPT, OURS, RD, Query
from vipwire_up.dns.upstream.answer import (
    Answer,
    Cache,
    QuestionKey,
    build_failure,
    is_answer_to,
    is_truncated,
    key_of,
    read_answer,
)

ROUNDS: Final = 2
PENALTY: Final = 10.0
"""Seconds for which a server that did not answer is asked after the others."""
DEADLINE: Final = 10.0
"""Seconds for all tries of one question."""
MOST_WRONG: Final = 20
"""Wrong datagrams after which the question goes over TCP."""
SMALL_LETTERS: Final = 3600.0
"""Seconds for which a server that changes case is asked in lower case."""
WITHOUT_EDNS: Final = 3600.0
"""Seconds for which a server that refuses EDNS is asked without it."""
WITHOUT_EDNS_BRIEFLY: Final = 60.0
"""The same for a server that was silent: the question may just have been lost."""


class UpstreamServer(NamedTuple):
    """The address of an upstream server."""

    host: str
    port: int = 53

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Attempt(NamedTuple):
    """One try: the server, the protocol, the result, and its duration in seconds.

    `result` is `answered`, `failed`, or `suspect`: then vipwire asks again over TCP.
    """

    server: str
    protocol: str
    result: str
    seconds: float


class Forwarder:
    """Asks servers in order, and caches answers. `patience` is the time for one server, in seconds.

    `mixed` sends names in mixed case.
    """

    def __init__(
        self,
        servers: Sequence[UpstreamServer],
        cache: Cache,
        *,
        patience: float = 2.0,
        deadline: float = DEADLINE,
        mixed: bool = True,
        clock: Callable[[], float] = time.monotonic,
        witness: Callable[[Attempt], None] = lambda _attempt: None,
    ) -> None:
        self.cache = cache
        self.servers, self.patience, self._deadline = tuple(servers), patience, deadline
        self._clock, self._witness = clock, witness
        self._mixed = mixed
        self._failed: dict[UpstreamServer, float] = {}
        self._small: dict[UpstreamServer, float] = {}
        self._plain: dict[UpstreamServer, float] = {}
        self._asking: dict[QuestionKey, asyncio.Future[Answer]] = {}

    def set_servers(self, servers: Sequence[UpstreamServer]) -> None:
        """Replace the servers, and clear the cache: other servers may know other names."""
        self.servers = tuple(servers)
        self.cache.clear()
        self._failed.clear()
        self._small.clear()
        self._plain.clear()

    def now(self) -> float:
        return self._clock()

    def find_cached(self, query: Query) -> Answer | None:
        return self.cache.find(key_of(query), self._clock())

    async def resolve(self, query: Query) -> Answer:
        """Return the answer to a question, from the cache or upstream; SERVFAIL if no server answers."""
        key = key_of(query)
        found = self.cache.find(key, self._clock())
        if found is not None:
            return found
        waiting = self._asking.get(key)
        if waiting is not None:
            return await asyncio.shield(waiting)
        result: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asking[key] = result
        answer, servers = None, self.servers
        try:
            answer = await self._ask_in_time(query)
            if servers is self.servers:
                self.cache.put(key, answer)
            return answer
        finally:
            del self._asking[key]
            result.set_result(answer or build_failure(self._clock()))

    async def _ask_in_time(self, query: Query) -> Answer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._ask_all(query)
        except TimeoutError:
            return build_failure(self._clock())

    async def _ask_all(self, query: Query) -> Answer:
        spare: Answer | None = None
        silent = set[UpstreamServer]()
        for _ in range(ROUNDS):
            for server in sorted(self.servers, key=self._is_resting):
                answer = await self._ask_with_or_without_edns(server, query, was_silent=server in silent)
                if answer is None:
                    silent.add(server)
                    self._failed[server] = self._clock()
                elif answer.is_useful:
                    self._failed.pop(server, None)
                    return answer
                elif spare is None or answer.is_cut:
                    spare = answer
            if spare is not None:
                return spare
        return build_failure(self._clock())

    async def _ask_with_or_without_edns(
        self, server: UpstreamServer, query: Query, *, was_silent: bool
    ) -> Answer | None:
        """Ask a server, without EDNS if it refuses that or was silent before."""
        plain = was_silent or self._clock() < self._plain.get(server, float("-inf"))
        answer = await self._ask_server(server, query, edns=not plain)
        if answer is not None and answer.refuses_edns and not plain:
            answer = await self._ask_server(server, query, edns=False)
            if answer is not None and not answer.refuses_edns:
                self._plain[server] = self._clock() + WITHOUT_EDNS
        elif answer is not None and was_silent:
            until = self._clock() + WITHOUT_EDNS_BRIEFLY
            self._plain[server] = max(until, self._plain.get(server, until))
        return answer

    def _is_resting(self, server: UpstreamServer) -> bool:
        failed = self._failed.get(server)
        return failed is not None and self._clock() - failed < PENALTY

    async def _ask_server(self, server: UpstreamServer, query: Query, *, edns: bool) -> Answer | None:
        cut: Answer | None = None
        end = 12 + len(query.question)
        for protocol, exchange in (("udp", _exchange_over_udp), ("tcp", _exchange_over_tcp)):
            began = time.perf_counter()
            number, mixed = secrets.randbelow(65536), not self._needs_lower_case(server)
            message = encode_question(query, number, mixed=mixed, edns=edns)
            result, answer = "failed", None
            try:
                async with asyncio.timeout(self.patience):
                    data = await exchange(server, message, end)
                if not data:
                    result = "suspect"
                else:
                    answer = read_answer(data, query, self._clock())
                    if answer.is_cut:
                        cut = answer
                        continue
                    result = "answered"
                    self._record_case_support(server, message[12:end], data[12:end])
            except (OSError, TimeoutError, DecodeError, asyncio.IncompleteReadError):
                pass
            self._witness(Attempt(str(server), protocol, result, time.perf_counter() - began))
            if result != "suspect":
                return answer or cut
        return cut

    def _needs_lower_case(self, server: UpstreamServer) -> bool:
        return not self._mixed or self._clock() < self._small.get(server, float("-inf"))

    def _record_case_support(self, server: UpstreamServer, asked: bytes, answered: bytes) -> None:
        """Record a server that changes case; only over TCP is such an answer accepted."""
        if asked != answered:
            self._small[server] = self._clock() + SMALL_LETTERS


def encode_question(query: Query, number: int, *, mixed: bool = False, edns: bool = True) -> bytes:
    """Encode the question for upstream with an ID, in random case if `mixed`."""
    do = DO if query.edns is not None and query.edns.do else 0
    header = HEADER.pack(number, RD | (query.flags & CD), 1, 0, 0, int(edns))
    asked = query.question[:-4].lower()
    name = _randomize_case(asked) if mixed else asked
    opt = struct.pack("!BHHBBHH", 0, OPT, OURS, 0, 0, do, 0) if edns else b""
    return header + name + query.question[-4:] + opt


def _randomize_case(name: bytes) -> bytes:
    """Put random letters into upper case. Lengths of labels are below 64, and so never letters."""
    chance = secrets.randbits(8 * len(name)).to_bytes(len(name))
    return bytes(byte - 32 if 97 <= byte <= 122 and bit & 1 else byte for byte, bit in zip(name, chance, strict=True))


class _Exchange(asyncio.DatagramProtocol):
    """Waits for the datagram with the answer and ignores others. The result is None if the answer looks forged."""

    def __init__(self, message: bytes, end: int) -> None:
        self._number, self._asked = int.from_bytes(message[:2]), message[12:end]
        self._wrong = 0
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _address: object) -> None:
        if self.answer.done():
            return
        if is_answer_to(data, self._number, self._asked):
            self.answer.set_result(data)
            return
        self._wrong += 1
        if self._wrong > MOST_WRONG or is_answer_to(data, self._number, self._asked, any_case=True):
            self.answer.set_result(b"")

    def error_received(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def _exchange_over_udp(server: UpstreamServer, message: bytes, end: int) -> bytes:
    """Exchange datagrams; `end` is the end of the question in the message."""
    transport, exchange = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Exchange(message, end), remote_addr=(server.host, server.port)
    )
    try:
        transport.sendto(message)
        return await exchange.answer
    finally:
        transport.close()


async def _exchange_over_tcp(server: UpstreamServer, message: bytes, end: int) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(len(message).to_bytes(2) + message)
        await writer.drain()
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    finally:
        writer.transport.abort()
    if not is_answer_to(data, int.from_bytes(message[:2]), message[12:end], any_case=True):
        raise DecodeError("an answer to another question")
    if is_truncated(data):
        raise DecodeError("an answer that is cut over TCP")
    return data
