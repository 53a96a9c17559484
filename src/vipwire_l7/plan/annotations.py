"""Lists the annotations by name, and reads their values.

vipwire's own begin with `vipwire.io/`. Those of haproxy-ingress and ingress-nginx with the same meaning are read too,
under vipwire's names. vipwire's own win where both are set. An invalid value is a Problem and counts as absent. If
the annotation is a guard (`GUARDS`), the Ingress is denied instead, for it would be open without the guard.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from vipwire.model.problem import Problem
from vipwire_l7.plan import readers
from vipwire_l7.watch.objects import Ingress

ValueT = TypeVar("ValueT")
OURS: Final = "vipwire.io/"
_NGINX: Final = "nginx.ingress.kubernetes.io/"
_HAPROXY: Final = ("haproxy-ingress.github.io/", "ingress.kubernetes.io/")
_READ_ELSEWHERE: Final = ("weights", "algorithm", "slow-start")
"""Annotations of Services."""

READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "affinity": readers.Word("cookie"),
    "session-cookie-name": readers.NAME,
    "session-cookie-path": readers.COOKIE_PATH,
    "session-cookie-max-age": readers.read_number,
    "session-cookie-samesite": readers.Word("None", "Lax", "Strict"),
    "session-cookie-secure": readers.read_flag,
    "session-cookie-change-on-failure": readers.read_flag,
    "balance": readers.Word("roundrobin", "leastconn", "source", "uri", "header"),
    "balance-header": readers.HEADER,
    "timeout-connect": readers.read_duration,
    "timeout-server": readers.read_duration,
    "timeout-queue": readers.read_duration,
    "timeout-tunnel": readers.read_duration,
    "retries": readers.read_percent,
    "redispatch": readers.read_flag,
    "health-check-path": readers.PATH,
    "health-check-interval": readers.read_duration,
    "health-check-rise": readers.read_positive,
    "health-check-fall": readers.read_positive,
    "limit-rps": readers.read_positive,
    "limit-rpm": readers.read_positive,
    "limit-connections": readers.read_positive,
    "pod-connections": readers.read_positive,
    "allow-source-range": readers.Entries(readers.read_prefix),
    "deny-source-range": readers.Entries(readers.read_prefix),
    "ssl-redirect": readers.read_flag,
    "force-ssl-redirect": readers.read_flag,
    "hsts": readers.read_flag,
    "hsts-max-age": readers.read_number,
    "hsts-include-subdomains": readers.read_flag,
    "hsts-preload": readers.read_flag,
    "permanent-redirect": readers.URL,
    "permanent-redirect-code": readers.read_redirect_code,
    "temporal-redirect": readers.URL,
    "temporal-redirect-code": readers.read_redirect_code,
    "app-root": readers.PATH,
    "rewrite-target": readers.REWRITE_TARGET,
    "use-regex": readers.read_flag,
    "set-request-headers": readers.read_headers_to_set,
    "remove-request-headers": readers.Entries(readers.read_removable_header),
    "upstream-vhost": readers.HOST_AND_PORT,
    "set-response-headers": readers.read_headers_to_set,
    "remove-response-headers": readers.Entries(readers.read_removable_header),
    "body-size": readers.read_size,
    "auth-secret": readers.SECRET,
    "auth-secret-type": readers.Word("auth-file", "auth-map"),
    "auth-realm": readers.VALUE,
    "cors": readers.read_flag,
    "cors-allow-origin": readers.Entries(readers.ORIGIN),
    "cors-allow-methods": readers.Entries(readers.METHOD),
    "cors-allow-headers": readers.Entries(readers.HEADER),
    "cors-expose-headers": readers.Entries(readers.HEADER),
    "cors-allow-credentials": readers.read_flag,
    "cors-max-age": readers.read_number,
    "share-with": readers.Entries(readers.NAMESPACE),
    "canary": readers.read_flag,
    "canary-weight": readers.read_percent,
    "canary-by-header": readers.HEADER,
    "canary-by-header-value": readers.VALUE,
    "canary-by-cookie": readers.NAME,
    "backend-protocol": readers.Word("http", "https", "h2", "h2s"),
    "proxy-protocol": readers.Word("no", "v1", "v2"),
}
GUARDS: Final = frozenset(
    {"allow-source-range", "deny-source-range", "auth-secret", "auth-secret-type"}
    | {"limit-rps", "limit-rpm", "limit-connections"}
    | {"force-ssl-redirect", "body-size", "backend-protocol"}
)

_SAME: Final = tuple(
    name
    for name in READERS
    if name.startswith(("affinity", "session-cookie-", "limit-", "rewrite-", "use-regex", "auth-", "cors-", "canary"))
    or "redirect" in name
    or name == "app-root"
)
_LISTS: Final = {
    "whitelist-source-range": "allow-source-range",
    "allowlist-source-range": "allow-source-range",
    "denylist-source-range": "deny-source-range",
    "proxy-body-size": "body-size",
    "backend-protocol": "backend-protocol",
}
_FROM_NGINX: Final = (
    {name: name for name in _SAME}
    | _LISTS
    | {
        "enable-cors": "cors",
        "upstream-vhost": "upstream-vhost",
        "proxy-connect-timeout": "timeout-connect",
        "proxy-read-timeout": "timeout-server",
        "proxy-next-upstream-tries": "retries",
        "load-balance": "balance",
        "session-cookie-expires": "session-cookie-max-age",
        "upstream-hash-by": "balance",
    }
)
_FROM_HAPROXY: Final = (
    {name: name for name in _SAME if not name.startswith("canary")}
    | _LISTS
    | {name: name for name in READERS if name.startswith(("timeout-", "hsts"))}
    | {
        "cors-enable": "cors",
        "balance-algorithm": "balance",
        "health-check-uri": "health-check-path",
        "health-check-interval": "health-check-interval",
        "health-check-rise-count": "health-check-rise",
        "health-check-fall-count": "health-check-fall",
        "proxy-protocol": "proxy-protocol",
        "maxconn-server": "pod-connections",
        "headers": "set-request-headers",
        "redirect-to": "temporal-redirect",
        "redirect-to-code": "temporal-redirect-code",
    }
)
_READ_OTHERWISE: Final[Mapping[str, Callable[[str], object]]] = {
    f"{_NGINX}proxy-next-upstream-tries": readers.read_retries_of_tries,
    f"{_NGINX}upstream-hash-by": readers.read_algorithm_of_hash_key,
}
_GUARDS_OF_OTHERS: Final = frozenset(
    {"auth-url", "auth-tls-secret", "auth-tls-verify-client", "oauth", "enable-modsecurity", "modsecurity-snippet"}
    | {"waf", "proxy-ssl-secret", "secure-verify-ca-secret", "secure-crt-secret"}
)
"""Guards of other controllers that vipwire does not support."""
_DENIED: Final = ("", "false", "off")
_WORDS: Final = {
    ("balance", "round_robin"): "roundrobin",
    ("backend-protocol", "grpc"): "h2",
    ("backend-protocol", "grpcs"): "h2s",
    ("backend-protocol", "h1"): "http",
    ("backend-protocol", "h1-ssl"): "https",
    ("backend-protocol", "h2-ssl"): "h2s",
}
_WITHOUT_MEANING: Final = frozenset(
    {"auth-type", "affinity-mode", "session-cookie-strategy"}
    | {"proxy-send-timeout", "service-upstream", "proxy-buffering", "proxy-http-version", "secure-backends"}
)
"""Annotations of other controllers that ask for vipwire's only behaviour, or have no visible effect."""

