"""Admission hooks: allocators of addresses and ports, and checks that refuse a request.

A hook runs after defaults and before validation, with the object to be stored. It may change the object, ask for
further writes in the same transaction, or raise ApiError. Nothing is awaited between the first hook and the store's
acceptance of the writes, so an allocator needs no lock: the store's `head` does not change meanwhile.

A hook with state of its own returns an `undo`, which is called if the write is refused, was only a dry run, or fails
on disk.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.serving.authorization import User
from vipwire_up.store.record import Step


class Operation(Enum):
    """The operation on an object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A change before it is stored. `new` is None for a deletion, `old` for a creation.

    `caller` is the user of the request; None for changes by parts of this process.
    """

    operation: Operation
    resource: Resource
    namespace: str
    name: str
    new: Object | None
    old: Object | None
    dry_run: bool = False
    subresource: str = ""
    caller: User | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A hook's additions: writes and conditions that are committed together with the object, and how to undo them."""

    also: tuple[Step, ...] = ()
    undo: Callable[[], None] | None = None

    def take_back(self) -> None:
        if self.undo is not None:
            self.undo()

    @contextlib.contextmanager
    def taken_back_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.take_back()
            raise

    def join(self, later: "Admitted") -> "Admitted":
        """Join the additions of two hooks; `take_back` undoes the later hook first."""

        def undo() -> None:
            later.take_back()
            self.take_back()

        return Admitted((*self.also, *later.also), undo)


NOTHING_ADDED: Final = Admitted()


Admission: TypeAlias = Callable[[AdmissionRequest], Admitted | None]
"""A hook between a request and the store: it changes `new`, returns additions, or raises ApiError."""


def admit_all(hooks: Iterable[Admission], attempt: AdmissionRequest) -> Admitted:
    """Run hooks in order; if one refuses, undo those before it, the last one first."""
    admitted = NOTHING_ADDED
    for hook in hooks:
        with admitted.taken_back_on_error():
            added = hook(attempt)
        admitted = admitted.join(added) if added is not None else admitted
    return admitted
