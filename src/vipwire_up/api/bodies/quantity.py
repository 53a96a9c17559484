"""Amounts with units, such as 100m and 2Gi, as exact numbers. Pure.

What is beyond 2**63 - 1 becomes that, and what is finer than a billionth the next billionth, as Kubernetes caps and
rounds (apimachinery/pkg/api/resource/quantity.go): so that nobody who reckons with it meets a number of a thousand
digits, or infinity.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

PATTERN: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
MOST: Final = (1 << 63) - 1
_LONGEST: Final = 256  # characters
_NANO: Final = 10**9
_POWERS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MILLI: Final = 1000
_KIBI: Final = 1024
_DECIMAL_SUFFIXES: Final = {power: suffix for suffix, power in _POWERS.items()}
_BINARY_SUFFIXES: Final = {0: ""} | {power // 10: suffix for suffix, power in _BINARY.items()}
_EXPONENTS: Final = {power: f"e{power}" if power else "" for power in range(-3, 19, 3)}
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
    """Return an amount as it is stored: in thousandths, rounded up, in the shortest form of its kind of suffix.

    As Kubernetes does (CanonicalizeBytes, and SetDefaults_ResourceList): 0.5 is 500m, 1000m is 1, 2048Mi is 2Gi.
    """
    number = read_quantity(text)
    if number is None:
        return text
    whole = -(-abs(number) * _MILLI // 1)
    number = Fraction(whole, _MILLI) * (-1 if number < 0 else 1)
    match = PATTERN.fullmatch(text)
    suffix = (match[2] if match else "") or ""
    if suffix in _BINARY and abs(number) >= _KIBI and number.denominator == 1:
        return _shortest(int(number), 0, _KIBI, 1, _BINARY_SUFFIXES)
    powers = _EXPONENTS if suffix and suffix[0] in "eE" and suffix != "E" else _DECIMAL_SUFFIXES
    return _shortest(int(number * _MILLI), -3, 1000, 3, powers)


def _shortest(value: int, power: int, base: int, step: int, suffixes: Mapping[int, str]) -> str:
    """Take out the base as often as it goes into a value."""
    while value and value % base == 0 and power + step in suffixes:
        value, power = value // base, power + step
    return f"{value}{suffixes[power]}" if value else "0"
