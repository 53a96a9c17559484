"""Writes answers as HTTP/1.1 has them (RFC 9112)."""

import time
from collections.abc import Mapping
from http import HTTPStatus


def encode_answer(
    status: int, headers: Mapping[str, str], body: bytes | str, *, stays: bool, bodiless: bool
) -> bytes:
    """Write an answer: text as UTF-8, nothing of the body for a HEAD."""
    body = body.encode() if isinstance(body, str) else body
    fields = {
        **headers,
        "Content-Length": str(len(body)),
        "Connection": "keep-alive" if stays else "close",
    }
    return encode_head(status, fields) + (b"" if bodiless else body)


def encode_head(status: int, fields: Mapping[str, str]) -> bytes:
    """Write the status line and the header fields of an answer."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    lines = (
        f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}",
        *(f"{k}: {v}" for k, v in {**fields, "Date": date}.items()),
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1", "replace")
