"""A small HTTP proxy: CONNECT for https, absolute URLs for http. Keeps the requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Self
from urllib.parse import urlsplit


class FakeProxy:
    """Listens on loopback. All names lead to `target`, as with the cluster's DNS."""

    def __init__(self, target: Callable[[], tuple[str, int]], *, refuses: bool = False) -> None:
        self._target, self._refuses = target, refuses
        self.asked: list[str] = []
        self.authorizations: list[str] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._connections: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._connections.append(task)
        # Stopping the proxy cancels open connections, which is no error for the loop.
        with contextlib.suppress(asyncio.CancelledError):
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with _closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            first, _, rest = head.partition(b"\r\n")
            self.asked.append(first.decode())
            self.authorizations += [
                line.decode() for line in rest.split(b"\r\n") if line.lower().startswith(b"proxy-authorization:")
            ]
            if self._refuses:
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                await self._forward(first, rest, reader, writer)

    async def _forward(
        self, first: bytes, rest: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, out = await asyncio.open_connection(*self._target())
        method, address, version = first.split(b" ")
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            parts = urlsplit(address.decode())
            path = f"{parts.path}?{parts.query}".encode()
            out.write(b"%b %b %b\r\n%b" % (method, path, version, rest))
        async with _closing(out), asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, out))
            group.create_task(_copy(there, writer))


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
        sink.close()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            yield
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
