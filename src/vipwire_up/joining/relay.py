"""A TCP relay on loopback, from this machine's API clients to any API server that answers.

The proxy, the Leases and kubectl on this machine use one address. The relay tries the servers in turn, first the one
that answered last. It does not decrypt TLS: each server's certificate includes 127.0.0.1. If a server goes silent,
the relay ends its connections after SILENT_MS; the clients reconnect to another server.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from vipwire.logging import log

CONNECT_SECONDS: Final = 1.0
BESIDE: Final = 0.2
SILENT_MS: Final = 3000
_PIECE: Final = 1 << 16
_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS),
)
_Dialled: TypeAlias = tuple[str, asyncio.StreamReader, asyncio.StreamWriter] | OSError


class Relay:
    """Relays to the servers whose URLs `servers` returns."""

    def __init__(self, servers: Callable[[], Sequence[str]]) -> None:
        self._servers, self._last, self._told = servers, "", ""

    async def run(self, ready: Callable[[str], None], port: int = 0) -> None:
        """Relay until cancelled; `ready` is called with the local URL. Raise OSError if the port is in use."""
        server = await asyncio.start_server(self._serve_connection, "127.0.0.1", port)
        async with server:
            ready(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await server.serve_forever()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._connect_to_server()
        if found is None:
            writer.close()
            return
        there, to = found
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy_stream(reader, to, writer))
                tasks.create_task(_copy_stream(there, writer, to))
        except asyncio.CancelledError:  # the relay ends; without this, asyncio would log the cancelled task
            return

    async def _connect_to_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the first server that answers; each gets a moment before the next is tried beside it."""
        servers = sorted(self._servers(), key=lambda each: each != self._last)
        dialled: list[asyncio.Task[_Dialled]] = []
        async with asyncio.TaskGroup() as tasks:
            for server in servers:
                dialled.append(tasks.create_task(_connect_to(server)))
                await asyncio.wait(dialled, timeout=BESIDE, return_when=asyncio.FIRST_COMPLETED)
                if _first_connected(dialled):
                    break
            while not _first_connected(dialled) and (left := [each for each in dialled if not each.done()]):
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            found = _first_connected(dialled)
            for each in dialled:
                each.cancel()
        if found is None:
            self._log_failures({name: each.result() for name, each in zip(servers, dialled, strict=False)})
            return None
        server, reader, writer = found
        self._told = ""
        for option in _OPTIONS:
            writer.get_extra_info("socket").setsockopt(*option)
        if server != self._last:
            log.info("asking an API server", server=server)
            self._last = server
        return reader, writer

    def _log_failures(self, results: Mapping[str, object]) -> None:
        """Log once, until a server answers again, why no server does."""
        said = "; ".join(f"{server}: {_explain_error(error)}" for server, error in sorted(results.items()))
        if said != self._told:
            log.warning("no known API server answers", error=said)
        self._told = said


def _explain_error(error: object) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "does not answer"


def _first_connected(
    dialled: Sequence["asyncio.Task[_Dialled]"],
) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter] | None:
    done = (each.result() for each in dialled if each.done())
    return next((found for found in done if not isinstance(found, OSError)), None)


async def _connect_to(server: str) -> _Dialled:
    parts = urlsplit(server)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except OSError as error:  # TimeoutError is one
        return error
    return server, reader, writer


async def _copy_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
) -> None:
    """Copy until one side ends the connection, then end both: TLS has no half-closed connections."""
    try:
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()
        back.close()
