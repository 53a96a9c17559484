"""One HTTP session to the API server, with credentials that follow their rotation.

A TLS context is made again only when a certificate of it has changed.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple, Self, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from vipwire.errors import ConfigError, VipwireError
from vipwire.http.client import Client, Server
from vipwire.http.wire import Answer
from vipwire.kube.access.access import Access
from vipwire.kube.access.credentials import Credential
from vipwire.kube.access.tls import Material
from vipwire.model.value import Value

ANSWER_TIMEOUT = 60.0
"""Seconds in which an answer must have begun. A watch's begins at once; only its events may take long to come."""

TRANSPORT_ERRORS = (TimeoutError, OSError, VipwireError)
"""What a request raises when there is no usable answer: network, TLS, HTTP framing, credentials."""


class Payload(Value, frozen=True):
    """The body of a request."""

    body: bytes
    content_type: str = "application/json"


class Answered(NamedTuple):
    """A request and its answer: `status` is empty where none came; `seconds` until the head of the answer."""

    method: str
    host: str
    status: str
    seconds: float


Witness: TypeAlias = Callable[[Answered], None]
"""Is told of every request, for metrics."""


def ignored(_answered: Answered) -> None:
    """Ignore a request."""


class Connection:
    """A session to one API server; an asynchronous context manager."""

    def __init__(
        self,
        access: Access,
        user_agent: str,
        *,
        answer_timeout: float = ANSWER_TIMEOUT,
        witness: Witness = ignored,
    ) -> None:
        self._access, self._answer_timeout, self._witness = access, answer_timeout, witness
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": user_agent}
        self._client: Client | None = None
        self._context: ssl.SSLContext | None = None
        self._material: Material | None = None
        parts = urlsplit(access.server)
        self._prefix = parts.path
        self._host = parts.netloc.rpartition("@")[2]

    async def __aenter__(self) -> Self:
        self._client = Client()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        timeout: float,  # noqa: ASYNC109 - passed on to the client, which bounds the whole answer with it
        payload: Payload | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request and give the answer; `timeout` in seconds. Raises one of TRANSPORT_ERRORS."""
        if self._client is None:
            raise VipwireError("the connection is not open")
        credential = await self._access.credential(time.time())
        headers = {**self._headers, **_headers(credential, payload)}
        target = f"{self._prefix}{path}{'?' if query else ''}{urlencode(query, quote_via=quote)}"
        began, status = time.perf_counter(), ""
        request = self._client.request(
            self._server(credential),
            method,
            target,
            headers,
            timeout=timeout,
            body=payload.body if payload else None,
        )
        async with contextlib.AsyncExitStack() as stack:
            try:
                answer = await self._answer(stack.enter_async_context(request))
                status = str(answer.status)
            finally:
                self._witness(Answered(method, self._host, status or "<error>", time.perf_counter() - began))
            if answer.status == HTTPStatus.UNAUTHORIZED:
                self._access.credentials.refused()
            yield answer

    async def _answer(self, request: Awaitable[Answer]) -> Answer:
        """Wait for the head of an answer."""
        try:
            async with asyncio.timeout(self._answer_timeout):
                return await request
        except TimeoutError as error:
            raise VipwireError(f"{self._access.server} did not answer in time") from error
        except ssl.SSLCertVerificationError as error:
            if self._access.tls is None:
                raise
            raise VipwireError(self._access.tls.explain(error)) from error

    def _server(self, credential: Credential) -> Server:
        tls = self._access.tls
        if tls is None:
            return Server(self._access.server, proxy=self._access.proxy)
        material = tls.material(credential.certificate)
        if self._context is None or material != self._material:
            self._context, self._material = tls.context(material), material
        return Server(self._access.server, self._context, tls.name, self._access.proxy)


def _headers(credential: Credential, payload: Payload | None) -> Mapping[str, str]:
    headers = {"Content-Type": payload.content_type} if payload else {}
    if credential.authorization:
        if not credential.authorization.isprintable():
            raise ConfigError("the token has characters that cannot stand in an HTTP header")
        headers["Authorization"] = credential.authorization
    return headers
