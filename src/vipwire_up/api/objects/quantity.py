"""Amounts with units, such as 100m and 2Gi, as exact numbers, and the validation of CPU, memory and the like.

Larger amounts than 2**63 - 1 become that, and finer ones than a billionth are rounded up, as in Kubernetes
(apimachinery/pkg/api/resource/quantity.go), so that no amount has a thousand digits or is infinite. The checks are
those of pkg/apis/core/validation, ValidateResourceRequirements. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from vipwire_up.api.objects import names
from vipwire_up.api.objects.errors import Cause, invalid
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object

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
    match = PATTERN.fullmatch(text) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        return None
    suffix = match[2] or ""
    number = Fraction(text.removesuffix(suffix).rstrip("."))
    if suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    else:
        power = _POWERS[suffix] if suffix in _POWERS else _clamp_exponent(suffix[1:])
        number *= Fraction(10) ** power
    return _round_and_clamp(number)


def _clamp_exponent(text: str) -> int:
    return max(-_HIGHEST, min(_HIGHEST, int(text)))


def _round_and_clamp(number: Fraction) -> Fraction:
    whole = abs(number) * _NANO
    rounded = Fraction(-(-whole.numerator // whole.denominator), _NANO)
    return min(rounded, Fraction(MOST)) * (-1 if number < 0 else 1)


def write_quantity(text: str) -> str:
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
        return _format_shortest(int(number), 0, _KIBI, 1, _BINARY_SUFFIXES)
    powers = _EXPONENTS if suffix and suffix[0] in "eE" and suffix != "E" else _DECIMAL_SUFFIXES
    return _format_shortest(int(number * _MILLI), -3, 1000, 3, powers)


def _format_shortest(value: int, power: int, base: int, step: int, suffixes: Mapping[int, str]) -> str:
    """Divide a value by the base as often as possible; append the suffix."""
    while value and value % base == 0 and power + step in suffixes:
        value, power = value // base, power + step
    return f"{value}{suffixes[power]}" if value else "0"


_WHOLE: Final = (
    "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
)  # fmt: skip  # these have no fractions
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_OF_KUBERNETES: Final = "kubernetes.io/"


def check_amounts(amounts: Mapping[str, str], path: str) -> Iterator[Cause]:
    for name, text in amounts.items():
        yield from _check_amount(name, text, f"{path}[{name}]")


def _check_amount(name: str, text: str, path: str) -> Iterator[Cause]:
    amount = read_quantity(text)
    if amount is None:
        return
    if amount < 0:
        yield invalid(path, text, "must be greater than or equal to 0")
    elif amount.denominator != 1 and (name in _WHOLE or _is_extended(name)):
        yield invalid(path, text, "must be an integer")


def _is_extended(name: str) -> bool:
    """Report whether a resource is an extended resource, such as a device, which has no fractions."""
    return "/" in name and _OF_KUBERNETES not in name and not name.startswith("requests.")


def _check_container_resource_name(name: str, path: str) -> Iterator[Cause]:
    if problem := names.check_qualified_name(name):
        yield invalid(path, name, problem)
    elif "/" not in name and name not in _OF_CONTAINERS and not name.startswith("hugepages-"):
        if name not in _WHOLE and name != "storage":
            yield invalid(path, name, "must be a standard resource type or fully qualified")
        yield invalid(path, name, "must be a standard resource for containers")


def check_resources(resources: Object, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            yield from _check_container_resource_name(name, f"{path}.{part}[{name}]")
        yield from check_amounts(amounts, f"{path}.{part}")
    for name, text in requests.items():
        wanted, most = read_quantity(text), read_quantity(limits[name]) if name in limits else None
        if wanted is not None and most is not None and wanted > most:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield invalid(f"{path}.requests", text, why)


def check_node_amounts(new: Object) -> Iterator[Cause]:
    for part in ("capacity", "allocatable"):
        for name, text in (value_at(new, "status", part) or {}).items():
            yield from _check_amount(name, text, f"status.{part}.{name}")
