"""The API server: authenticates and authorizes requests, and passes them to lists, watches and the registry.

    connection ─▶ headers ─▶ authentication ─▶ authorization ─▶ limits ─▶ body ─▶ answer

The server reads no body before the caller is known and allowed. `serving/limits.py` bounds connections, requests,
time and memory.
"""

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from vipwire.http_server.exchange import ClientGoneError, Exchange, Reply, Stream
from vipwire.http_server.room import Room
from vipwire.http_server.server import Serving
from vipwire.kube.errors import ApiError
from vipwire.logging.log import RateLimitedLog
from vipwire_up.api.answers.form import (
    Representation,
    RepresentationKind,
    choose_form,
    choose_status_form,
    encode_list,
    encode_record,
)
from vipwire_up.api.answers.pages import CUSTOM_KINDS, read_health, read_page
from vipwire_up.api.listing import list_page, wait_for_newest, wait_for_revision
from vipwire_up.api.named_secrets import NamedSecrets
from vipwire_up.api.objects.errors import bad_request, damaged_object, internal_error, page_not_found, request_timeout
from vipwire_up.api.objects.object import encode, key_of
from vipwire_up.api.objects.parameters import Parameters
from vipwire_up.api.registry import Registry
from vipwire_up.api.reviews import REVIEWS, Review, answer_review, check_reviewer
from vipwire_up.api.selectors import parse_selector
from vipwire_up.api.serving import authorization
from vipwire_up.api.serving.accept import BACKLOG, bind_all, plain_or_tls_opening
from vipwire_up.api.serving.answer import WATCHED, content_fields, status_reply
from vipwire_up.api.serving.limits import Bounds, InFlight, Sort, read_body
from vipwire_up.api.serving.metrics import ApiMetrics
from vipwire_up.api.serving.route import READING, Route, find_route
from vipwire_up.api.watching import BOOKMARK_SECONDS, read_watch, stream_watch
from vipwire_up.api.writing import Request, execute_write, read_object
from vipwire_up.store.record import Record

_LOG: Final = logging.getLogger("vipwire.api")

Identify = Callable[[Exchange], authorization.User]
"""Return the user of a request; raise ApiError 401 for invalid credentials."""
_EXTRA: Final = "/vipwire.io/"


class Extra(Protocol):
    """Answers vipwire's own requests about no object. Both methods raise ApiError."""

    def check(self, user: authorization.User, method: str, path: str) -> None:
        """Raise ApiError unless the user may send such a request."""

    async def answer(self, user: authorization.User, path: str, body: bytes) -> Mapping[str, Any]: ...


