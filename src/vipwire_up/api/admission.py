"""Hooks between a request and the store: what allocates addresses and ports, and what forbids.

A hook is called after defaults and before the checks, with the object that would be stored; it may change it, ask for
further writes in the same transaction, or raise ApiError. Nothing is awaited from the first hook to the moment when
the store has accepted the writes, so that an allocator needs no lock: what it has seen in the store's `head` holds.

A hook that keeps state of its own gives an `undo`, called if the write does not come to pass: because it is refused,
was only a dry run, or the disk did not take it.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

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
    """A change that is about to be made. `new` is None for a deletion, `old` for a creation.

    `caller` is the user who sends the request; None for what a part of this process does.
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
    """The additions of a hook: what is committed, or must hold, with the object's write; and how to undo them."""

    also: tuple[Step, ...] = ()
    undo: Callable[[], None] | None = None

    def take_back(self) -> None:
        """Undo what the hook has noted for itself."""
        if self.undo is not None:
            self.undo()

    @contextlib.contextmanager
    def taken_back_on_error(self) -> Iterator[None]:
        """Undo the admission if the block raises."""
        try:
            yield
        except BaseException:
            self.take_back()
            raise

    def joined(self, later: "Admitted") -> "Admitted":
        """Join what two steps have added; the later one is taken back first."""

        def undo() -> None:
            later.take_back()
            self.take_back()

        return Admitted((*self.also, *later.also), undo)


NOTHING_ADDED: Final = Admitted()


class Admission(Protocol):
    """A hook."""

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Change `attempt.new`, ask for more, or raise ApiError."""


def admit_all(hooks: Iterable[Admission], attempt: AdmissionRequest) -> Admitted:
    """Run hooks in their order; if one refuses, those before it are undone, the last one first."""
    admitted = NOTHING_ADDED
    for hook in hooks:
        with admitted.taken_back_on_error():
            added = hook.admit(attempt)
        admitted = admitted.joined(added) if added is not None else admitted
    return admitted
