"""The two patches that need no types: JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386). Pure.

They return a new value and do not change their arguments. The growth by all `copy` operations of one patch is
bounded, as in kube-apiserver: each can double the document.
"""

from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.object import encode

_MOST_OPERATIONS: Final = 10_000
_MOST_COPIED: Final = 3 << 20
_LONGEST_INDEX: Final = 10  # digits
_NESTED: Final = (dict, list)
_MISSING: Final = object()


def apply_merge_patch(value: Any, patch: Any) -> Any:
    """Apply a merge patch: objects are merged, null removes, any other value replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), part)
    return result


def apply_json_patch(value: Any, operations: Any) -> Any:
    """Apply all operations or none. Raise ApiError 400 for an invalid patch, 422 if it does not fit the value."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        message = f"the allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(operations)}"
        raise ApiError(413, "RequestEntityTooLarge", message)
    patching = _Patching(copy_value(value))
    for operation in operations:
        patching.apply_operation(operation)
    return patching.document


def copy_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copy_value(part) if type(part) in _NESTED else part for key, part in value.items()}
    return [copy_value(part) for part in value] if isinstance(value, list) else value


class _Patching:
    def __init__(self, document: Any) -> None:
        self.document = document
        self._copied = 0

    def apply_operation(self, operation: dict[str, Any]) -> None:
        """Apply one operation. The patch is used once, so its values need no copy."""
        name, path = operation.get("op"), _parse_pointer(operation.get("path"))
        if name in ("add", "replace", "test") and "value" not in operation:
            raise bad_request(f"JSON patch: {name} {operation.get('path')}: no value")
        match name:
            case "add":
                self.document = _put_value(self.document, path, operation["value"], insert=True)
            case "replace":
                _find_value(self.document, path)
                self.document = _put_value(self.document, path, operation["value"], insert=False)
            case "remove":
                self.document = _remove_value(self.document, path)
            case "test":
                if _find_value(self.document, path, absent=None) != operation["value"]:
                    raise _refuse_patch(f"testing value {operation.get('path')} failed: test failed")
            case "move":
                self._move_value(_parse_pointer(operation.get("from")), path)
            case "copy":
                self.document = _put_value(
                    self.document, path, self._copy_value(_parse_pointer(operation.get("from"))), insert=True
                )
            case _:
                raise bad_request(f"JSON patch: unknown operation {name!r}")

    def _move_value(self, source: list[str], path: list[str]) -> None:
        moved = _find_value(self.document, source)
        if path[: len(source)] == source and len(path) > len(source):
            raise _refuse_patch(f"path /{'/'.join(source)} cannot be moved into itself")
        self.document = _put_value(_remove_value(self.document, source), path, moved, insert=True)

    def _copy_value(self, source: list[str]) -> Any:
        found = _find_value(self.document, source)
        self._copied += len(encode(found))
        if self._copied > _MOST_COPIED:
            why = f"the accumulated size increase of copy is {self._copied}, exceeding the limit {_MOST_COPIED}"
            raise _refuse_patch(f"Unable to complete the copy, {why}")
        return copy_value(found)


def _parse_pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"JSON patch: {text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _find_value(document: Any, path: list[str], *, absent: Any = _MISSING) -> Any:
    for part in path:
        found = _MISSING
        if isinstance(document, list):
            index = _parse_index(part)
            if 0 <= index < len(document):
                found = document[index]
        elif isinstance(document, dict):
            found = document.get(part, _MISSING)
        if found is _MISSING:
            if absent is not _MISSING:
                return absent
            raise _missing_error(path)
        document = found
    return document


def _parse_index(part: str) -> int:
    return int(part) if part.isdecimal() and part.isascii() and len(part) < _LONGEST_INDEX else -1


def _put_value(document: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _find_value(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        index = len(parent) if last == "-" else _parse_index(last)
        if not 0 <= index <= len(parent):
            raise _missing_error(path)
        parent[index : index + (not insert)] = [value]
    else:
        raise _missing_error(path)
    return document


def _remove_value(document: Any, path: list[str]) -> Any:
    _find_value(document, path)
    if not path:
        return None
    parent, last = _find_value(document, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return document


def _missing_error(path: list[str]) -> ApiError:
    return _refuse_patch(f"path /{'/'.join(path)} does not exist")


def _refuse_patch(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")
