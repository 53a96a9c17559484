"""Fields that a JSON body has twice: of which a decoder takes one, without a word. Pure.

`fieldValidation` is about them as about unknown ones. The body is looked through once by a hook that only counts; the
paths are worked out only where there is something to name. YAML's are found while it is read (`yaml.py`).
"""

import json
from collections.abc import Iterator
from typing import Any


def repeated_fields(body: bytes) -> list[str]:
    """List the paths of fields that stand twice in JSON; none in what is no JSON."""
    try:
        found = _of_json(body)
    except (ValueError, RecursionError):  # whoever decodes it will say what is wrong
        return []
    return list(dict.fromkeys(found))


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as it was written."""


def _of_json(body: bytes) -> list[str]:
    repeats = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeats
        repeats = repeats or len({key for key, _ in pairs}) < len(pairs)

    json.loads(body, object_pairs_hook=look)
    return list(_of_pairs(json.loads(body, object_pairs_hook=_Pairs), "")) if repeats else []


def _of_pairs(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen = set[str]()
        for key, part in value:
            where = f"{path}.{key}" if path else key
            if key in seen:
                yield where
            seen.add(key)
            yield from _of_pairs(part, where)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _of_pairs(part, f"{path}[{index}]")
