"""Go's durations: how kube-proxy's flags and its configuration file write a length of time.

A duration is an optional sign and one or more decimal numbers, each with a unit: `24h0m0s`, `1.5h`, `500ms`. A bare
`0` is the one number that needs no unit. Inside vipwire a duration is a float of seconds; printing goes through whole
nanoseconds, which is what Go counts in, so that what was read is what is printed.
Source: Go's package `time`, ParseDuration and Duration.String.
"""

import re
from decimal import Decimal
from typing import Final

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter: Go takes both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_LARGEST: Final = 2**63 - 1  # Go keeps nanoseconds in an int64: about 292 years
_TERM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_ALLOWED: Final = "a duration such as 30s, 1m30s, 500ms, 24h0m0s or 0"


def parse_duration(text: str) -> float:
    """Read a Go duration as seconds. Raise ValueError that says what is allowed."""
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
    """Print seconds as Go does: `24h0m0s`, `1m30s`, `250ms`, `0s`."""
    from fractions import Fraction  # noqa: PLC0415  # only a page or a person reads durations

    nanoseconds = round(Fraction(seconds) * _NANOSECONDS["s"])  # exactly: a product of floats may be one off
    sign, nanoseconds = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if nanoseconds == 0:
        return "0s"
    for unit, next_unit in (("ns", 1_000), ("µs", 1_000_000), ("ms", 1_000_000_000)):
        if nanoseconds < next_unit:
            return f"{sign}{_decimal(nanoseconds, _NANOSECONDS[unit])}{unit}"
    hours, rest = divmod(nanoseconds, _NANOSECONDS["h"])
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    text = f"{_decimal(rest, _NANOSECONDS['s'])}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _decimal(nanoseconds: int, unit: int) -> str:
    whole, rest = divmod(nanoseconds, unit)
    if not rest:
        return str(whole)
    digits = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{digits}"
