"""The API server: requests in, through authentication and authorization, to lists, watches and the registry.

Two bounds keep one client from harming the others: bodies are at most 3 MiB, as in Kubernetes, and a watcher that
does not read for half a minute is cut off.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web

from vipwire.cluster.api import guard
from vipwire.cluster.api.answers.form import choose_form, show, show_list
from vipwire.cluster.api.answers.health import Question, read_health
from vipwire.cluster.api.answers.pages import CUSTOM_KINDS, read_page
from vipwire.cluster.api.answers.reviews import REVIEWS, answer
from vipwire.cluster.api.errors import ApiError, internal, no_such_page
from vipwire.cluster.api.listing import list_page
from vipwire.cluster.api.object import encode
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.api.route import Route, find_route
from vipwire.cluster.api.selectors import select
from vipwire.cluster.api.watching import BOOKMARK_SECONDS, follow, read_watch
from vipwire.cluster.api.writing import Answer, Request, perform, read_body

MOST_BYTES: Final = 3 << 20
_LONGEST_LINE: Final = 64 << 10  # selectors stand in the request line
STALL_SECONDS: Final = 30.0
_LOG: Final = logging.getLogger("vipwire.api")

Identify = Callable[[web.Request], guard.User]
"""Tells who sends a request; raises ApiError 401 for credentials that are wrong."""


class ApiServer:
    """An aiohttp application around a registry."""

    def __init__(
        self,
        registry: Registry,
        identify: Identify,
        *,
        troubles: Callable[[], Mapping[str, str]] = dict,
        bookmark_every: float = BOOKMARK_SECONDS,
        stall: float = STALL_SECONDS,
    ) -> None:
        self._registry = registry
        self._identify = identify
        self._troubles = troubles
        self._bookmark_every = bookmark_every
        self._stall = stall
        self.app = web.Application(client_max_size=MOST_BYTES, middlewares=[_answer_errors])
        self.app.router.add_route("*", "/{path:.*}", self._handle)

    def runner(self) -> web.AppRunner:
        """Make what serves the application."""
        return web.AppRunner(
            self.app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,  # a watch ends when its client goes
            shutdown_timeout=1.0,
            max_line_size=_LONGEST_LINE,
            max_field_size=_LONGEST_LINE,
        )

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[web.AppRunner, int]:
        """Serve at an address; port 0 is any. Give what to clean up, and the port. Raise OSError."""
        runner = self.runner()
        await runner.setup()
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        return runner, int(runner.addresses[0][1])

    @staticmethod
    async def listen_too(runner: web.AppRunner, opened: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve at one more socket."""
        await web.SockSite(runner, opened, ssl_context=tls).start()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        user = self._identify(request)
        guard.CALLER.set(user)
        if "Impersonate-User" in request.headers:
            raise guard.impersonation_refusal(user, request.headers["Impersonate-User"])
        if request.method == "POST" and (review := REVIEWS.get(request.path)) is not None:
            body = read_body(_content(request), await request.read(), review.types)
            return _json(encode(answer(review, user, body)), Answer(201))
        if _is_page(request.path):
            return self._page(request, user)
        route = find_route(request.method, request.path, request.query)
        if not guard.allows(user, route):
            raise guard.refusal(user, route)
        match route.verb:
            case "watch":
                return await self._watch(request, route)
            case "list":
                return await self._list(request, route)
            case "get":
                return self._get(request, route)
        return await self._change(request, route)

    def _page(self, request: web.Request, user: guard.User) -> web.Response:
        if not guard.may_ask(user, request.path):
            raise guard.page_refusal(user, request.path, request.method)
        if request.method not in ("GET", "HEAD"):
            raise no_such_page()
        asked = Question("verbose" in request.query, request.query.getall("exclude", ()), guard.has_role(user))
        if (health := read_health(request.path, asked, self._troubles())) is not None:
            return web.Response(text=health.text, status=health.code)
        page = read_page(request.path, request.headers.get("Accept", ""), request.host)
        return web.Response(body=page.body, headers={"Content-Type": page.media})

    def _get(self, request: web.Request, route: Route) -> web.Response:
        form = choose_form(request.headers.get("Accept", ""), request.query)
        record = self._registry.read(route.resource, route.namespace, route.name)
        return _json(show(record, route.resource, form, self._registry.clock()))

    async def _list(self, request: web.Request, route: Route) -> web.Response:
        form = choose_form(request.headers.get("Accept", ""), request.query)
        query = request.query
        selector = select(
            route.resource, route.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        page = await list_page(self._registry.store, route.resource, selector, query)
        return _json(show_list(page.records, route.resource, form, page.meta, self._registry.clock()))

    async def _watch(self, request: web.Request, route: Route) -> web.StreamResponse:
        form, query = choose_form(request.headers.get("Accept", ""), request.query), request.query
        fields = query.get("fieldSelector", "")
        fields = ",".join(filter(None, (f"metadata.name={route.name}" if route.name else "", fields)))
        selector = select(route.resource, route.namespace, query.get("labelSelector", ""), fields)
        wanted = read_watch(route.resource, selector, form, query)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            events = follow(self._registry.store, wanted, self._registry.clock, self._bookmark_every)
            async with contextlib.aclosing(events):
                async for lines in events:
                    async with asyncio.timeout(self._stall):
                        await response.write(lines)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the watcher has gone
        return response

    async def _change(self, request: web.Request, route: Route) -> web.Response:
        form = choose_form(request.headers.get("Accept", ""), request.query)
        agent = request.headers.get("User-Agent", "")
        body = await request.read()
        done = await perform(self._registry, Request(route, request.query, _content(request), agent, body))
        if done.result is None:
            shown = encode(done.status)
        else:
            shown = show(done.result.record, route.resource, form, self._registry.clock())
        return _json(shown, done)


def _is_page(path: str) -> bool:
    """Tell whether a path is about no object: it is none of /api/v1/KIND and /apis/GROUP/v1/KIND, or below these."""
    path = path.rstrip("/")
    if not path.startswith(("/api/", "/apis/")) or path.count("/") < 3 or path == CUSTOM_KINDS:
        return True
    return path.startswith("/apis/") and path.count("/") == 3


def _content(request: web.Request) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip()


def _json(body: bytes, done: Answer | None = None) -> web.Response:
    response = web.Response(body=body, status=done.code if done else 200, content_type="application/json")
    for warning in done.warnings if done else ():
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response


@web.middleware
async def _answer_errors(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    """Say every error as a Status."""
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as error:
        return _status(error)
    except web.HTTPRequestEntityTooLarge:
        message = f"Request entity too large: limit is {MOST_BYTES}"
        return _status(ApiError(413, "RequestEntityTooLarge", message))
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:  # noqa: BLE001  # a request that fails must not take its connection with it; it is logged
        _LOG.exception("request failed: %s %s", request.method, request.path)
        return _status(internal("the server failed; its log says why"))
    return response


def _status(error: ApiError) -> web.Response:
    headers = {"Retry-After": "1"} if "retryAfterSeconds" in error.details else {}
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        body=encode(error.status()), status=error.code, headers=headers, content_type="application/json"
    )
