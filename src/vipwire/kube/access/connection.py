"""One HTTP session to the API server, with credentials that follow their rotation.

A TLS context is built again only when one of its certificates changed.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple, Self, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from vipwire.errors import ConfigError, VipwireError
from vipwire.http_client.client import Client, Server
from vipwire.http_client.wire import Response
from vipwire.kube.access.access import Access
from vipwire.kube.access.credentials import Credential
from vipwire.kube.access.tls import Material
from vipwire.model.net import Address, AddressPort, format_address, parse_address
from vipwire.model.value import Value

ANSWER_TIMEOUT = 60.0
"""Seconds in which an answer must begin. A watch's answer begins at once; its events may take long."""

TRANSPORT_ERRORS = (TimeoutError, OSError, VipwireError)
"""Errors of a request without a usable answer: network, TLS, HTTP framing, credentials."""


class Payload(Value, frozen=True):
    """The body of a request."""

    body: bytes
    content_type: str = "application/json"


class RequestResult(NamedTuple):
    """A request and its answer: `status` is "" without an answer; `seconds` until the answer's head."""

    method: str
    host: str
    status: str
    seconds: float


Witness: TypeAlias = Callable[[RequestResult], None]
"""Receives every request, for metrics."""


def ignore_result(_answered: RequestResult) -> None:
    """Do nothing: the default witness."""


class Connection:
    """A session to one API server; an asynchronous context manager."""

    def __init__(
        self,
        access: Access,
        user_agent: str,
        *,
        answer_timeout: float = ANSWER_TIMEOUT,
        witness: Witness = ignore_result,
        places: Callable[[frozenset[AddressPort]], None] | None = None,
    ) -> None:
        """`places` receives the addresses of connections before they are made."""
        self._access, self._answer_timeout, self._witness, self._places = access, answer_timeout, witness, places
        self._known: tuple[AddressPort, ...] = ()
        self._url = access.server
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": user_agent}
        self._client = Client()
        self._context: ssl.SSLContext | None = None
        self._material: Material | None = None
        parts = urlsplit(access.server)
        self._prefix = parts.path
        self._host = parts.netloc.rpartition("@")[2]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        timeout: float,  # noqa: ASYNC109 - passed on to the client, which bounds the whole answer with it
        payload: Payload | None = None,
    ) -> AsyncIterator[Response]:
        """Send a request and yield the answer; `timeout` in seconds. Raises one of TRANSPORT_ERRORS."""
        credential = await self._access.credential(time.time())
        headers = {**self._headers, **_build_headers(credential, payload)}
        target = f"{self._prefix}{path}{'?' if query else ''}{urlencode(query, quote_via=quote)}"
        if self._places is not None:
            await self._resolve_addresses(self._places)
        began, status = time.perf_counter(), ""
        request = self._client.request(
            self._build_server(credential),
            method,
            target,
            headers,
            timeout=timeout,
            body=payload.body if payload else None,
        )
        async with contextlib.AsyncExitStack() as stack:
            try:
                answer = await self._await_response(stack.enter_async_context(request))
                status = str(answer.status)
            finally:
                self._witness(RequestResult(method, self._host, status or "<error>", time.perf_counter() - began))
            if answer.status == HTTPStatus.UNAUTHORIZED:
                self._access.credentials.discard()
            yield answer

    async def _await_response(self, request: Awaitable[Response]) -> Response:
        try:
            async with asyncio.timeout(self._answer_timeout):
                return await request
        except TimeoutError as error:
            raise VipwireError(f"{self._access.server} did not answer in time") from error
        except ssl.SSLCertVerificationError as error:
            if self._access.tls is None:
                raise
            raise VipwireError(self._access.tls.explain(error)) from error

    async def _resolve_addresses(self, told: Callable[[frozenset[AddressPort]], None]) -> None:
        """Report the next connection's addresses; if the name has none now, use those of the last look-up.

        The addresses of the last look-up are reported as well, because connections to them may be open.
        """
        self._url = self._access.server
        host, port = _split_url(self._access.proxy or self._url)
        try:
            found = await _resolve_host(host)
        except OSError:
            if self._known and self._access.proxy is None:
                address, _ = self._known[0]
                self._url = _replace_host(self._url, format_address(address))
            return
        known = tuple((address, port) for address in found)
        if known != self._known:
            self._known, before = known, self._known
            told(frozenset((*known, *before)))

    def _build_server(self, credential: Credential) -> Server:
        tls = self._access.tls
        if tls is None:
            return Server(self._url, proxy=self._access.proxy)
        material = tls.material(credential.certificate)
        if self._context is None or material != self._material:
            self._context, self._material = tls.context(material), material
        name = tls.name if self._url == self._access.server else tls.name or _split_url(self._access.server)[0]
        return Server(self._url, self._context, name, self._access.proxy)


async def _resolve_host(host: str) -> tuple[Address, ...]:
    """Look up a host's addresses, in a fixed order. Raise OSError."""
    with contextlib.suppress(ValueError):
        return (parse_address(host),)
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(sorted({parse_address(str(place[0]).partition("%")[0]) for *_, place in found}))


def _split_url(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _replace_host(url: str, host: str) -> str:
    parts = urlsplit(url)
    place = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{place}:{parts.port}" if parts.port else place).geturl()


def _build_headers(credential: Credential, payload: Payload | None) -> Mapping[str, str]:
    headers = {"Content-Type": payload.content_type} if payload else {}
    if credential.authorization:
        if not credential.authorization.isprintable():
            raise ConfigError("the token has characters that are not allowed in an HTTP header")
        headers["Authorization"] = credential.authorization
    return headers
