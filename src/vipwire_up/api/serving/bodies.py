"""Reading bodies of requests: as many bytes as one may have, in the time that it may take, and all of them together.

Who announces too many bytes is refused before any is read; who announces none is counted as if it were the most.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from aiohttp.web_request import BaseRequest

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request, too_large
from vipwire_up.api.serving.authorization import User
from vipwire_up.api.serving.limits import Bounds, InFlight

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@contextlib.asynccontextmanager
async def read_body(
    request: BaseRequest, bounds: Bounds, in_flight: InFlight, most: int, user: User
) -> AsyncIterator[bytes]:
    """Read a body, counted while it is in use. Raise ApiError: 408, 413, 415, 429, or 400 if it breaks off."""
    announced = request.content_length
    if announced is not None and announced > most:
        raise too_large(most)
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "UnsupportedMediaType", "the body of the request is compressed, which is not supported")
    if announced is None and not request.body_exists:
        yield b""
        return
    with in_flight.body(most if announced is None else announced, user):
        try:
            async with asyncio.timeout(bounds.body_seconds):
                body = await _read(request, most)
        except TimeoutError:
            raise ApiError(408, "Timeout", "the body of the request did not arrive in time") from None
        except web.RequestPayloadError as error:
            raise bad_request(f"the body of the request cannot be read: {error}") from None
        yield body


async def _read(request: BaseRequest, most: int) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0
    body = bytearray()
    while piece := await request.content.readany():
        body += piece
        if len(body) > most:
            raise too_large(most)
    return bytes(body)
