"""The two patches that know no types: JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386). Pure.

They give a new value and leave what they were given as it was.
"""

import copy
from typing import Any, Final

from vipwire.cluster.api.errors import ApiError, bad_request

_MOST_OPERATIONS: Final = 10_000
_MISSING: Final = object()


def merge_patch(value: Any, patch: Any) -> Any:
    """Apply a merge patch: maps are joined, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), part)
    return result


def json_patch(value: Any, operations: Any) -> Any:
    """Apply operations, all or none. Raise ApiError: 400 for what is no patch, 422 for what does not fit."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        message = f"the allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    result = copy.deepcopy(value)
    for operation in operations:
        result = _operate(result, operation)
    return result


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    name, path = operation.get("op"), _pointer(operation.get("path"))
    if name in ("add", "replace", "test") and "value" not in operation:
        raise bad_request(f"JSON patch: {name} {operation.get('path')}: no value")
    match name:
        case "add":
            return _put(document, path, copy.deepcopy(operation["value"]), insert=True)
        case "replace":
            _find(document, path)
            return _put(document, path, copy.deepcopy(operation["value"]), insert=False)
        case "remove":
            return _remove(document, path)
        case "test":
            if _find(document, path, absent=None) != operation["value"]:
                raise _unfit(f"testing value {operation.get('path')} failed: test failed")
            return document
        case "move" | "copy":
            source = _pointer(operation.get("from"))
            moved = copy.deepcopy(_find(document, source))
            document = _remove(document, source) if name == "move" else document
            return _put(document, path, moved, insert=True)
    raise bad_request(f"JSON patch: unknown operation {name!r}")


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"JSON patch: {text!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _find(document: Any, path: list[str], *, absent: Any = _MISSING) -> Any:
    for part in path:
        found = _MISSING
        if isinstance(document, list):
            if part.isdecimal() and int(part) < len(document):
                found = document[int(part)]
        elif isinstance(document, dict):
            found = document.get(part, _MISSING)
        if found is _MISSING:
            if absent is not _MISSING:
                return absent
            raise _missing(path)
        document = found
    return document


def _put(document: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        index = len(parent) if last == "-" else int(last) if last.isdecimal() else -1
        if not 0 <= index <= len(parent):
            raise _missing(path)
        parent[index : index + (not insert)] = [value]
    else:
        raise _missing(path)
    return document


def _remove(document: Any, path: list[str]) -> Any:
    _find(document, path)
    if not path:
        return None
    parent, last = _find(document, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return document


def _missing(path: list[str]) -> ApiError:
    return _unfit(f"path /{'/'.join(path)} does not exist")


def _unfit(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")
