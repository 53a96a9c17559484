"""Leads this machine's clients of the API to any server that answers: a TCP relay on loopback.

The proxy, the Leases and kubectl on this machine know one address. The relay tries the servers in turn, first the one
that answered last. TLS goes through it: each server has a certificate for 127.0.0.1. A server that goes silent ends
its connections after SILENT_MS; the clients come back and are led to another.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from vipwire.process import log

CONNECT_SECONDS: Final = 1.0
SILENT_MS: Final = 3000
_PIECE: Final = 1 << 16
_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_MS),
)


class Relay:
    """Relays to the servers that `servers` names at the time, as URLs."""

    def __init__(self, servers: Callable[[], Sequence[str]]) -> None:
        self._servers, self._last = servers, ""

    async def run(self, ready: Callable[[str], None], port: int = 0) -> None:
        """Relay until cancelled; `ready` is told the URL here. Raise OSError where the port is taken."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        async with server:
            ready(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._connect()
        if found is None:
            writer.close()
            return
        there, to = found
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, to, writer))
            tasks.create_task(_copy(there, writer, to))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for server in sorted(self._servers(), key=lambda each: each != self._last):
            parts = urlsplit(server)
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            except OSError:
                continue
            for option in _OPTIONS:
                writer.get_extra_info("socket").setsockopt(*option)
            if server != self._last:
                log.info("asking an API server", server=server)
                self._last = server
            return reader, writer
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
    """Copy until one side ends the connection, and end both: TLS has no half of one."""
    try:
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()
        back.close()
