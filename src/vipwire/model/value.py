"""The base class of frozen values that the proxy creates often, or before its first sync.

They behave as `@dataclass(frozen=True, slots=True)` classes, including `dataclasses.replace` and `fields`. Python
compiles six functions for each such dataclass (0.7 ms), msgspec takes 0.02 ms and creates and compares instances in
C. A hundred dataclasses took a third of the CPU time of importing the proxy.
"""

import dataclasses
from typing import Any

from msgspec import Struct


class _DataclassFields:
    """Describes a class to `dataclasses`, on demand."""

    def __get__(self, instance: object, owner: type[Struct]) -> dict[str, "dataclasses.Field[Any]"]:
        return {name: _dataclass_field(name) for name in owner.__struct_fields__}


def _dataclass_field(name: str) -> "dataclasses.Field[Any]":
    made: dataclasses.Field[Any] = dataclasses.field()
    made.name = name
    made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]  # noqa: SLF001  # no public way
    return made


class Value(Struct, frozen=True):
    """A frozen value: `class Point(Value, frozen=True)`."""

    __dataclass_fields__ = _DataclassFields()
