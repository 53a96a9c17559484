"""Access control of the page: the host names that a browser may use, and the token.

A page of another site can make a browser send requests here. With DNS rebinding, that page could read the answers. So
the Host header must be an IP address, `localhost`, or a name that the operator allows. Beyond loopback, vipwire also
requires a token.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final

from vipwire.http_server.exchange import Reply
from vipwire.http_server.pages import Request, build_error_reply

COOKIE: Final = "vipwire-view"
_SAME: Final = frozenset({"same-origin", "none"})


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


@dataclass(frozen=True, slots=True)
class AccessControl:
    """Access control of the page. `hosts` are further names of this server; without a `token` none is required."""

    hosts: frozenset[str] = frozenset()
    token: str = ""

    def refuse_request(self, request: Request) -> Reply | None:
        if request.method not in ("GET", "HEAD"):
            return build_error_reply(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET,HEAD"})
        host = host_of(request)
        if not self._is_own_name(host):
            return Reply(
                f"403: {host!r} is not a name of this server. Use its IP address, or start it with --allowed-host.\n",
                HTTPStatus.FORBIDDEN,
            )
        if request.path != "/" and request.headers.get("sec-fetch-site", "none") not in _SAME:
            return Reply("403: the request comes from a page of another site.\n", HTTPStatus.FORBIDDEN)
        if self.token and not self._has_token(request):
            return build_error_reply(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": 'Bearer realm="vipwire view"'})
        return None

    def has_token_in_query(self, request: Request) -> bool:
        """Report whether the request has the right token in its query, to be kept as a cookie."""
        return bool(self.token) and request.path == "/" and self._is_token(request.query.get("token", ""))

    def _is_own_name(self, host: str) -> bool:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host == "localhost" or host in self.hosts
        return True

    def _has_token(self, request: Request) -> bool:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(bearer.strip()):
            return True
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _is_token(self, text: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())


def host_of(request: Request) -> str:
    host = request.headers.get("host", "").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")
