"""Serves the page: files of the package, answers as JSON, and the stream of events. Read-only."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from vipwire.errors import ConfigError, VipwireError
from vipwire.http_server.exchange import Reply, Stream
from vipwire.http_server.pages import Request, build_error_reply
from vipwire.inspect.page.board import Board
from vipwire.inspect.page.gate import COOKIE, AccessControl
from vipwire.inspect.page.look import FirstReadingPendingError, Look
from vipwire.inspect.page.questions import find_question, list_modes

MOST_READERS: Final = 16
MOST_ASKING: Final = 8
_ANSWER_SECONDS: Final = 60.0
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageSite:
    """The web server's handler of the page."""

    def __init__(self, gate: AccessControl, board: Board, look: Look) -> None:
        self._gate, self._board, self._look = gate, board, look
        self._files = {path: _read_file(name) for path, name in _FILES.items()}
        self._readers = self._asking = 0

    async def __call__(self, request: Request) -> Reply | Stream:
        refused = self._gate.refuse_request(request)
        if refused is not None:
            return self._admit_or_refuse(request, refused)
        if self._gate.has_token_in_query(request):
            return self._set_cookie_and_redirect()
        if request.path == "/api/events":
            return self._open_event_stream()
        if request.path.startswith("/api/"):
            return (
                _build_json_reply(list_modes())
                if request.path == "/api/modes"
                else await self._answer_request(request)
            )
        return self._files.get(request.path, build_error_reply(HTTPStatus.NOT_FOUND, SAFE))

    def _admit_or_refuse(self, request: Request, refused: Reply) -> Reply:
        """Answer a refused request. Without the token: accept one in the query, or send the page that asks for it."""
        lacks_token = refused.status == HTTPStatus.UNAUTHORIZED
        if lacks_token and self._gate.has_token_in_query(request):
            return self._set_cookie_and_redirect()
        if lacks_token and request.path in _OPEN:
            return self._files[_OPEN[request.path]]
        return Reply(refused.body, refused.status, {**refused.headers, **SAFE})

    def _set_cookie_and_redirect(self) -> Reply:
        cookie = f"{COOKIE}={self._gate.token}; HttpOnly; SameSite=Strict; Path=/"
        return Reply(b"", HTTPStatus.SEE_OTHER, {**SAFE, "Location": "/", "Set-Cookie": cookie})

    async def _answer_request(self, request: Request) -> Reply:
        question = find_question(request.path, request.query)
        if question is None:
            return build_error_reply(HTTPStatus.NOT_FOUND, SAFE)
        if self._asking >= MOST_ASKING:
            return _answer_error("too many requests at once; try again", HTTPStatus.SERVICE_UNAVAILABLE)
        self._asking += 1
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return _build_json_reply(await self._look.answer_question(question))
        except (FirstReadingPendingError, TimeoutError) as error:
            return _answer_error(str(error) or "the answer takes too long", HTTPStatus.SERVICE_UNAVAILABLE)
        except ConfigError as error:
            return _answer_error(str(error), HTTPStatus.BAD_REQUEST)
        except VipwireError as error:
            return _answer_error(str(error), HTTPStatus.UNPROCESSABLE_ENTITY)
        finally:
            self._asking -= 1

    def _open_event_stream(self) -> Reply | Stream:
        if self._readers >= MOST_READERS:
            return _answer_error(f"{MOST_READERS} pages are already open", HTTPStatus.SERVICE_UNAVAILABLE)
        return Stream(self._yield_events(), {**SAFE, "Content-Type": "text/event-stream"})

    async def _yield_events(self) -> AsyncGenerator[bytes, None]:
        self._readers += 1  # counted here: a generator that never starts, as for HEAD, never runs its finally
        try:
            yield b"retry: 2000\n\n"
            async with contextlib.aclosing(self._board.follow()) as notices:
                async for notice in notices:
                    word, document = ("beat", None) if notice is None else notice
                    yield f"event: {word}\ndata: {_dump_json(document)}\n\n".encode()
        finally:
            self._readers -= 1


def _build_json_reply(document: Any, status: int = HTTPStatus.OK) -> Reply:
    return Reply(_dump_json(document), status, {**SAFE, "Content-Type": "application/json"})


def _answer_error(text: str, status: int) -> Reply:
    return _build_json_reply({"error": text}, status)


def _dump_json(document: Any) -> str:
    """Write JSON in one line of ASCII, which can neither end an event nor open an HTML element."""
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


_NAMES: Final = ("main", "list", "picture", "detail", "packet", "words", "stream")
_FILES: Final = {
    "/": "index.html",
    "/enter": "enter.html",
    "/page.css": "page.css",
    "/mark.svg": "mark.svg",
    **{f"/{name}.js": f"{name}.js" for name in _NAMES},
}
_OPEN: Final = {"/": "/enter", "/page.css": "/page.css"}
"""The files that vipwire shows to browsers without the token, by the path asked for."""


def _read_file(name: str) -> Reply:
    kind = _TYPES[name.rpartition(".")[2]]
    body = (files("vipwire.inspect.page") / "files" / name).read_bytes()
    return Reply(body, headers={**SAFE, "Content-Type": f"{kind}; charset=utf-8"})
