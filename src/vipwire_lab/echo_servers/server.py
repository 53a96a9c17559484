"""The servers of all Pods of a lab, in one process: `python -m vipwire_lab.echo_servers.server FD`.

A process for each Pod would cost a Python start each (a second in User-Mode Linux). A socket keeps the namespace in
which it was opened, so the process enters a Pod's namespace only to open sockets. Orders arrive over a Unix socket
(FD, listening, inherited), one JSON object a line, answered by one:

    {"do": "serve", "host": "pod-1a", "node": "node-1", "namespace": "/run/netns/...", "addresses": [],
     "ports": [80], "protocols": ["TCP"]}    no addresses: all of them     -> {"serving": 1}
    {"do": "stop", "host": "pod-1a", "ports": []}    no ports: all of them -> {"stopped": 3}

An error is {"error": text}. If the kernel has no SCTP sockets, raw sockets answer instead, on all addresses.
"""

import asyncio
import contextlib
import errno
import json
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vipwire_lab.echo_servers.answer import Answer, SocketAddress, build_http_response
from vipwire_lab.echo_servers.sockets import DatagramEcho, RawEcho, open_raw
from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.errors import LabError

Closer = Callable[[], None]
_TYPES = {
    "TCP": (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    "UDP": (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    "SCTP": (socket.SOCK_STREAM, socket.IPPROTO_SCTP),
}
_METHODS = (b"GET ", b"HEAD ")
_HEAD_LIMIT = 65536
_NO_SUCH_PROTOCOL = {errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EAFNOSUPPORT}


class StreamEcho(asyncio.Protocol):
    """One accepted connection, over TCP or SCTP; in `connections` while open.

    Answers the client's first line with its name and echoes the rest, so a short probe is one exchange, and a long
    one can check its connection at any time. The client speaks first, because an HTTP client would take a greeting
    for the response; a request in HTTP gets an HTTP answer.
    """

    def __init__(self, host: str, node: str, protocol: str, connections: set["StreamEcho"]) -> None:
        self._who = (host, node, protocol)
        self._connections = connections
        self._transport: asyncio.Transport
        self._request = b""
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's interface is wider than what it does
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._connections.discard(self)

    def abort(self) -> None:
        """Close it at once, as the end of a Pod does."""
        self._transport.abort()

    def pause_writing(self) -> None:
        """Stop reading while the client does not read."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Answer first, then echo."""
        if self._greeted:
            self._transport.write(data)
            return
        self._request += data
        if not self._request.startswith(_METHODS):
            self._send_greeting(self._request.partition(b"\n")[2])
        elif b"\r\n\r\n" in self._request or len(self._request) > _HEAD_LIMIT:
            self._greeted = True
            self._transport.write(build_http_response(self._build_answer()))
            self._transport.close()

    def eof_received(self) -> bool:
        """Answer clients that only listen, too; asyncio closes the connection after the written data."""
        if not self._greeted:
            self._send_greeting(b"")
        return False

    def _send_greeting(self, rest: bytes) -> None:
        self._greeted = True
        self._request = b""
        self._transport.write(self._build_answer().encode() + rest)

    def _build_answer(self) -> Answer:
        peer = self._transport.get_extra_info("peername")
        local = self._transport.get_extra_info("sockname")
        return Answer(*self._who, SocketAddress(peer[0], peer[1]), SocketAddress(local[0], local[1]))


class Servers:
    """The open sockets of each host, and their accepted connections."""

    def __init__(self) -> None:
        self._closers: dict[tuple[str, int], list[Closer]] = {}
        self._raw: dict[tuple[str, int], RawEcho] = {}

    async def execute_order(self, order: dict[str, Any]) -> dict[str, Any]:
        match order:
            case {"do": "serve", "host": str(host), "ports": [*ports]}:
                await self._start_servers(host, [int(port) for port in ports], order)
                return {"serving": len(ports)}
            case {"do": "stop", "host": str(host), "ports": [*ports]}:
                return {"stopped": self._stop_servers(host, set(ports))}
        return {"error": f"unknown order {order}"}

    async def _start_servers(self, host: str, ports: list[int], order: dict[str, Any]) -> None:
        addresses = order["addresses"] or ["0.0.0.0", "::"]  # noqa: S104 - in a lab's namespace
        for port in ports:
            closers = self._closers.setdefault((host, port), [])
            for protocol in order["protocols"]:
                for address in addresses:
                    where = (protocol, address, port)
                    try:
                        closers.append(await self._start_listener(where, host, order))
                    except OSError as error:
                        raise LabError(f"{host} cannot listen on {address} {port}/{protocol}: {error}") from error

    async def _start_listener(self, where: tuple[str, str, int], host: str, order: dict[str, Any]) -> Closer:
        protocol, address, port = where
        with netns.enter_namespace(Path(order["namespace"])):
            try:
                opened = _open_socket(protocol, address, port)
            except OSError as error:
                if error.errno not in _NO_SUCH_PROTOCOL or protocol != "SCTP":
                    raise
                key = (host, _family_of(address))
                if key not in self._raw:
                    loop = asyncio.get_running_loop()
                    self._raw[key] = RawEcho(loop, open_raw(key[1]), host, order["node"])
                return self._raw[key].serve(port)
        return await _start_answering(opened, protocol, host, order["node"])

    def _stop_servers(self, host: str, ports: set[int]) -> int:
        closing = [key for key in self._closers if key[0] == host and (not ports or key[1] in ports)]
        closers = [closer for key in closing for closer in self._closers.pop(key)]
        for closer in closers:
            closer()
        return len(closers)


def _family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _open_socket(protocol: str, address: str, port: int) -> socket.socket:
    family = _family_of(address)
    opened = socket.socket(family, *_TYPES[protocol])
    try:
        opened.settimeout(0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(protocol != "UDP"))
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((address, port))
        if protocol != "UDP":
            opened.listen(1024)
    except OSError:
        opened.close()
        raise
    return opened


async def _start_answering(opened: socket.socket, protocol: str, host: str, node: str) -> Closer:
    loop = asyncio.get_running_loop()
    if protocol == "UDP":
        return DatagramEcho(loop, opened, host, node).close
    connections: set[StreamEcho] = set()
    server = await loop.create_server(
        lambda: StreamEcho(host, node, protocol, connections), sock=opened, backlog=1024
    )

    def close() -> None:
        server.close()
        for connection in tuple(connections):
            connection.abort()

    return close


async def _serve_control_socket(listener: socket.socket) -> None:
    servers = Servers()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                try:
                    reply = await servers.execute_order(json.loads(line))
                except (LabError, OSError, ValueError, KeyError) as error:
                    reply = {"error": str(error)}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # the client of the order has gone
        finally:
            writer.close()

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_unix_server(converse, sock=listener, limit=1 << 20)
    async with server:
        await ended.wait()


async def serve_here(host: str, node: str, port: int) -> None:
    """Serve in this process's namespace, as in a Pod, over what its kernel has, until SIGTERM."""
    ended, opened = asyncio.Event(), 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    for protocol in _TYPES:
        for address in ("0.0.0.0", "::"):  # noqa: S104 - all addresses of the Pod
            with contextlib.suppress(OSError):
                await _start_answering(_open_socket(protocol, address, port), protocol, host, node)
                opened += 1
    if not opened:
        raise LabError(f"cannot listen on port {port}")
    await ended.wait()


def main() -> None:
    """Serve until SIGTERM."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a hundred Pods need more than the usual 1024
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_control_socket(listener))


if __name__ == "__main__":
    main()
