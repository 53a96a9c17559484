"""Decides who may look: which names of this server a browser may use, and who shows the token.

Another site's page can make a browser ask us, and by DNS rebinding it can even read the answers, if it may use a name
of its own for this server. So the Host must be an IP address, `localhost`, or a name that the operator allows: only
the operator's own network names those. Beyond loopback a token is needed besides.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final

from vipwire.http_server.exchange import Reply
from vipwire.http_server.pages import Request, refusal

COOKIE: Final = "vipwire-view"
_SAME: Final = frozenset({"same-origin", "none"})


def is_loopback(host: str) -> bool:
    """Report whether only this machine reaches an address."""
    return ipaddress.ip_address(host).is_loopback


@dataclass(frozen=True, slots=True)
class AccessControl:
    """Who may look. `hosts` are further names of this server; without a `token` nobody is asked for one."""

    hosts: frozenset[str] = frozenset()
    token: str = ""

    def refusal(self, request: Request) -> Reply | None:
        """Return what to answer to who may not look; None for who may."""
        if request.method not in ("GET", "HEAD"):
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET,HEAD"})
        host = host_of(request)
        if not self._known(host):
            return Reply(
                f"403: this server does not know itself as {host!r}. Use its IP address, or start it with "
                "--allowed-host and that name.\n",
                HTTPStatus.FORBIDDEN,
            )
        if request.path != "/" and request.headers.get("sec-fetch-site", "none") not in _SAME:
            return Reply("403: asked by a page of another site.\n", HTTPStatus.FORBIDDEN)
        if self.token and not self._shown(request):
            return refusal(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": 'Bearer realm="vipwire view"'})
        return None

    def entering(self, request: Request) -> bool:
        """Report whether a request brings the right token in its address, to be kept as a cookie."""
        return bool(self.token) and request.path == "/" and self._is(request.query.get("token", ""))

    def _known(self, host: str) -> bool:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host == "localhost" or host in self.hosts
        return True

    def _shown(self, request: Request) -> bool:
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is(bearer.strip()):
            return True
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and self._is(found.value)

    def _is(self, text: str) -> bool:
        """Compare in a time that tells nothing about the token."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())


def host_of(request: Request) -> str:
    """Read the name by which a request calls this server, without its port, in small letters."""
    host = request.headers.get("host", "").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")
