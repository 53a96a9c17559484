"""Decides which stored records are no objects: the file was damaged or edited, as the API stores none. Pure.

Who reads them would fail, and clients with a whole list. They are put aside: who lists and watches is not told of
them, until somebody deletes them.
"""

from collections.abc import Callable, Iterable

import msgspec

from vipwire_up.store.record import Record, RecordChange


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta


def is_object(record: Record) -> bool:
    """Tell whether a record holds JSON with the metadata of what it is stored as."""
    try:
        meta = msgspec.convert(msgspec.json.decode(record.value), _Object).metadata
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return (meta.name, meta.namespace) == (record.key.name, record.key.namespace)


def sound_after(changes: Iterable[RecordChange], floor: int, is_sound: Callable[[Record], bool] = is_object) -> int:
    """Return the revision after which all changes, and the states before them, are sound; `floor` at least."""
    for change in changes:
        states = (change.record,) if change.previous is None else (change.record, change.previous)
        if not all(map(is_sound, states)):
            floor = max(floor, change.revision)
    return floor
