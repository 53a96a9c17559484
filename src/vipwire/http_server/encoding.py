"""Encodes answers as HTTP/1.1 (RFC 9112)."""

import time
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import TypeAlias

Fields: TypeAlias = Mapping[str, str | tuple[str, ...]]
"""Header fields by name; several values become a field each."""


def encode_head(status: int, fields: Fields) -> bytes:
    lines = [f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}"]
    for name, value in fields.items():
        lines += (f"{name}: {each}" for each in ((value,) if isinstance(value, str) else value))
    return "\r\n".join((*lines, f"Date: {_date(int(time.time()))}", "", "")).encode("latin-1", "replace")


@lru_cache(1)
def _date(now: int) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
