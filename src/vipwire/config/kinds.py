"""The kinds of values in the configuration: how a flag and how the file write each of them.

`read` and `text` are for flags, `plain` is the value in a written file; `decode` has the YAML nodes of each kind. A
duration is Go's (`24h0m0s`, `1.5h`, `500ms`, `0`; package `time`, ParseDuration and Duration.String), in vipwire a
float of seconds. Writing goes through whole nanoseconds, as in Go, so that the written text equals the one read.
"""

import enum
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from vipwire.config.gates import parse_bool, parse_gates
from vipwire.model.text import whole_number
from vipwire.model.value import Value

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter: Go accepts both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_LARGEST: Final = 2**63 - 1  # Go keeps nanoseconds in an int64: about 292 years
_TERM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_ALLOWED: Final = "a duration such as 30s, 1m30s, 500ms, 24h0m0s or 0"


def parse_duration(text: str) -> float:
    """Parse a Go duration as seconds. Raise ValueError with the allowed form."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0.0
    total, position = Decimal(0), 0
    while match := _TERM.match(body, position):
        total += Decimal(match[1]) * _NANOSECONDS[match[2]]
        position = match.end()
    if not body or position != len(body):
        raise ValueError(f"{text!r} is not {_ALLOWED}")
    nanoseconds = int(total)
    if nanoseconds > _LARGEST:
        raise ValueError(f"{text!r} is longer than Go's longest duration, about 292 years")
    return (-nanoseconds if text.startswith("-") else nanoseconds) / 1e9


def format_duration(seconds: float) -> str:
    """Write seconds as Go does: `24h0m0s`, `1m30s`, `250ms`, `0s`."""
    nanoseconds = round(Decimal(seconds) * _NANOSECONDS["s"])  # a product of floats may be one off
    sign, nanoseconds = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if nanoseconds == 0:
        return "0s"
    for unit, next_unit in (("ns", 1_000), ("µs", 1_000_000), ("ms", 1_000_000_000)):
        if nanoseconds < next_unit:
            return f"{sign}{_format_decimal(nanoseconds, _NANOSECONDS[unit])}{unit}"
    hours, rest = divmod(nanoseconds, _NANOSECONDS["h"])
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    text = f"{_format_decimal(rest, _NANOSECONDS['s'])}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _format_decimal(nanoseconds: int, unit: int) -> str:
    whole, rest = divmod(nanoseconds, unit)
    if not rest:
        return str(whole)
    digits = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{digits}"


_INT32 = range(-(2**31), 2**31)


class ModuleVerbosity(Value, frozen=True):
    """One `pattern=N` of `--vmodule`: source files that match the glob log at verbosity N."""

    file_pattern: str
    verbosity: int


def check_int32(value: int, text: str = "") -> int:
    """Return the number if Go's int32 can hold it. Raise ValueError."""
    if value not in _INT32:
        raise ValueError(f"{text} exceeds 32 bits".lstrip())
    return value


def _read_int(text: str) -> int:
    try:
        value = int(text.encode("ascii"), 0)  # int() of text accepts digits of every script
    except ValueError:
        raise ValueError(f"must be {ValueKind.INT.allowed}") from None
    return check_int32(value)


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _read_vmodule(text: str) -> tuple[ModuleVerbosity, ...]:
    items = []
    for part in filter(None, text.split(",")):
        pattern, equals, level = part.partition("=")
        number = whole_number(level, 0, _INT32[-1])
        if not (pattern and equals) or number is None:
            raise ValueError("must be file=N,other=M with whole numbers")
        items.append(ModuleVerbosity(pattern, number))
    return tuple(items)


def _lower_case(value: object) -> str:
    return str(value).lower()


def _keep_value(value: Any) -> Any:
    return value


class ValueKind(enum.Enum):
    """One kind.

    `allowed` is for error messages, `usage` for `--help`. `read` returns the value of a flag's text or raises
    ValueError, `text` writes it for a command line, `plain` for the file.
    """

    STRING = ("a string", "string", str)
    BOOL = ("true or false", "", parse_bool, _lower_case)
    INT = ("a whole number", "int", _read_int)
    FLOAT = ("a number", "number", float, "{:g}".format, lambda value: int(value) if value.is_integer() else value)
    DURATION = (
        "a duration such as 30s, 1m30s, 500ms, 24h0m0s or 0",
        "duration",
        parse_duration,
        format_duration,
        format_duration,
    )
    STRINGS = ("a list of strings", "list", _read_list, ",".join, lambda value: list(value) or None)
    GATES = (
        "a mapping of feature gates to true or false",
        "Name=bool,...",
        parse_gates,
        lambda value: ",".join(f"{name}={_lower_case(on)}" for name, on in value),
        dict,
    )
    QUANTITY = ("a quantity such as 0, 512, 64Ki or 1M", "quantity", str)
    VMODULE = (
        "a list of {filePattern, verbosity}",
        "file=N,...",
        _read_vmodule,
        lambda value: ",".join(f"{item.file_pattern}={item.verbosity}" for item in value),
        lambda value: [{"filePattern": item.file_pattern, "verbosity": item.verbosity} for item in value],
    )
    SECTION = ("a mapping", "", str)

    def __init__(
        self,
        allowed: str,
        usage: str,
        read: Callable[[str], Any],
        text: Callable[[Any], str] = str,
        plain: Callable[[Any], Any] = _keep_value,
    ) -> None:
        self.allowed = allowed
        self.usage = usage
        self.read = read
        self.text = text
        self.plain = plain
