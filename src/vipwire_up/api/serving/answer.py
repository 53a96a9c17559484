"""Writing answers: piece by piece, so that one that nobody reads holds a few pieces and not all of it.

A client that reads nothing for half a minute is cut off, and so is one whose answer takes longer than a request may.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final

from aiohttp import web
from aiohttp.web_request import BaseRequest

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.object import encode
from vipwire_up.api.serving.connections import Connection
from vipwire_up.api.serving.limits import Bounds

JSON: Final = "application/json"
_PIECE: Final = 64 << 10
WATCHED: Final = 16 << 10
"""Bytes that are written at once to who watches: of watches one client has many more at a time than of lists."""
_MOST_WARNINGS: Final = 50  # headers that common clients take
_LONGEST_WARNING, _ALL_WARNINGS = 256, 4096  # characters, as kube-apiserver's (apiserver/pkg/endpoints/filters)


def status(error: ApiError) -> web.Response:
    """Build the answer to an error."""
    headers = {"Retry-After": str(error.details["retryAfterSeconds"])} if "retryAfterSeconds" in error.details else {}
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(body=encode(error.status()), status=error.code, headers=headers, content_type=JSON)


def add_warnings(response: web.StreamResponse, warnings: Iterable[str]) -> None:
    """Add warnings: what of 4,096 characters of them is too much is cut to 256 each, and then left out."""
    texts = ["".join(char if char.isprintable() else " " for char in text) for text in warnings]
    if sum(map(len, texts)) > _ALL_WARNINGS:
        texts = [text[:_LONGEST_WARNING] for text in texts]
    left = _ALL_WARNINGS
    for text in texts[:_MOST_WARNINGS]:
        left -= len(text)
        if left < 0:
            return
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')


async def send(request: BaseRequest, response: web.StreamResponse, bounds: Bounds) -> web.StreamResponse:
    """Write an answer that is whole already, unless it is written. Cut off who does not read it."""
    if not isinstance(response, web.Response):
        return response
    if not isinstance(response.body, bytes) or len(response.body) <= _PIECE or request.method == "HEAD":
        await _in_time(request, bounds, response.prepare(request))
        await _in_time(request, bounds, response.write_eof())
        return response
    body = response.body
    parted = web.StreamResponse(status=response.status, headers=response.headers)
    parted.content_length = len(body)
    return await stream(request, parted, (body,), bounds)


async def stream(
    request: BaseRequest, response: web.StreamResponse, pieces: Iterable[bytes], bounds: Bounds
) -> web.StreamResponse:
    """Write an answer piece by piece; others get their turn between two. Cut off who does not read it."""
    if response.content_length is None and request.version >= (1, 1):
        response.enable_chunked_encoding()
    await _in_time(request, bounds, response.prepare(request))
    for piece in pieces if request.method != "HEAD" else ():
        for part in split(piece):
            await _in_time(request, bounds, response.write(part))
            await asyncio.sleep(0)
    await _in_time(request, bounds, response.write_eof())
    return response


def split(piece: bytes, size: int = _PIECE) -> Iterator[memoryview]:
    """Divide bytes into pieces that can be written at once, without a copy."""
    whole = memoryview(piece)
    return (whole[at : at + size] for at in range(0, len(piece), size))


def hold_little(request: BaseRequest) -> None:
    """Have a connection hold a `WATCHED` piece and no more until its client has read that."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(WATCHED)


async def _in_time(request: BaseRequest, bounds: Bounds, write: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(bounds.stall_seconds):
            await write
    except TimeoutError:
        abort(request)
        raise ConnectionResetError("the client does not read") from None


def abort(request: BaseRequest) -> None:
    """Cut a client off."""
    connection = request.protocol
    if isinstance(connection, Connection):
        connection.cut()
