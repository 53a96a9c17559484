"""The content of an object of the Gateway API: what planning depends on, and what it does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    status: Any = None
