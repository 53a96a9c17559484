"""Builds answers: JSON or YAML, errors as a Status, warnings as kube-apiserver sends them."""

from collections.abc import Iterable
from typing import Final

from vipwire.http_server.exchange import Fields, Reply
from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.object import encode

_JSON: Final = {"Content-Type": "application/json"}
WATCHED: Final = 16 << 10
"""Bytes per write to a watch: a client has many more watches than lists at a time."""
_MOST_WARNINGS: Final = 50  # header fields that common clients accept
_LONGEST_WARNING, _ALL_WARNINGS = 256, 4096  # characters, as in kube-apiserver (apiserver/pkg/endpoints/filters)


def status_reply(error: ApiError) -> Reply:
    headers = dict(_JSON)
    if "retryAfterSeconds" in error.details:
        headers["Retry-After"] = str(error.details["retryAfterSeconds"])
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Reply(encode(error.status()), error.code, headers)


def content_fields(warnings: Iterable[str] = (), media: str = _JSON["Content-Type"]) -> Fields:
    """Build the header fields of JSON, or another media type, with warnings.

    Beyond 4,096 characters in total, warnings are cut to 256 characters each, and the rest is left out.
    """
    texts = ["".join(char if char.isprintable() else " " for char in text) for text in warnings]
    if sum(map(len, texts)) > _ALL_WARNINGS:
        texts = [text[:_LONGEST_WARNING] for text in texts]
    left, fields = _ALL_WARNINGS, list[str]()
    for text in texts[:_MOST_WARNINGS]:
        left -= len(text)
        if left < 0:
            break
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        fields.append(f'299 - "{escaped}"')
    return {"Content-Type": media} | ({"Warning": tuple(fields)} if fields else {})
