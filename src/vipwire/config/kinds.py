"""The kinds of values of the configuration: how a flag and how the file write each of them.

`read` and `text` are the flag's side, `plain` is the value in a written file. What a YAML node of each kind may be
stands in `decode`, which a start without a file does not need.
"""

import enum
from collections.abc import Callable
from typing import Any

from vipwire.config.duration import format_duration, parse_duration
from vipwire.config.gates import parse_bool, parse_gates
from vipwire.model.number import whole_number
from vipwire.model.value import Value

_INT32 = range(-(2**31), 2**31)


class ModuleVerbosity(Value, frozen=True):
    """One `pattern=N` of `--vmodule`: source files that match the glob log at verbosity N."""

    file_pattern: str
    verbosity: int


def check_int32(value: int, text: str = "") -> int:
    """Return the number if Go's int32 has it. Raise ValueError."""
    if value not in _INT32:
        raise ValueError(f"{text} does not fit into 32 bits".lstrip())
    return value


def _read_int(text: str) -> int:
    try:
        value = int(text.encode("ascii"), 0)  # int() of text reads digits of every script
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


def _lower(value: object) -> str:
    return str(value).lower()


def _same(value: Any) -> Any:
    return value


class ValueKind(enum.Enum):
    """One kind.

    `allowed` is for error messages, `usage` for `--help`. `read` gives the value of a flag's text or raises
    ValueError, `text` writes it for a command line, `plain` for the file.
    """

    STRING = ("a string", "string", str)
    BOOL = ("true or false", "", parse_bool, _lower)
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
        lambda value: ",".join(f"{name}={_lower(on)}" for name, on in value),
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
        plain: Callable[[Any], Any] = _same,
    ) -> None:
        self.allowed = allowed
        self.usage = usage
        self.read = read
        self.text = text
        self.plain = plain
