"""From bytes to values, without standing in anybody's way: what is large or slow to read is read in a thread.

One body at a time: the thread shares the interpreter with the event loop, and two would take two thirds of it.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from vipwire_up.api.bodies import protobuf
from vipwire_up.api.bodies.duplicate_fields import repeated_fields
from vipwire_up.api.bodies.size import check_size
from vipwire_up.api.bodies.yaml import read_yaml_strictly
from vipwire_up.api.objects.object import parse
from vipwire_up.api.objects.schema import Type

AT_ONCE_BYTES: Final = 32 << 10
_YAML_AT_ONCE_BYTES: Final = 2 << 10
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="bodies")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body as values, with the paths of fields that stand in it twice."""

    value: Any
    repeated: tuple[str, ...] = ()


async def read_json(body: bytes, *, strictly: bool = False) -> Parsed:
    """Read JSON; `strictly` looks for fields that stand twice. Raise ApiError 400 or 413."""
    return await _apart(lambda: _json(body, strictly=strictly), len(body) > AT_ONCE_BYTES)


async def read_yaml(body: bytes, *, strictly: bool = False) -> Parsed:
    """Read YAML, or JSON."""
    if body.lstrip()[:1] == b"{":
        return await read_json(body, strictly=strictly)
    return await _apart(lambda: _yaml(body, strictly=strictly), len(body) > _YAML_AT_ONCE_BYTES)


async def read_protobuf(body: bytes, types: Mapping[str, Type]) -> Parsed:
    """Read protobuf: an object of one of the types, by their kinds."""
    return await _apart(lambda: Parsed(check_size(protobuf.decode_body(body, types))), len(body) > AT_ONCE_BYTES)


def _json(body: bytes, *, strictly: bool) -> Parsed:
    value = check_size(parse(body))
    return Parsed(value, tuple(repeated_fields(body)) if strictly else ())


def _yaml(body: bytes, *, strictly: bool) -> Parsed:
    value, repeated = read_yaml_strictly(body)
    return Parsed(value, tuple(repeated) if strictly else ())


async def _apart(read: Callable[[], Parsed], apart: bool) -> Parsed:  # noqa: FBT001  # one call, of this module
    if not apart:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, read)
