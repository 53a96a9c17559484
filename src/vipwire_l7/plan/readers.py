"""Reads values of annotations. Each reader raises ValueError with the allowed values.

Only these readers make the values of a `Policy`: the configuration gets no other text.
"""

import re
from functools import partial

from vipwire.model.net import Prefix
from vipwire.model.text import whole_number

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_HEADER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VALUE = re.compile(r"[ -&(-~]{0,1024}")
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)?", re.ASCII)
_SIZE = re.compile(r"(\d{1,12})([kmg]?)", re.IGNORECASE | re.ASCII)
_COOKIE_PATH = re.compile(r"/[A-Za-z0-9/._~%-]{0,255}")
_PATH = re.compile(r"/(?:[A-Za-z0-9/._~!$&()*+,;=:@?-]|%[0-9A-Fa-f]{2})*")
_TARGET = re.compile(r"/(?:[A-Za-z0-9/._~!&()*+,;=:@-]|%[0-9A-Fa-f]{2}|\$[0-9])*")
_ORIGIN = re.compile(r"\*|https?://(?:\*\.)?[a-z0-9]+(?:[-.][a-z0-9]+)*(?::\d{1,5})?")
_AUTHORITY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::\d{1,5})?")
_URL = re.compile(
    r"(?:https?://[a-z0-9]+(?:[-.][a-z0-9]+)*(?::\d{1,5})?)?(?:/(?:[A-Za-z0-9/._~!&()*+,;=:@?-]|%[0-9A-Fa-f]{2})*)?(\$request_uri)?"
)
_METHOD = re.compile(r"[A-Z]{1,20}")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_FRAMING = (
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
"""Headers of message framing and of the connection: a client could smuggle a second message if a tenant changed them.

HAProxy itself handles them (RFC 9110 7.6.1).
"""
_FLAGS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_LONGEST = 24 * 3_600_000
MOST_ENTRIES = 256


def flag(text: str) -> bool:
    """Read true or false; ingress-nginx also takes t, f, 1 and 0 (Go's strconv.ParseBool)."""
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    raise ValueError("allowed: true, false")


def number(text: str, least: int = 0, most: int = 1_000_000_000) -> int:
    if (found := whole_number(text, least, most)) is not None:
        return found
    raise ValueError(f"allowed: a number from {least} to {most}")


positive = partial(number, least=1)
percent = retries = partial(number, most=100)


def duration(text: str) -> int:
    """Read a time as milliseconds; a number without a unit is seconds. At least 1 ms, at most a day."""
    match = _DURATION.fullmatch(text)
    if match is None or not 0 < (value := int(match[1]) * _UNITS[match[2] or "s"]) <= _LONGEST:
        raise ValueError("allowed: 1ms to 24h, such as 500ms, 30s, 5m")
    return value


def size(text: str) -> int:
    """Read a size in bytes: 512, 8k, 10m, 1g. 0 is no limit, as in nginx."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("allowed: a number of bytes, or with k, m or g")
    return int(match[1]) * _SIZES[match[2].lower()]


def token(text: str) -> str:
    return _check_match(_TOKEN, text, "1 to 64 letters, digits, and . _ -")


def header(text: str) -> str:
    return _check_match(_HEADER, text, "1 to 64 letters, digits, - and _")


def headers(text: str) -> tuple[str, ...]:
    return tuple(header(item) for item in _items(text))


def authority(text: str) -> str:
    """Read the value of a Host header: a name or an address, optionally with a port."""
    return _check_match(_AUTHORITY, text, "a host, optionally with a port")


def read_removable_headers(text: str) -> tuple[str, ...]:
    """Read names of headers that a tenant may remove."""
    return tuple(_read_changeable_header(item, *_FRAMING, "host") for item in _items(text))


def _read_changeable_header(name: str, *but: str) -> str:
    if name.lower() in but:
        raise ValueError(f"allowed: all headers but {', '.join(but)}")
    return header(name)


def value(text: str) -> str:
    """Read a header's value: printable ASCII without a single quote."""
    return _check_match(_VALUE, text, "printable ASCII without ', at most 1024 characters")


def set_headers(text: str) -> tuple[tuple[str, str], ...]:
    """Read `Name: value`, one a line."""
    pairs = []
    for line in text.splitlines():
        if line.strip():
            name, colon, rest = line.partition(":")
            if not colon:
                raise ValueError("allowed: lines of `Name: value`")
            pairs.append((_read_changeable_header(name.strip(), *_FRAMING), value(rest.strip())))
    if len(pairs) > MOST_ENTRIES:
        raise ValueError(f"allowed: up to {MOST_ENTRIES} lines")
    return tuple(pairs)


def path(text: str) -> str:
    """Read a URL's path, optionally with a query."""
    return _check_match(_PATH, text, "/ and the characters of RFC 3986 without a single quote")


def cookie_path(text: str) -> str:
    """Read the path of a cookie; `;` would end it."""
    return _check_match(_COOKIE_PATH, text, "/ and letters, digits, / . _ ~ % -")


def target(text: str) -> str:
    """Read the target of a rewrite, with $1 to $9 for the groups of the path's pattern."""
    return _check_match(_TARGET, text, "a path, in which $1 to $9 stand for captured groups")


def url(text: str) -> str:
    """Read the target of a redirect: a URL or a path, optionally with nginx's `$request_uri` at its end."""
    if not text:
        raise ValueError("allowed: a URL or a path")
    return _check_match(_URL, text, "https://host/path or /path, optionally with $request_uri at the end")


def redirect_code(text: str) -> int:
    return int(_check_match(re.compile("30[12378]"), text, "301, 302, 303, 307, 308"))


def tries(text: str) -> int:
    """Read nginx's number of tries, and return the number of retries."""
    return number(text, 1, 101) - 1


def hash_key(text: str) -> str:
    """Read nginx's hash key, and return the algorithm that hashes the same."""
    known = {"$request_uri": "uri", "$remote_addr": "source", "$binary_remote_addr": "source"}
    if text not in known:
        raise ValueError(f"allowed: {', '.join(known)}")
    return known[text]


def prefixes(text: str) -> tuple[Prefix, ...]:
    return tuple(_prefix(item) for item in _items(text))


def _prefix(text: str) -> Prefix:
    return Prefix.parse(text if "/" in text else f"{text}/{128 if ':' in text else 32}")


def origins(text: str) -> tuple[str, ...]:
    allowed = "*, https://example.com, https://*.example.com"
    return tuple(_check_match(_ORIGIN, item, allowed) for item in _items(text))


def methods(text: str) -> tuple[str, ...]:
    return tuple(_check_match(_METHOD, item, "methods in capitals, separated by commas") for item in _items(text))


def secret(text: str) -> str:
    """Read `name` or `namespace/name` of a Secret."""
    return _check_match(re.compile(r"(?:[a-z0-9-]{1,63}/)?[a-z0-9.-]{1,253}"), text, "name or namespace/name")


def namespaces(text: str) -> tuple[str, ...]:
    """Read namespaces, or * for all of them."""
    found = tuple(_items(text))
    for each in found:
        if each != "*":
            _check_match(_NAMESPACE, each, "namespaces such as shop, or *")
    return found


class Word:
    """Reads one of some words, in any case of letters."""

    def __init__(self, *allowed: str) -> None:
        self._allowed = {item.lower(): item for item in allowed}

    def __call__(self, text: str) -> str:
        if text.lower() not in self._allowed:
            raise ValueError(f"allowed: {', '.join(self._allowed.values())}")
        return self._allowed[text.lower()]


def _items(text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items or len(items) > MOST_ENTRIES:
        raise ValueError(f"allowed: 1 to {MOST_ENTRIES} entries, separated by commas")
    return items


def _check_match(pattern: re.Pattern[str], text: str, allowed: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(f"allowed: {allowed}")
    return text
