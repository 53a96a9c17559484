"""The interface of a mode's backend: it translates plans into kernel objects, reads them, and writes a difference.

An object is a key (which thing) and a value (how it should be). A Service's objects are of two kinds: its own, which
no other Service has, and shared ones, which several may need (a chain for pools of three, a hairpin entry of a Pod)
and which exist as long as one does.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import field

from vipwire.model.value import Value
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.delta import Delta

K = TypeVar("K")
V = TypeVar("V")


class Rendered(Value, Generic[K, V], frozen=True):
    """The objects of one Service. Whoever shares a key gives it the same value."""

    own: Mapping[K, V] = field(default_factory=dict)
    shared: Mapping[K, V] = field(default_factory=dict)


class Backend(Protocol[K, V]):
    """One mode for one family. `render…` are pure; `observe`, `changed` and `commit` talk to the kernel."""

    def render_node(self, node: NodePlan) -> Mapping[K, V]:
        """Translate what belongs to no Service: tables, chains, sets, the node's addresses."""
        ...

    def render(self, plan: ServicePlan) -> Rendered[K, V]:
        """Translate one Service."""
        ...

    def observe(self) -> dict[K, V]:
        """Read all of ours that the kernel holds. Foreign objects inside our own tables count as ours."""
        ...

    def changed(self) -> bool:
        """Report, cheaply, whether others may have changed the objects since the last commit or observe."""
        ...

    def commit(self, delta: Delta[K, V]) -> int:
        """Apply a difference, all or nothing, and return its size in bytes. Raise CommitError if it is refused."""
        ...


@runtime_checkable
class Expecting(Protocol[K, V]):
    """A mode that reads what is as it should be at less cost than other objects. Optional."""

    def expect(self, wanted: Iterable[Rendered[K, V]]) -> None:
        """Take what should be there, to compare with in the `observe` that follows. It is no fault if it is not."""
        ...
