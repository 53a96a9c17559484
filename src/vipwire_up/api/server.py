"""The API server: requests in, through authentication and authorization, to lists, watches and the registry.

    connection ─▶ headers ─▶ who is it? ─▶ may it? ─▶ is there room? ─▶ body ─▶ answer

Nothing is read of a body, and nothing of it is parsed, before the caller is known and allowed. How much anybody may
have of connections, requests, time and memory is in `serving/limits.py`.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from aiohttp import web
from aiohttp.web_request import BaseRequest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from vipwire.kube.errors import ApiError
from vipwire.logging.rate_limited_log import RateLimitedLog
from vipwire_up.api.answers.form import RepresentationKind, choose_form, show, show_list
from vipwire_up.api.answers.pages import CUSTOM_KINDS, read_health, read_page
from vipwire_up.api.listing import list_page, parse_number, wait_for_newest, wait_for_revision
from vipwire_up.api.named_secrets import NamedSecrets
from vipwire_up.api.objects.errors import damaged, internal, no_such_page, too_slow
from vipwire_up.api.objects.object import encode, key_of
from vipwire_up.api.registry import Registry
from vipwire_up.api.reviews import REVIEWS, Review, answer, check_asker
from vipwire_up.api.selectors import select
from vipwire_up.api.serving import authorization
from vipwire_up.api.serving.accept import Listening, bound
from vipwire_up.api.serving.answer import (
    JSON,
    WATCHED,
    abort,
    add_warnings,
    hold_little,
    send,
    split,
    status,
    stream,
)
from vipwire_up.api.serving.bodies import read_body
from vipwire_up.api.serving.connections import Connection, Connections
from vipwire_up.api.serving.limits import Bounds, InFlight, Sort
from vipwire_up.api.serving.metrics import ApiMetrics
from vipwire_up.api.serving.route import READING, Route, find_route
from vipwire_up.api.watching import BOOKMARK_SECONDS, follow, read_watch
from vipwire_up.api.writing import Request, WriteAnswer, perform, read_object
from vipwire_up.store.record import Record

_LOG: Final = logging.getLogger("vipwire.api")

Identify = Callable[[BaseRequest], authorization.User]
"""Tells who sends a request; raises ApiError 401 for credentials that are wrong."""
_EXTRA: Final = "/vipwire.io/"


class Extra(Protocol):
    """Answers what is about no object and only vipwire asks. Both methods raise ApiError."""

    def check(self, user: authorization.User, method: str, path: str) -> None:
        """Decide whether the user may send such a request."""

    async def answer(self, user: authorization.User, path: str, body: bytes) -> Mapping[str, Any]:
        """Answer it."""


class ApiServer:
    """An HTTP server around a registry."""

    def __init__(
        self,
        registry: Registry,
        identify: Identify,
        *,
        troubles: Callable[[], Mapping[str, str]] = dict,
        notes: Callable[[], Mapping[str, str]] = dict,
        metrics: CollectorRegistry | None = None,
        bookmark_every: float = BOOKMARK_SECONDS,
        bounds: Bounds | None = None,
    ) -> None:
        self._registry = registry
        self._identify = identify
        self._named = NamedSecrets(registry.store)
        self._troubles, self._notes, self._metrics = troubles, notes, metrics or CollectorRegistry()
        self._bookmark_every = bookmark_every
        self.bounds = bounds or Bounds()
        self.in_flight = InFlight(self.bounds)
        self._counted = ApiMetrics(self._metrics, self.in_flight, registry.store)
        self._failures = RateLimitedLog()
        self._watching: dict[int, tuple[BaseRequest, authorization.User]] = {}
        self.extra: Extra | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[Listening, int]:
        """Serve at an address; port 0 is any. Give what to clean up, and the port. Raise OSError."""
        runner = Listening(Connections(self._handle, self.bounds))
        await runner.setup()
        try:
            for opened in await bound(host, port):
                runner.open(opened, tls)
        except BaseException:
            await runner.cleanup()
            raise
        return runner, runner.ports[0]

    @staticmethod
    async def listen_too(runner: Listening, opened: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve at one more socket."""
        runner.open(opened, tls)

    def end_withdrawn(self) -> None:
        """End the watches of those whose credentials do not hold any more, or make somebody else of them."""
        for request, user in tuple(self._watching.values()):
            if self._user_now(request) != user:
                abort(request)

    def _user_now(self, request: BaseRequest) -> authorization.User | None:
        try:
            return self._identify(request)
        except ApiError:
            return None

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        """Answer a request, with a Status for every error; its connection has no deadline meanwhile."""
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101  # the server makes no others
        connection.busy()
        try:
            response = await self._answer(request, connection)
            return await send(request, response, self.bounds)
        except ConnectionError:  # the client has gone, or was cut off: nobody reads an answer
            abort(request)
            return web.Response()
        finally:
            connection.answered()

    async def _answer(self, request: BaseRequest, connection: Connection) -> web.StreamResponse:
        try:
            user = self._identify(request)
            if user != authorization.ANONYMOUS and not connection.known:
                connection.recognized()
            return await self._answer_to(request, user)
        except ApiError as error:
            return status(error)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001  # a request that fails must not take its connection with it; it is logged
            if self._failures.due(request.path):
                _LOG.exception("request failed: %s %s", request.method, request.path)
            return status(internal("the server failed; its log says why"))

    async def _answer_to(self, request: BaseRequest, user: authorization.User) -> web.StreamResponse:
        if "Impersonate-User" in request.headers:
            raise authorization.impersonation_refusal(user, request.headers["Impersonate-User"])
        if request.method == "POST" and (review := REVIEWS.get(request.path)) is not None:
            return await self._review(request, review, user)
        if self.extra is not None and request.path.startswith(_EXTRA):
            return await self._extra(request, user, self.extra)
        if _is_page(request.path):
            return self._page(request, user)
        route = find_route(request.method, request.path, request.query)
        with self._counted.measured(route, dry_run="dryRun" in request.query) as outcome:
            response = await self._about_object(request, route, user)
            outcome.code = response.status
        return response

    async def _extra(self, request: BaseRequest, user: authorization.User, extra: Extra) -> web.Response:
        extra.check(user, request.method, request.path)
        if request.method == "GET":  # anybody may ask for the authority: no body is waited for, and no write counted
            with self.in_flight.request(Sort.READ, user, ""):
                return _json(encode(await extra.answer(user, request.path, b"")))
        with self.in_flight.request(Sort.WRITE, user, ""):
            async with read_body(request, self.bounds, self.in_flight, self.bounds.question_bytes, user) as sent:
                return _json(encode(await extra.answer(user, request.path, sent)))

    async def _about_object(self, request: BaseRequest, route: Route, user: authorization.User) -> web.StreamResponse:
        if not authorization.allows(user, route):
            raise authorization.refusal(user, route)
        named = self._named if authorization.only_named(user, route.resource.plural) else None
        sort = Sort.WATCH if route.verb == "watch" else Sort.READ if route.verb in READING else Sort.WRITE
        with self.in_flight.request(sort, user, request.remote or ""):
            if route.verb == "watch":
                self._watching[id(request)] = (request, user)
                try:
                    return await self._watch(request, route, named)
                finally:
                    del self._watching[id(request)]
            async with self._in_time(request):
                return await self._serve(request, route, named, user)
        raise AssertionError  # pragma: no cover  # the managers above swallow nothing

    @contextlib.asynccontextmanager
    async def _in_time(self, request: BaseRequest) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.bounds.request_seconds):
                yield
        except TimeoutError:
            if request.writer.output_size:
                abort(request)
                raise ConnectionResetError("the answer took too long") from None
            raise too_slow() from None

    async def _serve(
        self, request: BaseRequest, route: Route, named: NamedSecrets | None, user: authorization.User
    ) -> web.StreamResponse:
        match route.verb:
            case "list":
                return await self._list(request, route, named)
            case "get":
                if named is not None and key_of(route.resource, route.namespace, route.name) not in named:
                    raise authorization.refusal(user, route, authorization.UNNAMED)
                return await self._get(request, route)
        return await self._change(request, route, user)

    async def _review(self, request: BaseRequest, review: Review, user: authorization.User) -> web.Response:
        check_asker(review, user)
        with self.in_flight.request(Sort.WRITE, user, ""):
            async with read_body(request, self.bounds, self.in_flight, self.bounds.question_bytes, user) as sent:
                body = (await read_object(_content(request), sent, review.types)).value
        return _json(encode(answer(review, user, body, self._named)), WriteAnswer(201))

    def _page(self, request: BaseRequest, user: authorization.User) -> web.Response:
        if not authorization.may_ask(user, request.path):
            raise authorization.page_refusal(user, request.path, request.method)
        if request.method not in ("GET", "HEAD"):
            raise no_such_page()
        health = read_health(
            request.path,
            self._troubles(),
            verbose="verbose" in request.query,
            left_out=request.query.getall("exclude", ()),
            trusted=authorization.has_role(user),
            notes=self._notes(),
        )
        if health is not None:
            return web.Response(status=health[0], text=health[1])
        if request.path == "/metrics":
            write, media = choose_encoder(request.headers.get("Accept", ""))
            return web.Response(body=write(self._metrics), headers={"Content-Type": media})
        page = read_page(request.path, request.headers.get("Accept", ""), request.host)
        tag = {"ETag": page.tag, "Vary": "Accept"}
        if page.tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=tag)
        return web.Response(body=page.body, headers={"Content-Type": page.media} | tag)

    async def _get(self, request: BaseRequest, route: Route) -> web.Response:
        form = choose_form(request.headers.get("Accept", ""), request.query)
        if version := parse_number(request.query, "resourceVersion"):
            await wait_for_revision(self._registry.store, version)
        elif not request.query.get("resourceVersion"):
            await wait_for_newest(self._registry.store, route.resource, "get")
        record = self._registry.read(route.resource, route.namespace, route.name)
        if form.view is not RepresentationKind.TABLE and self._registry.store.is_damaged(record):
            raise damaged(route.resource.id, route.name)
        response = _json(show(record, route.resource, form, self._registry.clock()))
        add_warnings(response, filter(None, (route.resource.deprecated,)))
        return response

    async def _list(self, request: BaseRequest, route: Route, named: NamedSecrets | None) -> web.StreamResponse:
        form = choose_form(request.headers.get("Accept", ""), request.query)
        query = request.query
        fields = query.get("fieldSelector", "")
        selector = select(route.resource, route.namespace, query.get("labelSelector", ""), fields, named)
        store, table = self._registry.store, form.view is RepresentationKind.TABLE
        page = await list_page(store, route.resource, selector, query, damaged=table)
        left_out = () if table else (each for each in store.damaged(route.resource.id) if selector.shows(each.key))
        pieces = show_list(page.records, route.resource, form, page.meta, self._registry.clock())
        response = web.StreamResponse(headers={"Content-Type": JSON})
        add_warnings(response, filter(None, (route.resource.deprecated, *map(_left_out, left_out))))
        return await stream(request, response, pieces, self.bounds)

    async def _watch(self, request: BaseRequest, route: Route, named: NamedSecrets | None) -> web.StreamResponse:
        form, query = choose_form(request.headers.get("Accept", ""), request.query), request.query
        fields = query.get("fieldSelector", "")
        fields = ",".join(filter(None, (f"metadata.name={route.name}" if route.name else "", fields)))
        selector = select(route.resource, route.namespace, query.get("labelSelector", ""), fields, named)
        wanted = read_watch(route.resource, selector, form, query)
        if not query.get("resourceVersion"):
            await wait_for_newest(self._registry.store, route.resource, "watch")
        response = web.StreamResponse(headers={"Content-Type": JSON})
        add_warnings(response, filter(None, (route.resource.deprecated,)))
        if request.version >= (1, 1):
            response.enable_chunked_encoding()
        try:
            hold_little(request)
            await response.prepare(request)
            events = follow(self._registry.store, wanted, self._registry.clock, self._bookmark_every)
            if named is not None:
                events = named.bounded(events, wanted.since)
            async with contextlib.aclosing(events):
                async for lines in events:
                    for part in split(lines, WATCHED):
                        async with asyncio.timeout(self.bounds.stall_seconds):
                            await response.write(part)
                            await request.writer.drain()
                        await asyncio.sleep(0)
            async with asyncio.timeout(self.bounds.stall_seconds):
                await response.write_eof()
        except TimeoutError:
            abort(request)
        except ConnectionError:
            pass  # the watcher has gone
        return response

    async def _change(self, request: BaseRequest, route: Route, user: authorization.User) -> web.Response:
        form = choose_form(request.headers.get("Accept", ""), request.query)
        agent = request.headers.get("User-Agent", "")
        async with read_body(request, self.bounds, self.in_flight, self.bounds.body_bytes, user) as body:
            done = await perform(self._registry, Request(user, route, request.query, _content(request), agent, body))
        if done.result is None:
            shown = encode(done.status)
        else:
            shown = show(done.result.record, route.resource, form, self._registry.clock())
        return _json(shown, done)


def _is_page(path: str) -> bool:
    """Report whether a path names no object: it is none of /api/v1/KIND, /apis/GROUP/v1/KIND, or below these."""
    path = path.rstrip("/")
    if not path.startswith(("/api/", "/apis/")) or path.count("/") < 3 or path == CUSTOM_KINDS:
        return True
    return path.startswith("/apis/") and path.count("/") == 3


def _left_out(record: Record) -> str:
    name = "/".join(filter(None, record.key[1:]))
    return f"what is stored of {record.key.resource} {name} is damaged, and left out of lists: delete it"


def _content(request: BaseRequest) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip()


def _json(body: bytes, done: WriteAnswer | None = None) -> web.Response:
    response = web.Response(body=body, status=done.code if done else 200, content_type=JSON)
    add_warnings(response, done.warnings if done else ())
    return response
