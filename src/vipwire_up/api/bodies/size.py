"""Limits the size and depth of a value: a small text can become a large value, deep ones exhaust stacks. Pure."""

from typing import Any, Final, TypeVar

from vipwire.config.yaml_values import MOST_DEEP
from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request

MOST_VALUES: Final = 50_000
"""Values of one body, all looked at on the event loop. An EndpointSlice with a thousand endpoints has a quarter."""
_NESTED: Final = (dict, list)
_LARGEST: Final = 1 << 64  # what can be written as JSON again
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
