"""A small site of pages by path and method: health, metrics, debugging.

    pages = Pages()
    pages.add("GET", "/healthz", healthz)      # async def healthz(request: Request) -> Reply
    serving = serve(listener, pages)
    ...
    await serving.close(grace=1.0)

The server reads a request's body, at most `LONGEST_BODY` bytes, before the page's handler runs. `Limits` has the
other limits. If a handler raises, the server logs the error and answers 500.
"""

import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias

from msgspec import field

from vipwire.http_server.exchange import TEXT, BodyError, Exchange, Fields, Reply, Stream
from vipwire.http_server.room import Room
from vipwire.http_server.server import Serving
from vipwire.model.value import Value

LONGEST_BODY: Final = 32 << 10
_KERNEL_BUFFER: Final = 64 << 10


class Request(Value, frozen=True):
    """A request. `path` is decoded; `headers` has lower-case names; the last of repeated headers counts."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    arrived: float = field(default_factory=time.monotonic)  # time.monotonic when the request was complete

    @property
    def text(self) -> str:
        """The body as text; invalid UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")


Handler: TypeAlias = Callable[[Request], Awaitable[Reply]]
Site: TypeAlias = Callable[[Request], Awaitable[Reply | Stream]]
"""Answers requests whose body is complete."""


class Pages:
    """Handlers by path and method: 404 for another path, 405 for another method; GET handlers also answer HEAD."""

    def __init__(self, **get: Handler) -> None:
        self.handlers: dict[str, dict[str, Handler]] = {}
        for name, handler in get.items():
            self.add("GET", f"/{name}", handler)

    def add(self, method: str, path: str, handler: Handler) -> None:
        self.handlers.setdefault(path, {})[method] = handler

    async def __call__(self, request: Request) -> Reply:
        found = self.handlers.get(request.path)
        if found is None:
            return build_error_reply(HTTPStatus.NOT_FOUND)
        handler = found.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = sorted({*found, *(["HEAD"] if "GET" in found else [])})
            return build_error_reply(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ",".join(allowed)})
        return await handler(request)


def build_error_reply(status: HTTPStatus, headers: Fields = TEXT) -> Reply:
    return Reply(f"{status.value}: {status.phrase}", status, {**TEXT, **headers})


class _Reading:
    def __init__(self, pages: Site) -> None:
        self._pages = pages

    async def __call__(self, exchange: Exchange) -> Reply | Stream:
        try:
            body = await exchange.read(LONGEST_BODY)
        except BodyError as error:
            return build_error_reply(error.status)
        return await self._pages(Request(exchange.method, exchange.path, exchange.query, exchange.headers, body))

    def refuse(self, status: HTTPStatus) -> Reply:
        return build_error_reply(status)


def serve_pages(listener: socket.socket, pages: Site, room: Room | None = None) -> Serving:
    """Serve pages at a listening socket, which the server closes. Servers with the same room share its limits."""
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # in a cgroup, socket buffers count as this process's memory
        listener.setsockopt(socket.SOL_SOCKET, buffer, _KERNEL_BUFFER)
    serving = Serving(_Reading(pages), room)
    serving.listen(listener)
    return serving