_UNREAD_CHANGES: Final[Mapping[str, str]] = {
    "canary-weight-total": "canary-weight",
    "canary-by-header-pattern": "canary-by-header",
}
"""Annotations of ingress-nginx that vipwire does not read, by the annotation whose meaning they change."""


@dataclass(frozen=True, slots=True)
class AnnotationValues:
    """The values of an Ingress's annotations, by vipwire's names.

    `closed`: an annotation that limits access was invalid. `nginx_rewrite`: the Ingress has
    ingress-nginx's annotation `rewrite-target`, with the meaning of ingress-nginx.
    """

    values: Mapping[str, object]
    problems: tuple[Problem, ...] = ()
    closed: bool = False
    nginx_rewrite: bool = False

    def __call__(self, name: str, default: ValueT) -> ValueT:
        """Return a value if it has the type of the default, else the default."""
        found = self.values.get(name)
        return found if isinstance(found, type(default)) else default

    def get_text(self, name: str) -> str | None:
        found = self.values.get(name)
        return found if isinstance(found, str) else None

    def get_number(self, name: str) -> int | None:
        found = self.values.get(name)
        return found if isinstance(found, int) else None

    def is_true(self, name: str) -> bool:
        """Return a flag that is off by default."""
        return self.values.get(name) is True

    def is_not_false(self, name: str) -> bool:
        """Return a flag that is on by default."""
        return self.values.get(name) is not False


