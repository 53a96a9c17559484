"""The content of an object of the Gateway API: what planning depends on, and what it does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_NAMED_BY: Final = {
    "conditions": "type",
    "parents": "controllerName",
    "ancestors": "controllerName",
    "listeners": "name",
    "addresses": "value",
}
"""The lists of a status that are read, with the field of their entries that must be a text."""


@dataclass(frozen=True, slots=True)
class Content:
    """What planning depends on. `spec` is one of `wire`; `created` is RFC 3339."""

    spec: Any
    created: str
    generation: int
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Known:
    """The rest: the object's UID, its version, and its status as the API server has it."""

    uid: str = ""
    version: str = ""
    status: dict[str, Any] | None = None
    """As `sound_status` leaves it."""


def sound_status(found: Any) -> dict[str, Any] | None:
    """Leave out what has other types than a status of the API: whoever may write it must not stop us."""
    if not isinstance(found, dict):
        return None
    return {key: _entries(value, _NAMED_BY[key]) if key in _NAMED_BY else value for key, value in found.items()}


def _entries(found: Any, name: str) -> list[dict[str, Any]]:
    entries = (sound_status(each) for each in (found if isinstance(found, list) else ()))
    return [each for each in entries if each is not None and isinstance(each.get(name), str)]
