"""The store's types: keys, records, changes, writes, and errors.

A revision numbers the changes of the whole store, and only grows; Kubernetes' resourceVersion is the revision of an
object's last change. That number is inside the object, so a write has a function that encodes the object once the
number is known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from vipwire.errors import VipwireError


class Key(NamedTuple):
    """The name of an object. `resource` is a plural with its group, as in `endpointslices.discovery.k8s.io`."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Record:
    """One state of one object: the change that made it, and its bytes."""

    key: Key
    revision: int
    value: bytes


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A step from one state of an object to the next. `record` of a deletion is the object's last state.

    `previous` is None for an object that is new.
    """

    record: Record
    previous: Record | None
    deleted: bool = False

    @property
    def revision(self) -> int:
        return self.record.revision


Encode = Callable[[int], bytes]
"""Encodes an object for a revision."""


@dataclass(frozen=True, slots=True)
class Write:
    """The write of one key, if it is still as `expected`: a revision, or 0 for a key that must not exist."""

    key: Key
    encode: Encode
    expected: int
    deletes: bool = False
    lifetime: int = 0
    """Seconds after which the store may delete the object itself; 0 for never. See `Store.expires`."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of a transaction on a key that it does not write: `expected` is its revision, 0 for missing."""

    key: Key
    expected: int


Step: TypeAlias = Write | Check
"""A part of a transaction."""


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta


def is_object(record: Record) -> bool:
    try:
        meta = msgspec.convert(msgspec.json.decode(record.value), _Object).metadata
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return (meta.name, meta.namespace) == (record.key.name, record.key.namespace)


class StoreError(VipwireError):
    """The store cannot work: its disk is full or fails, or its file is damaged. The text names the file."""


class StoreFullError(StoreError):
    """The store has no space for a change."""


class ChangeTooLargeError(StoreError):
    """A change is larger than the store accepts at once."""


class StoreUnavailableError(StoreError):
    """The store does not answer now. The change was not made."""


class ForeignStoreError(StoreUnavailableError):
    """The store's content is not this cluster's: its objects are gone, or another cluster has replaced them."""


class UnknownOutcomeError(StoreError):
    """The store has not answered in time. The change may have been made, or may still be."""


class ConflictError(Exception):
    """A key is not as a write expected it: `actual` is its revision, 0 if it does not exist.

    The conflict is visible at revision `seen`: wait for that, then try again.
    """

    def __init__(self, key: Key, expected: int, actual: int, seen: int = 0) -> None:
        super().__init__(f"{key}: expected revision {expected}, is at {actual}")
        self.key, self.expected, self.actual, self.seen = key, expected, actual, seen


class CompactedError(Exception):
    """A revision is older than the kept history, which starts after `floor`."""

    def __init__(self, revision: int, floor: int) -> None:
        super().__init__(f"revision {revision} is gone, the oldest one is {floor}")
        self.revision, self.floor = revision, floor


class FutureRevisionError(Exception):
    """A revision that the store has not reached: `current` is the newest one."""

    def __init__(self, revision: int, current: int) -> None:
        super().__init__(f"revision {revision} is ahead of the store, which is at {current}")
        self.revision, self.current = revision, current


FENCES: Final = "fences.vipwire.io"
"""The resource of fences, which the API does not serve.

An elected writer writes a record of its own, the fence. Each transaction of a fenced registry checks that the fence
is unchanged. A successor writes the fence again before it starts anything. So the store refuses the writes of a
process that was stopped and does not know that another has taken over.
"""
