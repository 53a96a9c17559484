"""An HTTP/2 client for invalid requests: any pseudo-header, in any number, unchecked."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterable
from typing import Any, Final

_DATA, _HEADERS, _RESET, _SETTINGS, _GO_AWAY, _CONTINUATION = 0, 1, 3, 4, 7, 9
_END_STREAM, _END_HEADERS = 1, 4
_BY_INDEX: Final = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
"""`:status` in the static table of RFC 7541."""
Fields = Iterable[tuple[str, str]]


async def asked(port: int, fields: Fields) -> tuple[int, Any]:
    """Send a request; return the Pod's answer. A malformed one (RFC 9113) ends its stream or connection: 400."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(_PREFACE + _frame(_HEADERS, _END_STREAM | _END_HEADERS, 1, _block(fields)))
            status, body = await _answer(reader)
    return status, json.loads(body) if body.startswith(b"{") else None


async def send_headers_without_end(port: int, fields: Fields, most: int) -> None:
    """Send the headers of one request in `most` frames without END_HEADERS, or until the server closes."""
    more = b"\0" + _text("x") + _text("y" * 8000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.callback(writer.transport.abort)  # the server may not read the rest
        writer.write(_PREFACE + _frame(_HEADERS, _END_STREAM, 1, _block(fields)))
        for _ in range(most):
            writer.write(_frame(_CONTINUATION, 0, 1, more))
            await writer.drain()
            if reader.at_eof():
                break


def send_requests_and_reset_them(port: int, path: str, seconds: float) -> None:
    """Open connections one after the other; on each, begin and reset as many requests as HAProxy accepts at once."""
    streams, block = range(1, 200, 2), _block(pseudo(path, "a.org"))
    begun = b"".join(_frame(_HEADERS, _END_STREAM | _END_HEADERS, each, block) for each in streams)
    reset = b"".join(_frame(_RESET, 0, each, b"\0\0\0\x08") for each in streams)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(_PREFACE + begun + reset)


async def exchanged(port: int, request: str) -> tuple[int, Any]:
    """Send a request that is written as HTTP/1.1."""
    first, *lines = request.rstrip("\r\n").split("\r\n")
    method, path = first.removesuffix(" HTTP/1.1").split(" ", 1)
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    kept = [each for each in headers if each[0] not in ("host", "connection")]
    fields = pseudo(path, dict(headers)["host"], method)
    return await asked(port, (*fields, *kept))


def pseudo(path: str, host: str, method: str = "GET") -> tuple[tuple[str, str], ...]:
    return (":method", method), (":scheme", "http"), (":authority", host), (":path", path)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, body = 0, b""
    while True:
        try:
            head = await reader.readexactly(9)
            content = await reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return status or 400, body
        kind, flags = head[3], head[4]
        if kind in (_RESET, _GO_AWAY):
            return status or 400, body
        if kind == _HEADERS and not status:
            status = _status(content)
        elif kind == _DATA:
            body += content
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return status, body


def _status(block: bytes) -> int:
    if block[0] & 0x80:
        return _BY_INDEX[block[0] & 0x7F]
    length = block[1] & 0x7F
    return int(block[2 : 2 + length])


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"")


def _block(fields: Fields) -> bytes:
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    """Encode a string in HPACK without Huffman coding."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, made = len(data) - 127, bytearray((127,))
    while rest >= 128:
        made.append(rest % 128 | 128)
        rest //= 128
    made.append(rest)
    return bytes(made) + data
