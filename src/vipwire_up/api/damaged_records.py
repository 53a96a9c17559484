"""Decides whether a client can read a stored record as an object of its kind. Pure.

The API server stores no object that it could not read itself. But a damaged or edited file may hold JSON with sound
metadata and, say, text where a number belongs. If a list holds one such object, a client in Go cannot read the list.

msgspec checks the bytes against a class made from the kind's type. It refuses exactly the values to which `decode`
answers 400; every client can read fields that are unknown, missing or out of range.
"""

import keyword
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final

import msgspec

from vipwire_up.api.kinds.catalogue import BY_ID
from vipwire_up.api.objects.quantity import PATTERN
from vipwire_up.api.objects.schema import Shape, Type
from vipwire_up.store.record import Record, is_object

_TIME: Final = Annotated[
    str, msgspec.Meta(pattern=r"^(\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(\.\d+)?(Z|[+-]\d\d:\d\d))?$")
]
_QUANTITY: Final = Annotated[str, msgspec.Meta(pattern=rf"^({PATTERN.pattern})$")]
_INT32: Final = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_INT64: Final = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_BASE64: Final = "[A-Za-z0-9+/]"
_SCALARS: Final[dict[str, Any]] = {
    "string": str,
    "int32": _INT32,
    "int64": _INT64,
    "bool": bool,
    "time": _TIME,
    "microtime": _TIME,
    "quantity": _QUANTITY | int | float,
    "intstr": str | _INT32,
    "bytes": Annotated[str, msgspec.Meta(pattern=rf"^({_BASE64}{{4}})*({_BASE64}{{2}}==|{_BASE64}{{3}}=)?$")],
}


def is_readable(record: Record) -> bool:
    """Report whether a record holds an object of the kind and name that it is stored under."""
    read = _decoder_of(record.key.resource)
    if read is None:
        return is_object(record)
    try:
        meta = read(record.value).metadata
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return meta is not None and (meta.name, meta.namespace or "") == (record.key.name, record.key.namespace)


@cache
def _decoder_of(resource: str) -> Callable[[bytes], Any] | None:
    return msgspec.json.Decoder(_msgspec_annotation(BY_ID[resource].type)).decode if resource in BY_ID else None


@cache
def _msgspec_annotation(kind: Type) -> Any:
    """Return the annotation of a type for msgspec; null may stand for every value."""
    if kind.shape is Shape.OBJECT:
        parts = [
            (_attribute_name(name), _msgspec_annotation(field.type) | None, None)
            for name, field in kind.fields.items()
        ]
        names = {_attribute_name(name): name for name in kind.fields}
        return msgspec.defstruct(kind.name.rpartition(".")[2], parts, rename=names, gc=False)
    if kind.shape is Shape.LIST and kind.element is not None:
        return list[_msgspec_annotation(kind.element) | None]  # type: ignore[misc]
    if kind.shape is Shape.MAP and kind.element is not None:
        return dict[str, _msgspec_annotation(kind.element) | None]  # type: ignore[misc]
    return _SCALARS.get(kind.name, object)


def _attribute_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