class ApiServer:
    """An HTTP server around a registry."""

    def __init__(
        self,
        registry: Registry,
        identify: Identify,
        extra: Extra | None = None,
        *,
        troubles: Callable[[], Mapping[str, str]] = dict,
        notes: Callable[[], Mapping[str, str]] = dict,
        bookmark_every: float = BOOKMARK_SECONDS,
        bounds: Bounds | None = None,
    ) -> None:
        self._registry = registry
        self._identify, self._extra = identify, extra
        self._named = NamedSecrets(registry.store)
        self._troubles, self._notes, self.metrics = troubles, notes, CollectorRegistry()
        self._bookmark_every = bookmark_every
        self.bounds = bounds or Bounds()
        self.in_flight = InFlight(self.bounds)
        self._counted = ApiMetrics(self.metrics, self.in_flight, registry.store)
        self._failures = RateLimitedLog()
        self._watching: dict[Exchange, authorization.User] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[Serving, int]:
        """Listen at an address, port 0 for any; return the closer and the port. Raise OSError."""
        serving = Serving(self, Room(self.bounds))
        for opened in await bind_all(host, port):
            self.listen_too(serving, opened, tls)
        return serving, serving.ports[0]

    @staticmethod
    def listen_too(serving: Serving, opened: socket.socket, tls: ssl.SSLContext | None) -> None:
        serving.listen(opened, plain_or_tls_opening(tls), BACKLOG)

    def end_withdrawn(self) -> None:
        """End the watches of users whose credentials are revoked or now name another user."""
        for request, user in tuple(self._watching.items()):
            if self._find_user(request) != user:
                request.connection.abort()

    def _find_user(self, request: Exchange) -> authorization.User | None:
        try:
            return self._identify(request)
        except ApiError:
            return None

    def refuse(self, code: HTTPStatus) -> Reply:
        """Answer malformed or oversized HTTP with a Status."""
        error = bad_request(f"the request is not HTTP: {code.phrase}").status()
        return Reply(encode(error | {"code": code.value}), code, content_fields())

    async def __call__(self, request: Exchange) -> Reply | None:
        """Answer a request, with a Status for every error."""
        try:
            user = self._identify(request)
            if user != authorization.ANONYMOUS:
                request.connection.recognize()
            return await self._answer_request(request, user)
        except ApiError as error:
            return _refuse_request(request, error)
        except ClientGoneError:
            raise
        except Exception:  # noqa: BLE001  # an error in one request must not end its connection
            if self._failures.due(request.path):
                _LOG.exception("request failed: %s %s", request.method, request.path)
            return _refuse_request(request, internal_error("internal error: see the server's log"))

    async def _answer_request(self, request: Exchange, user: authorization.User) -> Reply | None:
        if "impersonate-user" in request.headers:
            raise authorization.forbidden_impersonation(user, request.headers["impersonate-user"])
        if request.method == "POST" and (review := REVIEWS.get(request.path)) is not None:
            return await self._answer_review(request, review, user)
        if self._extra is not None and request.path.startswith(_EXTRA):
            return await self._answer_extra(request, user, self._extra)
        if _is_page(request.path):
            return self._answer_page(request, user)
        query = Parameters(request.parameters)
        route = find_route(request.method, request.path, query)
        with self._counted.measure_request(route, dry_run="dryRun" in query) as outcome:
            outcome.code = await self._answer_object_request(request, route, query, user)
        return None

    async def _answer_extra(self, request: Exchange, user: authorization.User, extra: Extra) -> Reply:
        extra.check(user, request.method, request.path)
        if request.method == "GET":  # every user may read the CA, so vipwire reads no body and counts no write
            with self.in_flight.count_request(Sort.READ, user, ""):
                return _json_reply(encode(await extra.answer(user, request.path, b"")))
        with self.in_flight.count_request(Sort.WRITE, user, ""):
            async with read_body(request, self.in_flight, self.bounds.question_bytes, user) as sent:
                return _json_reply(encode(await extra.answer(user, request.path, sent)))

    async def _answer_object_request(
        self, request: Exchange, route: Route, query: Parameters, user: authorization.User
    ) -> int:
        """Send the answer while the request counts as in flight; return its status code."""
        if not authorization.allows_route(user, route):
            raise authorization.forbidden_request(user, route)
        named = self._named if authorization.may_read_only_named(user, route.resource.plural) else None
        sort = Sort.WATCH if route.verb == "watch" else Sort.READ if route.verb in READING else Sort.WRITE
        with self.in_flight.count_request(sort, user, request.address):
            if route.verb != "watch":
                async with self._limit_time(query.duration("timeout")):
                    return await request.send(await self._route_request(request, route, query, named, user))
            self._watching[request] = user
            try:
                return await request.send(await self._watch_objects(request, route, query, named))
            finally:
                del self._watching[request]
        raise AssertionError  # pragma: no cover  # the managers above swallow nothing

    @contextlib.asynccontextmanager
    async def _limit_time(self, asked: float | None) -> AsyncIterator[None]:
        """Limit a request to the bounds, and to the time that the client asked for unless that is 0."""
        try:
            async with asyncio.timeout(min(self.bounds.request_seconds, asked or math.inf)):
                yield
        except TimeoutError:
            raise request_timeout() from None

    async def _route_request(
        self,
        request: Exchange,
        route: Route,
        query: Parameters,
        named: NamedSecrets | None,
        user: authorization.User,
    ) -> Reply | Stream:
        form = choose_form(request.headers.get("accept", ""), query)
        match route.verb:
            case "list":
                return await self._list_objects(form, route, query, named)
            case "get":
                if named is not None and key_of(route.resource, route.namespace, route.name) not in named:
                    raise authorization.forbidden_request(user, route, authorization.UNNAMED)
                return await self._get_object(form, route, query)
        return await self._change_object(request, form, route, query, user)

    async def _answer_review(self, request: Exchange, review: Review, user: authorization.User) -> Reply:
        check_reviewer(review, user)
        with self.in_flight.count_request(Sort.WRITE, user, ""):
            async with read_body(request, self.in_flight, self.bounds.question_bytes, user) as sent:
                body = (await read_object(_content_type(request), sent, review.types)).value
        return _json_reply(encode(answer_review(review, user, body, self._named)), 201)

    def _answer_page(self, request: Exchange, user: authorization.User) -> Reply:
        if not authorization.may_read_page(user, request.path):
            raise authorization.forbidden_page(user, request.path, request.method)
        if request.method not in ("GET", "HEAD"):
            raise page_not_found()
        health = read_health(
            request.path,
            self._troubles(),
            verbose="verbose" in request.query,
            left_out=[value for name, value in request.parameters if name == "exclude"],
            trusted=authorization.has_role(user),
            notes=self._notes(),
        )
        if health is not None:
            return Reply(health[1], health[0])
        accept = request.headers.get("accept", "")
        if request.path == "/metrics":
            write, media = choose_encoder(accept)
            return Reply(write(self.metrics), headers={"Content-Type": media})
        page = read_page(request.path, accept, request.headers.get("host", ""))
        tag = {"ETag": page.tag, "Vary": "Accept"}
        if page.tag in request.headers.get("if-none-match", ""):
            return Reply(b"", HTTPStatus.NOT_MODIFIED, tag)
        return Reply(page.body, headers={"Content-Type": page.media} | tag)

    async def _get_object(self, form: Representation, route: Route, query: Parameters) -> Reply:
        if version := query.revision("resourceVersion"):
            await wait_for_revision(self._registry.store, version)
        elif not query.text("resourceVersion"):
            await wait_for_newest(self._registry.store, route.resource, "get")
        record = self._registry.read(route.resource, route.namespace, route.name)
        if form.view is not RepresentationKind.TABLE and self._registry.store.is_damaged(record):
            raise damaged_object(route.resource.id, route.name)
        shown = encode_record(record, route.resource, form, self._registry.clock())
        return Reply(shown, headers=content_fields(filter(None, (route.resource.deprecated,)), form.media))

    async def _list_objects(
        self, form: Representation, route: Route, query: Parameters, named: NamedSecrets | None
    ) -> Reply | Stream:
        fields = query.text("fieldSelector")
        selector = parse_selector(route.resource, route.namespace, query.text("labelSelector"), fields, named)
        store, table = self._registry.store, form.view is RepresentationKind.TABLE
        page = await list_page(store, route.resource, selector, query, damaged=table)
        left_out = () if table else (each for each in store.damaged(route.resource.id) if selector.may_show(each.key))
        pieces = encode_list(page.records, route.resource, form, page.meta, self._registry.clock())
        headers = content_fields(
            filter(None, (route.resource.deprecated, *map(_describe_damaged, left_out))), form.media
        )
        first, second = next(pieces), next(pieces, None)
        if second is None:
            return Reply(first, headers=headers)
        return Stream(_iterate_pieces(chain((first, second), pieces)), headers, chunked=True, endless=False)

    async def _watch_objects(
        self, request: Exchange, route: Route, query: Parameters, named: NamedSecrets | None
    ) -> Reply | Stream:
        form = choose_form(request.headers.get("accept", ""), query, watch=True)
        fields = query.text("fieldSelector")
        fields = ",".join(filter(None, (f"metadata.name={route.name}" if route.name else "", fields)))
        selector = parse_selector(route.resource, route.namespace, query.text("labelSelector"), fields, named)
        wanted = read_watch(route.resource, selector, form, query)
        if not query.text("resourceVersion"):
            await wait_for_newest(self._registry.store, route.resource, "watch")
        events = stream_watch(self._registry.store, wanted, self._registry.clock, self._bookmark_every)
        if named is not None:
            events = named.pass_until_secrets_change(events, wanted.since)
        headers = content_fields(filter(None, (route.resource.deprecated,)))
        return Stream(events, headers, chunked=True, buffered=WATCHED)

    async def _change_object(
        self, request: Exchange, form: Representation, route: Route, query: Parameters, user: authorization.User
    ) -> Reply:
        agent = request.headers.get("user-agent", "")
        async with read_body(request, self.in_flight, self.bounds.body_bytes, user) as body:
            done = await execute_write(
                self._registry, Request(user, route, query, _content_type(request), agent, body)
            )
        if done.result is None:
            shown = form.convert(encode(done.status))
        else:
            shown = encode_record(done.result.record, route.resource, form, self._registry.clock())
        return Reply(shown, done.code, content_fields(done.warnings, form.media))


def _refuse_request(request: Exchange, error: ApiError) -> Reply:
    reply, form = status_reply(error), choose_status_form(request.headers.get("accept", ""))
    return Reply(form.convert(encode(error.status())), reply.status, {**reply.headers, "Content-Type": form.media})


def _is_page(path: str) -> bool:
    path = path.rstrip("/")
    if not path.startswith(("/api/", "/apis/")) or path.count("/") < 3 or path == CUSTOM_KINDS:
        return True
    return path.startswith("/apis/") and path.count("/") == 3


def _describe_damaged(record: Record) -> str:
    name = "/".join(filter(None, record.key[1:]))
    return f"the stored {record.key.resource} {name} is damaged, and missing in lists: delete the object"


def _content_type(request: Exchange) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip()


async def _iterate_pieces(pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


def _json_reply(body: bytes, code: int = 200) -> Reply:
    return Reply(body, code, content_fields())
