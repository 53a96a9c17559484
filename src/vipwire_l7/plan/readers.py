"""Reads values of annotations. Each reader raises ValueError with the allowed values.

Only these readers make the values of a `Policy`: the configuration gets no other text.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from vipwire.model.net import Prefix
from vipwire.model.text import whole_number

ItemT = TypeVar("ItemT")
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)?", re.ASCII)
_SIZE = re.compile(r"(\d{1,12})([kmg]?)", re.IGNORECASE | re.ASCII)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_FRAMING = (
    *("connection", "content-length", "keep-alive", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
)
"""Headers of message framing and of the connection: a client could smuggle a second message if a tenant changed them.

HAProxy itself handles them (RFC 9110 7.6.1).
"""
_FLAGS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_HASH_KEYS = {"$request_uri": "uri", "$remote_addr": "source", "$binary_remote_addr": "source"}
_LONGEST = 24 * 3_600_000
MOST_ENTRIES = 256


class Pattern:
    """Reads a text that matches a regular expression. `allowed` describes the text in errors."""

    def __init__(self, expression: str, allowed: str) -> None:
        self._expression, self._allowed = re.compile(expression), allowed

    def __call__(self, text: str) -> str:
        if self._expression.fullmatch(text) is None:
            raise ValueError(f"allowed: {self._allowed}")
        return text


class Word:
    """Reads one of some words, in any case of letters."""

    def __init__(self, *allowed: str) -> None:
        self._allowed = {item.lower(): item for item in allowed}

    def __call__(self, text: str) -> str:
        if text.lower() not in self._allowed:
            raise ValueError(f"allowed: {', '.join(self._allowed.values())}")
        return self._allowed[text.lower()]


class Entries(Generic[ItemT]):
    """Reads entries separated by commas, each with the same reader."""

    def __init__(self, read: Callable[[str], ItemT]) -> None:
        self._read = read

    def __call__(self, text: str) -> tuple[ItemT, ...]:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items or len(items) > MOST_ENTRIES:
            raise ValueError(f"allowed: 1 to {MOST_ENTRIES} entries, separated by commas")
        return tuple(map(self._read, items))


HEADER = Pattern(r"[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, - and _")
VALUE = Pattern(r"[ -&(-~]{0,1024}", "printable ASCII without ', at most 1024 characters")
"""The value of a header. A single quote would end a word of the configuration."""
NAME = Pattern(r"[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, and . _ -")
PATH = Pattern(
    r"/(?:[A-Za-z0-9/._~!$&()*+,;=:@?-]|%[0-9A-Fa-f]{2})*",
    "/ and the characters of RFC 3986 without a single quote",
)
COOKIE_PATH = Pattern(r"/[A-Za-z0-9/._~%-]{0,255}", "/ and letters, digits, / . _ ~ % -")
REWRITE_TARGET = Pattern(
    r"/(?:[A-Za-z0-9/._~!&()*+,;=:@-]|%[0-9A-Fa-f]{2}|\$[0-9])*",
    "a path, in which $1 to $9 stand for captured groups",
)
HOST_AND_PORT = Pattern(
    r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::\d{1,5})?", "a host, optionally with a port"
)
URL = Pattern(
    r"(?!$)(?:https?://[a-z0-9]+(?:[-.][a-z0-9]+)*(?::\d{1,5})?)?"
    r"(?:/(?:[A-Za-z0-9/._~!&()*+,;=:@?-]|%[0-9A-Fa-f]{2})*)?(\$request_uri)?",
    "https://host/path or /path, optionally with $request_uri at the end",
)
ORIGIN = Pattern(
    r"\*|https?://(?:\*\.)?[a-z0-9]+(?:[-.][a-z0-9]+)*(?::\d{1,5})?",
    "*, https://example.com, https://*.example.com",
)
METHOD = Pattern("[A-Z]{1,20}", "methods in capitals, separated by commas")
NAMESPACE = Pattern(r"\*|[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", "namespaces such as shop, or *")
SECRET = Pattern(r"(?:[a-z0-9-]{1,63}/)?[a-z0-9.-]{1,253}", "name or namespace/name")
_REDIRECT_CODE = Pattern("30[12378]", "301, 302, 303, 307, 308")


def read_flag(text: str) -> bool:
    """Read true or false; ingress-nginx also takes t, f, 1 and 0 (Go's strconv.ParseBool)."""
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    raise ValueError("allowed: true, false")


def read_number(text: str, least: int = 0, most: int = 1_000_000_000) -> int:
    if (found := whole_number(text, least, most)) is not None:
        return found
    raise ValueError(f"allowed: a number from {least} to {most}")


read_positive = partial(read_number, least=1)
read_percent = partial(read_number, most=100)


def read_duration(text: str) -> int:
    """Read a time as milliseconds; a number without a unit is seconds. At least 1 ms, at most a day."""
    match = _DURATION.fullmatch(text)
    if match is None or not 0 < (value := int(match[1]) * _UNITS[match[2] or "s"]) <= _LONGEST:
        raise ValueError("allowed: 1ms to 24h, such as 500ms, 30s, 5m")
    return value


def read_size(text: str) -> int:
    """Read a size in bytes: 512, 8k, 10m, 1g. 0 is no limit, as in nginx."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("allowed: a number of bytes, or with k, m or g")
    return int(match[1]) * _SIZES[match[2].lower()]


def read_redirect_code(text: str) -> int:
    return int(_REDIRECT_CODE(text))


def read_retries_of_tries(text: str) -> int:
    """Read nginx's number of tries, and return the number of retries."""
    return read_number(text, 1, 101) - 1


def read_algorithm_of_hash_key(text: str) -> str:
    """Read nginx's hash key, and return the algorithm that hashes the same."""
    if text not in _HASH_KEYS:
        raise ValueError(f"allowed: {', '.join(_HASH_KEYS)}")
    return _HASH_KEYS[text]


def read_prefix(text: str) -> Prefix:
    return Prefix.parse(text if "/" in text else f"{text}/{128 if ':' in text else 32}")


def read_removable_header(text: str) -> str:
    """Read the name of a header that a tenant may remove."""
    return _read_changeable_header(text, *_FRAMING, "host")


def _read_changeable_header(name: str, *but: str) -> str:
    if name.lower() in but:
        raise ValueError(f"allowed: all headers but {', '.join(but)}")
    return HEADER(name)


def read_headers_to_set(text: str) -> tuple[tuple[str, str], ...]:
    """Read `Name: value`, one a line."""
    pairs = []
    for line in text.splitlines():
        if line.strip():
            name, colon, rest = line.partition(":")
            if not colon:
                raise ValueError("allowed: lines of `Name: value`")
            pairs.append((_read_changeable_header(name.strip(), *_FRAMING), VALUE(rest.strip())))
    if len(pairs) > MOST_ENTRIES:
        raise ValueError(f"allowed: up to {MOST_ENTRIES} lines")
    return tuple(pairs)
