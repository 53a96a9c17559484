"""One HTTP session to the API server, with credentials that follow their rotation.

A TLS context is made again only when a certificate of it has changed. Half-open connections (a server that lost
its power, a load balancer that forgot us) are found by TCP keepalive and by an unacknowledged send's time-out, since
a silent watch is otherwise no different from a quiet cluster.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import aiohttp
from yarl import URL

from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.access.access import Access
from vipwire.kube.access.credentials import Credential
from vipwire.kube.access.tls import Material

CONNECT_TIMEOUT = 15.0
ANSWER_TIMEOUT = 60.0
"""Seconds in which an answer must have begun. A watch's begins at once; only its events may take long to come."""
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)

TRANSPORT_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, VipwireError)
"""What a request raises when there is no usable answer: network, TLS, HTTP framing, credentials."""


@dataclass(frozen=True, slots=True)
class Payload:
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
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None
        self._material: Material | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        timeout: float,  # noqa: ASYNC109 - passed on to the client, which bounds the whole answer with it
        payload: Payload | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and give the answer; `timeout` in seconds. Raises one of TRANSPORT_ERRORS."""
        if self._session is None:
            raise VipwireError("the connection is not open")
        credential = await self._access.credential(time.time())
        headers = _headers(credential, payload)
        url = URL(self._access.server + path).with_query(list(query))
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT)
        options = self._tls_options(credential)
        began, status = time.perf_counter(), ""
        try:
            response = await self._answer(
                self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=payload.body if payload else None,
                    timeout=limits,
                    proxy=self._access.proxy,
                    allow_redirects=False,
                    **options,
                )
            )
            status = str(response.status)
        finally:
            self._witness(Answered(method, url.authority, status or "<error>", time.perf_counter() - began))
        async with response:
            if response.status == 401:
                self._access.credentials.refused()
            yield response

    async def _answer(self, request: Awaitable[aiohttp.ClientResponse]) -> aiohttp.ClientResponse:
        """Wait for the head of an answer."""
        try:
            async with asyncio.timeout(self._answer_timeout):
                return await request
        except TimeoutError as error:
            raise VipwireError(f"{self._access.server} did not answer in time") from error
        except aiohttp.ClientConnectorCertificateError as error:
            cause = error.certificate_error
            if self._access.tls is None or not isinstance(cause, ssl.SSLCertVerificationError):
                raise
            raise VipwireError(self._access.tls.explain(cause)) from error
        except aiohttp.ClientProxyConnectionError as error:
            raise VipwireError(f"the proxy {_without_password(self._access.proxy)}: {describe(error)}") from error
        except aiohttp.ClientHttpProxyError as error:
            answer = f"{error.status} {error.message}"  # its own text tells the URL, with the password
            raise VipwireError(f"the proxy {_without_password(self._access.proxy)}: {answer}") from error

    def _tls_options(self, credential: Credential) -> Mapping[str, Any]:
        tls = self._access.tls
        if tls is None:
            return {}
        material = tls.material(credential.certificate)
        if self._context is None or material != self._material:
            self._context, self._material = tls.context(material), material
        return {"ssl": self._context, "server_hostname": tls.name}


def _headers(credential: Credential, payload: Payload | None) -> Mapping[str, str]:
    headers = {"Content-Type": payload.content_type} if payload else {}
    if credential.authorization:
        if not credential.authorization.isprintable():
            raise ConfigError("the token has characters that cannot stand in an HTTP header")
        headers["Authorization"] = credential.authorization
    return headers


def describe(error: BaseException) -> str:
    """Describe a transport error in a line; a time-out's own text is empty."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        reason = error.os_error.strerror if error.os_error.errno is None else os.strerror(error.os_error.errno)
        return f"cannot connect to {error.host}:{error.port}: {reason or error.os_error}"
    text = str(error) or type(error).__name__
    return "timed out" if isinstance(error, TimeoutError) and not str(error) else text


def _without_password(url: str | None) -> str:
    return str(URL(url).with_password(None).with_user(None)) if url else ""


def _socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made
