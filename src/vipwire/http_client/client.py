"""An HTTP/1.1 client for API servers: TLS, HTTP proxies, connections kept for the next request.

    async with Client().request(server, "GET", "/version", headers, timeout=60.0) as answer:
        body = await answer.read()

Follows no redirects and keeps no cookies. If the server has closed a kept connection, the client repeats the request
once on a new one, if its method is idempotent (RFC 9110 9.2.2).
"""

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from vipwire.http_client.wire import HttpError, Response, Wire
from vipwire.model.net import add_brackets
from vipwire.model.value import Value

CONNECT_TIMEOUT: Final = 15.0
"""Seconds for a TCP connection, and again for the TLS handshake."""
_KEPT_SECONDS: Final = 15.0
_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_DELAY: Final = 0.25
"""Seconds before trying a name's next address, too (RFC 8305)."""
_PORTS: Final = {"http": 80, "https": 443}
# Finds half-open connections (after a power failure of the server, or a load balancer's timeout): a dead watch looks
# like a quiet cluster.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)


class Server(Value, frozen=True):
    """The server of a request: `url` (scheme, host, port), TLS settings, and the URL of a proxy.

    `tls_name` is the name in the certificate, None for the URL's host.
    """

    url: str
    tls: ssl.SSLContext | None = None
    tls_name: str | None = None
    proxy: str | None = None


class Client:
    """Sends requests and keeps connections. For one event loop; close it at the end."""

    def __init__(self) -> None:
        self._kept: defaultdict[Server, list[Wire]] = defaultdict(list)

    async def close(self) -> None:
        for wires in self._kept.values():
            for wire in wires:
                wire.close()
        self._kept.clear()
        await asyncio.sleep(0)  # lets asyncio close the transports before the loop ends

    @contextlib.asynccontextmanager
    async def request(
        self,
        server: Server,
        method: str,
        target: str,
        headers: Mapping[str, str],
        *,
        timeout: float,  # noqa: ASYNC109 - bounds the whole answer, which outlives this call
        body: bytes | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request; yield its answer with the head read. `target` is a path with a query; `timeout` in seconds.

        Raise HttpError, OSError, and TimeoutError if the answer is not complete in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        request = _encode_request(server, method, target, headers, body)
        async with asyncio.timeout_at(deadline):
            wire, answer = await self._send(server, request, again=method in _REPEATABLE)
        timer = loop.call_at(deadline, lambda: answer.fail(TimeoutError()))
        try:
            yield answer
        finally:
            timer.cancel()
            self._release_connection(server, wire)

    async def _send(self, server: Server, request: bytes, *, again: bool) -> tuple[Wire, Response]:
        kept = self._kept.get(server)
        wire = kept.pop() if kept else await _connect(server)
        answer = wire.send(request)
        try:
            await answer.read_head()
        except HttpError:
            wire.close()
            if wire.used > 1 and again and not answer.begun:
                return await self._send(server, request, again=again)
            raise
        except BaseException:
            wire.close()
            raise
        return wire, answer

    def _release_connection(self, server: Server, wire: Wire) -> None:
        if wire.release(lambda wire: self._forget_connection(server, wire, wire.used)):
            wires = self._kept[server]
            wires.append(wire)
            asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._forget_connection, server, wire, wire.used)

    def _forget_connection(self, server: Server, wire: Wire, used: int) -> None:
        """Close a connection that has carried no request since its number `used`."""
        wires = self._kept.get(server, [])
        if wire in wires and wire.used == used:
            wires.remove(wire)
            if not wires:
                del self._kept[server]
            wire.close()


def reason_of(error: BaseException) -> str:
    """Describe a failed connection or answer in a few words; a TimeoutError has no text of its own."""
    if isinstance(error, TimeoutError) and not str(error):
        return "timed out"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        # asyncio replaces the system's text; a resolver's codes are not errno values.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__


