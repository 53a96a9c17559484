"""The interface of a mode's backend: renders plans as kernel objects, reads them, commits differences.

An object is a key and a value. A Service has objects of its own, and shared ones that several Services may need (a
chain for pools of three, a Pod's hairpin entry) and that exist as long as one Service needs them.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import field

from vipwire.model.net import Address
from vipwire.model.value import Value
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.delta import Delta, SentBytes

K = TypeVar("K")
V = TypeVar("V")


class Rendered(Value, Generic[K, V], frozen=True):
    """The objects of one Service. Services that share a key must give it the same value."""

    own: Mapping[K, V] = field(default_factory=dict)
    shared: Mapping[K, V] = field(default_factory=dict)


class Backend(Protocol[K, V]):
    """One mode for one family. `render…` are pure; `observe`, `changed` and `commit` talk to the kernel."""

    def render_node(self, node: NodePlan) -> Mapping[K, V]:
        """Render the objects of no Service: tables, chains, sets, the node's addresses."""
        ...

    def render(self, plan: ServicePlan) -> Rendered[K, V]: ...

    def observe(self) -> dict[K, V]:
        """Read all of vipwire's objects in the kernel, including foreign objects inside vipwire's tables."""
        ...

    def changed(self) -> bool:
        """Report cheaply whether others may have changed the objects since the last commit or observe."""
        ...

    def commit(self, delta: Delta[K, V]) -> SentBytes:
        """Apply a difference.

        Raise CommitError if the kernel refuses; then `changed` is true if the kernel may hold a part.
        """
        ...


@runtime_checkable
class Expecting(Protocol[K, V]):
    """A mode that reads correct objects at lower cost than other objects. Optional."""

    def expect(self, wanted: Iterable[Rendered[K, V]]) -> None:
        """Set the objects that the next `observe` compares with. Missing objects are no error."""
        ...


@runtime_checkable
class Enlarging(Protocol[K, V]):
    """A mode whose kernel objects have room for a number of elements. Optional."""

    def lacks_room(self, delta: Delta[K, V]) -> bool:
        """Report whether the kernel would refuse a difference for lack of room."""
        ...

    def enlarge(self, delta: Delta[K, V], held: Iterable[Mapping[K, V]]) -> SentBytes:
        """Make the room for a difference. `held` are all objects in the kernel.

        Raise CommitError if the kernel refuses.
        """
        ...


class ChangeListener(Protocol):
    """Hears of other programs' changes. When `fileno()` is readable, call `heard`."""

    @property
    def listening(self) -> bool:
        """Whether the kernel still tells of changes."""

    def fileno(self) -> int: ...

    def heard(self) -> tuple[str, int] | None:
        """Return the program and the process of the last change; None without a change, 0 for unknown."""


@runtime_checkable
class Listening(Protocol):
    """A mode whose kernel tells of other programs' changes. Optional."""

    @property
    def hears_all(self) -> bool:
        """Whether the kernel tells of every change, so that regular checks are not needed."""

    def listen(self) -> ChangeListener | None:
        """Begin to listen; families may share a listener. None if the kernel does not tell. Raise OSError."""


@runtime_checkable
class Prompt(Protocol):
    """A mode that commits a few objects with one fast system call."""

    @property
    def prompt(self) -> bool: ...


@runtime_checkable
class Relaying(Protocol):
    """A mode whose flows end on this node: conntrack sees the relay answer, not an endpoint."""

    def relayed(self, plans: Iterable[ServicePlan]) -> frozenset[tuple[Address, int]]:
        """Return the addresses and ports where the relay answers UDP flows to these plans' frontends."""


@runtime_checkable
class Connecting(Protocol):
    """A mode that connects UDP sockets of this node's clients to endpoints; rules cannot move their datagrams."""

    def end_sockets(
        self, serving: Mapping[tuple[Address | None, int], frozenset[tuple[Address, int]]], *, whole: bool
    ) -> int:
        """End sockets whose endpoint no longer serves a named frontend, or (`whole`) any; return their number."""


@runtime_checkable
class RuleWriter(Protocol):
    """A mode that writes rules, and counts its rules by table: all, and those of the last commit."""

    @property
    def rules(self) -> Mapping[str, int]:
        """The number of vipwire's rules in each table."""

    @property
    def written(self) -> Mapping[str, int]:
        """The number of rules that the last commit wrote into each table."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A mode that can read the kernel for the first `observe` before the plan is known."""

    def read_ahead(self) -> None:
        """Read in a thread while no other uses the mode; later changes are read again. Raise as `observe` does."""
