"""Parses request bodies within limits: small texts can become large values, deep ones exhaust stacks."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from vipwire.config.yaml_values import MOST_DEEP, read_documents
from vipwire.errors import DecodeError
from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies import protobuf
from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.object import parse_json
from vipwire_up.api.objects.schema import Type

MOST_VALUES: Final = 50_000
"""Values of one body, which the event loop walks. An EndpointSlice with a thousand endpoints has a quarter of this.
"""
_NESTED: Final = (dict, list)
_LARGEST: Final = 1 << 64  # larger integers cannot be written as JSON again
Value = TypeVar("Value")


def check_size(value: Value) -> Value:
    """Return a value unless it is too large, too deep, or has a number that JSON cannot hold. Raise ApiError."""
    level: list[Any] = [value]
    count = deep = 0
    while level:
        deep += 1
        if deep > MOST_DEEP:
            raise bad_request("the body of the request cannot be read: exceeded max depth")
        below: list[Any] = []
        for part in level:
            below.extend(part.values() if type(part) is dict else part if type(part) is list else ())
        count += len(below)
        if count > MOST_VALUES:
            message = f"Request entity too large: limit is {MOST_VALUES} values"
            raise ApiError(413, "RequestEntityTooLarge", message)
        if any(type(part) is int and not -_LARGEST <= 2 * part < 2 * _LARGEST for part in below):
            raise bad_request("the body of the request cannot be read: a number is out of range")
        level = [part for part in below if type(part) in _NESTED]
    return value


def find_repeated_fields(body: bytes) -> list[str]:
    """Return the paths of duplicate fields in JSON; none if the body is not JSON."""
    try:
        found = _find_repeated_json_keys(body)
    except (ValueError, RecursionError):  # the decoder reports the error
        return []
    return list(dict.fromkeys(found))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written, with duplicates."""


def _find_repeated_json_keys(body: bytes) -> list[str]:
    repeats = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeats
        repeats = repeats or len({key for key, _ in pairs}) < len(pairs)

    json.loads(body, object_pairs_hook=look)
    return list(_find_repeated_keys(json.loads(body, object_pairs_hook=_Pairs), "")) if repeats else []


def _find_repeated_keys(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen = set[str]()
        for key, part in value:
            where = f"{path}.{key}" if path else key
            if key in seen:
                yield where
            seen.add(key)
            yield from _find_repeated_keys(part, where)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _find_repeated_keys(part, f"{path}[{index}]")


def parse_yaml(body: bytes) -> tuple[Any, list[str]]:
    """Parse YAML; return the value and the paths of duplicate fields. Raise ApiError 400."""
    repeated: list[str] = []
    try:
        documents = read_documents(body, 2 * MOST_VALUES, repeated)  # keys are counted, too
    except DecodeError as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    if len(documents) > 1:
        raise bad_request("error decoding YAML: expected a single document in the stream")
    return check_size(documents[0] if documents else None), list(dict.fromkeys(repeated))


AT_ONCE_BYTES: Final = 32 << 10
_YAML_AT_ONCE_BYTES: Final = 2 << 10
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="bodies")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed body, with the paths of its duplicate fields."""

    value: Any
    repeated: tuple[str, ...] = ()


async def read_json(body: bytes, *, strictly: bool = False) -> Parsed:
    """Parse JSON; `strictly` looks for duplicate fields. Raise ApiError 400 or 413."""
    return await _read_in_thread(lambda: _parse_json_body(body, strictly=strictly), len(body) > AT_ONCE_BYTES)


async def read_yaml(body: bytes, *, strictly: bool = False) -> Parsed:
    if body.lstrip()[:1] == b"{":
        return await read_json(body, strictly=strictly)
    return await _read_in_thread(lambda: _parse_yaml_body(body, strictly=strictly), len(body) > _YAML_AT_ONCE_BYTES)


async def read_protobuf(body: bytes, types: Mapping[str, Type]) -> Parsed:
    """Parse a protobuf object of one of the types, by their kinds."""
    return await _read_in_thread(
        lambda: Parsed(check_size(protobuf.decode_body(body, types))), len(body) > AT_ONCE_BYTES
    )


def _parse_json_body(body: bytes, *, strictly: bool) -> Parsed:
    value = check_size(parse_json(body))
    return Parsed(value, tuple(find_repeated_fields(body)) if strictly else ())


def _parse_yaml_body(body: bytes, *, strictly: bool) -> Parsed:
    value, repeated = parse_yaml(body)
    return Parsed(value, tuple(repeated) if strictly else ())


async def _read_in_thread(read: Callable[[], Parsed], apart: bool) -> Parsed:  # noqa: FBT001  # one call, of this module
    if not apart:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, read)
