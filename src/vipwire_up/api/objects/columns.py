"""The columns that `kubectl get` prints for many kinds, and their cells: ages, lists, fields."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from vipwire.model.times import time_or_none
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR: Final = 365 * _DAY

# Up to this age, this unit, and this smaller unit: Kubernetes' duration.HumanDuration.
_STEPS: Final = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def format_age(text: Any, now: datetime) -> str:
    moment = time_or_none(text)
    return format_duration((now - moment).total_seconds()) if moment else UNKNOWN


def format_duration(length: float) -> str:
    seconds = max(int(length), 0)
    for limit, unit, name, smaller, smaller_name in _STEPS:
        if seconds < limit:
            rest = seconds % unit // smaller if smaller else 0
            return f"{seconds // unit}{name}" + (f"{rest}{smaller_name}" if rest else "")
    return f"{seconds // _YEAR}y"


def join_values(values: Iterable[Any], most: int = 0) -> str:
    """Join values by commas; at most `most` of them, with a note how many more there are."""
    texts = [str(value) for value in values]
    if most and len(texts) > most:
        return f"{','.join(texts[:most])} + {len(texts) - most} more..."
    return ",".join(texts) or NONE


def format_labels(labels: Mapping[str, str] | None) -> str:
    return join_values(f"{key}={value}" for key, value in sorted((labels or {}).items()))


def column_of_path(*path: str | int, absent: Any = NONE) -> Callable[[Object, datetime], Any]:
    def cell(value: Object, _now: datetime) -> Any:
        found = value_at(value, *path)
        return absent if found in (None, "") else found

    return cell


def field_readers(*paths: str) -> dict[str, Callable[[Object], str]]:
    """Return readers of fields for selectors, such as `spec.type`; "" for a missing field."""

    def reader(path: str) -> Callable[[Object], str]:
        return lambda value: str(value_at(value, *path.split(".")) or "")

    return {path: reader(path) for path in paths}


NAME: Final = Column("Name", column_of_path("metadata", "name"), format="name", description="The object's name.")
AGE: Final = Column(
    "Age",
    lambda value, now: format_age(value_at(value, "metadata", "creationTimestamp"), now),
    description="Time since the object was created.",
)