def _hide_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def _connect(server: Server) -> Wire:
    """Connect to a server, through its proxy if any. Raise HttpError, and SSLCertVerificationError unchanged."""
    parts = urlsplit(server.url)
    if server.proxy is None:
        wire = await _connect_directly(parts)
    else:
        wire = await _connect_by_proxy(urlsplit(server.proxy), parts, server)
    if parts.scheme == "https":
        await _encrypt(wire, parts, server.tls, server.tls_name)
    return wire


async def _connect_by_proxy(proxy: SplitResult, parts: SplitResult, server: Server) -> Wire:
    try:
        wire = await _connect_directly(proxy)
        if proxy.scheme == "https":
            await _encrypt(wire, proxy, server.tls, None)
        if parts.scheme == "https":
            await _open_tunnel(wire, proxy, parts)
    except (HttpError, OSError) as error:
        raise HttpError(f"the proxy {_hide_password(proxy.geturl())}: {reason_of(error)}") from error
    return wire


async def _connect_directly(parts: SplitResult) -> Wire:
    host, port = _host(parts), _port(parts)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, wire = await loop.create_connection(Wire, host, port, happy_eyeballs_delay=_DELAY)
        for level, option, value in _KEEPALIVE:
            wire.transport.get_extra_info("socket").setsockopt(level, option, value)
    except OSError as error:
        raise HttpError(f"cannot connect to {host}:{port}: {reason_of(error)}") from error
    return wire


async def _encrypt(wire: Wire, parts: SplitResult, tls: ssl.SSLContext | None, name: str | None) -> None:
    plain, host = wire.transport, _host(parts)
    try:
        encrypted = await asyncio.get_running_loop().start_tls(
            plain,
            wire,
            tls or ssl.create_default_context(),
            server_hostname=name or host,
            ssl_handshake_timeout=CONNECT_TIMEOUT,
        )
    except ssl.SSLCertVerificationError:
        plain.abort()
        raise
    except OSError as error:
        plain.abort()
        raise HttpError(f"cannot connect to {host}:{_port(parts)}: {reason_of(error)}") from error
    except BaseException:
        plain.abort()
        raise
    if encrypted is None:
        raise HttpError(
            f"cannot connect to {host}:{_port(parts)}: the server closed the connection during the TLS handshake"
        )
    wire.connection_made(encrypted)


async def _open_tunnel(wire: Wire, proxy: SplitResult, parts: SplitResult) -> None:
    """Ask a proxy for a tunnel to the server's host and port (CONNECT, RFC 9110 9.3.6)."""
    target = f"{add_brackets(_host(parts))}:{_port(parts)}"
    answer = wire.send(_encode_head("CONNECT", target, {"Host": target, **_proxy_authorization(proxy)}))
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await answer.read_head()
    except BaseException:
        wire.close()
        raise
    if answer.status != HTTPStatus.OK:
        wire.close()
        raise HttpError(f"{answer.status} {answer.reason}")
    wire.used = 0


def _encode_request(
    server: Server, method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    parts = urlsplit(server.url)
    fields = {"Host": _format_authority(parts), **headers}
    if server.proxy is not None and parts.scheme == "http":
        target = f"http://{_format_authority(parts)}{target}"
        fields |= _proxy_authorization(urlsplit(server.proxy))
    if body is not None:
        fields["Content-Length"] = str(len(body))
    return _encode_head(method, target, fields) + (body or b"")


def _encode_head(method: str, target: str, fields: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    for line in lines:
        if not line.isprintable():
            raise HttpError(f"{line.partition(':')[0][:80]!r}: has characters that are not allowed in a request")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1", "replace")


def _format_authority(parts: SplitResult) -> str:
    """Return host and port for the field Host, without the scheme's default port."""
    host = add_brackets(_host(parts))
    return host if _port(parts) == _PORTS[parts.scheme] else f"{host}:{_port(parts)}"


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}
