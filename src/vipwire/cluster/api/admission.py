"""Hooks between a request and the store: what allocates addresses and ports, and what forbids.

A hook is called after defaults and before the checks, with the object that would be stored; it may change it, ask for
further writes in the same transaction, or raise ApiError. Nothing is awaited from the first hook to the moment when
the store has accepted the writes, so that an allocator needs no lock: what it has seen in the store's `head` holds.

A hook that keeps state of its own gives an `undo`, called if the write does not come to pass: because it is refused,
was only a dry run, or the disk did not take it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from vipwire.cluster.api.resource import Object, Resource
from vipwire.cluster.store.record import Write


class Operation(Enum):
    """What is about to be done to an object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A change that is about to be made. `new` is None for a deletion, `old` for a creation."""

    operation: Operation
    resource: Resource
    namespace: str
    name: str
    new: Object | None
    old: Object | None
    dry_run: bool = False
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a hook adds: further writes, which are made with the object's or not at all, and how to take back."""

    also: tuple[Write, ...] = ()
    undo: Callable[[], None] | None = None


class Admission(Protocol):
    """A hook."""

    def admit(self, attempt: Attempt) -> Admitted | None:
        """Change `attempt.new`, ask for more, or raise ApiError."""


class Admissions:
    """Runs hooks in their order, and takes them back in the reverse one."""

    def __init__(self, hooks: tuple[Admission, ...]) -> None:
        self._hooks = hooks

    def admit(self, attempt: Attempt) -> Admitted:
        """Run all; if one refuses, those before it are undone."""
        also: list[Write] = []
        undo: list[Callable[[], None]] = []

        def undo_all() -> None:
            for step in reversed(undo):
                step()

        for hook in self._hooks:
            try:
                admitted = hook.admit(attempt)
            except BaseException:
                undo_all()
                raise
            if admitted is not None:
                also += admitted.also
                undo += [admitted.undo] if admitted.undo else []
        return Admitted(tuple(also), undo_all if undo else None)
