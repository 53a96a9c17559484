"""Amounts with units, such as 100m and 2Gi, as exact numbers. Pure.

What is beyond 2**63 - 1 becomes that, and what is finer than a billionth the next billionth, as Kubernetes caps and
rounds (apimachinery/pkg/api/resource/quantity.go): so that nobody who reckons with it meets a number of a thousand
digits, or infinity.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

PATTERN: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
MOST: Final = (1 << 63) - 1
_FAR: Final = re.compile(r"[eE][+-]?\d{2}")
_LONGEST: Final = 256  # characters
_NANO: Final = 10**9
_POWERS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_HIGHEST: Final = 400
"""Powers of ten beyond which no number of 256 characters is between a billionth and 2**63."""


@lru_cache(1 << 12)
def read_quantity(text: str) -> Fraction | None:
    """Read an amount; None for what is none."""
    match = PATTERN.fullmatch(text) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        return None
    suffix = match[2] or ""
    number = Fraction(text.removesuffix(suffix).rstrip("."))
    if suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    else:
        power = _POWERS[suffix] if suffix in _POWERS else _exponent(suffix[1:])
        number *= Fraction(10) ** power
    return _capped(number)


def _exponent(text: str) -> int:
    return max(-_HIGHEST, min(_HIGHEST, int(text)))


def _capped(number: Fraction) -> Fraction:
    whole = abs(number) * _NANO
    rounded = Fraction(-(-whole.numerator // whole.denominator), _NANO)
    return min(rounded, Fraction(MOST)) * (-1 if number < 0 else 1)


def written(text: str) -> str:
    """Return an amount as it is stored: as it was sent, unless it is capped or has a large power of ten."""
    number = read_quantity(text)
    if number is None or (abs(number) < MOST and not _FAR.search(text)):
        return text
    if number.denominator == 1:
        return str(number.numerator)
    return f"{int(number * _NANO)}n"
