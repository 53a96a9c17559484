"""Reads bodies of requests: limits each body's bytes and seconds, and the bytes of all bodies together.

A request whose Content-Length is too large is refused before its body is read. One without Content-Length counts as
the largest allowed.
"""

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

from vipwire.http_server.exchange import BodyError, Exchange
from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request, too_large
from vipwire_up.api.serving.authorization import User
from vipwire_up.api.serving.limits import InFlight


@contextlib.asynccontextmanager
async def read_body(exchange: Exchange, in_flight: InFlight, most: int, user: User) -> AsyncIterator[bytes]:
    """Read a body, counted while in use. Raise ApiError: 408, 413, 415, 429, or 400 if the connection breaks off."""
    announced = exchange.length
    if announced is not None and announced > most:
        raise too_large(most)
    if exchange.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(
            415, "UnsupportedMediaType", "the body of the request is compressed: send it without Content-Encoding"
        )
    with in_flight.body(most if announced is None else announced, user):
        try:
            body = await exchange.read(most)
        except BodyError as error:
            raise _refusal(error, most) from None
        yield body


def _refusal(error: BodyError, most: int) -> ApiError:
    match error.status:
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return too_large(most)
        case HTTPStatus.REQUEST_TIMEOUT:
            return ApiError(408, "Timeout", "the body of the request did not arrive in time")
    return bad_request("the body of the request is incomplete or not HTTP")
