"""Reads the parameters of a query as apimachinery does (pkg/runtime/conversion.go, meta/v1/conversion.go).

    boolean    false if absent, or `false` in any case, or `0`; any other value is true, also the empty one
    number     64 bits, as Go's ParseInt reads decimal ones
    revision   64 bits, as ParseUint; empty is 0
    duration   as ParseDuration

The first value of a repeated parameter counts. `dryRun` is a list, of which each value counts.
"""

import json
from collections.abc import Iterable
from typing import Final

from vipwire.config.kinds import parse_duration
from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request, not_valid, unsupported

_DIGITS: Final = 19
_LIMIT: Final = 1 << 63


class Parameters:
    """The parameters of one request. Every method raises ApiError 400 or 422 for a value that it cannot read."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str:
        return self._values.get(name, ("",))[0]

    def flag(self, name: str) -> bool:
        return name in self._values and self.text(name).lower() not in ("false", "0")

    def number(self, name: str) -> int | None:
        if name not in self._values:
            return None
        text = self.text(name)
        negative = text.startswith("-")
        found = _parse_decimal(text[1:] if text[:1] in ("-", "+") else text, _LIMIT - (not negative))
        if found is None:
            raise _unreadable_error(name, text, "must be a decimal number of 64 bits")
        return -found if negative else found

    def revision(self, name: str) -> int:
        """Return a resourceVersion as a number; 0 if absent or empty."""
        text = self.text(name)
        found = _parse_decimal(text or "0", _LIMIT - 1)
        if found is None:
            raise _unreadable_error(name, text, "must be a decimal number, not negative")
        return found

    def duration(self, name: str) -> float | None:
        if name not in self._values:
            return None
        try:
            return parse_duration(self.text(name))
        except ValueError as error:
            raise _unreadable_error(name, self.text(name), str(error)) from None

    def choice(self, name: str, allowed: Iterable[str], options: str) -> str:
        return _check_value(name, self.text(name), ("", *allowed), options)

    def dry_run(self, options: str) -> bool:
        return is_dry_run(self._values.get("dryRun", ()), options)


def is_dry_run(values: Iterable[str], options: str) -> bool:
    """Report whether a request changes nothing. Raise ApiError 422 for another value than All."""
    return bool([_check_value("dryRun", value, ("All",), options) for value in values])


def _check_value(name: str, value: str, allowed: Iterable[str], options: str) -> str:
    if value not in allowed:
        cause = unsupported(name, value, filter(None, allowed))
        raise not_valid(options, "meta.k8s.io", "", (cause,))
    return value


def _parse_decimal(text: str, most: int) -> int | None:
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdecimal() and len(digits) <= _DIGITS and int(digits) <= most):
        return None
    return int(digits)


def _unreadable_error(name: str, value: str, what: str) -> ApiError:
    return bad_request(f"{name}: Invalid value: {json.dumps(value[:64])}: {what}")