_NONE: Final = AnnotationValues({})


def read_annotations(ingress: Ingress) -> AnnotationValues:
    if not ingress.annotations:
        return _NONE
    values: dict[str, object] = {}
    problems = []
    closed = nginx_rewrite = False
    for key, name, text in _rank_annotations(ingress.annotations):
        if name in values:
            continue
        try:
            read = _READ_OTHERWISE.get(key) or READERS[name]
            values[name] = read(_WORDS.get((name, text.strip().lower()), text.strip()))
            nginx_rewrite = nginx_rewrite or key == f"{_NGINX}rewrite-target"
            continue
        except KeyError:
            guard = key.rpartition("/")[2] in _GUARDS_OF_OTHERS and text.strip().lower() not in _DENIED
            what = "is not supported"
        except ValueError as error:
            guard, what = name in GUARDS, f"{text[:60]!r}: {error}"
        end = "the Ingress answers 503, since this annotation guards it" if guard else "it is ignored"
        problems.append(Problem("Ingress", ingress.name, f"metadata.annotations[{key[:100]}]", f"{what}; {end}"))
        closed = closed or guard
    for other, name in _UNREAD_CHANGES.items():
        if f"{_NGINX}{other}" in ingress.annotations and values.pop(name, None) is not None:
            message = f"means something else with {other}, which vipwire does not support; it is ignored"
            problems.append(Problem("Ingress", ingress.name, f"metadata.annotations[{_NGINX}{name}]", message))
    if "auth-secret" not in values and (key := _find_login_without_users(ingress.annotations)):
        message = "asks for a password, but auth-secret is missing; the Ingress answers 503"
        problems.append(Problem("Ingress", ingress.name, f"metadata.annotations[{key}]", message))
        closed = True
    return AnnotationValues(values, tuple(problems), closed, nginx_rewrite)


def _find_login_without_users(annotations: Mapping[str, str]) -> str:
    """Return another controller's annotation that asks for a password. vipwire's own does so by naming the Secret."""
    keys = (f"{prefix}auth-type" for prefix in (_NGINX, *_HAPROXY))
    return next((key for key in keys if annotations.get(key, "").strip().lower() not in _DENIED), "")


def _rank_annotations(annotations: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, vipwire's name, value), vipwire's own first. An unknown name stands for itself."""
    if not annotations:
        return
    for key in sorted(annotations):
        if key.startswith(OURS) and key.removeprefix(OURS) not in _READ_ELSEWHERE:
            yield key, key.removeprefix(OURS), annotations[key]
    for prefix, names in ((_NGINX, _FROM_NGINX), *((prefix, _FROM_HAPROXY) for prefix in _HAPROXY)):
        for key in sorted(annotations):
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in _WITHOUT_MEANING:
                yield key, names.get(name) or f"{prefix}{name}", annotations[key]
