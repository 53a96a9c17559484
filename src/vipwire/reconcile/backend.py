"""The interface of a mode's backend: it translates plans into kernel objects, reads them, and writes a difference.

An object is a key (which thing) and a value (how it should be). A Service's objects are of two kinds: its own, which
no other Service has, and shared ones, which several may need (a chain for pools of three, a hairpin entry of a Pod)
and which exist as long as one does.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import field

from vipwire.model.net import Address
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


@runtime_checkable
class Prompt(Protocol):
    """A mode whose commit of a few objects is one system call, which the kernel answers in less than a moment."""

    @property
    def prompt(self) -> bool:
        """Whether it is so."""


@runtime_checkable
class Relaying(Protocol):
    """A mode whose flows end on this node: connection tracking sees a relay answer, not an endpoint."""

    def relayed(self, plans: Iterable[ServicePlan]) -> frozenset[tuple[Address, int]]:
        """Return the addresses and ports at which UDP flows to the frontends of these plans are answered."""


@runtime_checkable
class Connecting(Protocol):
    """A mode that may have connected UDP sockets of this node's clients to endpoints: no datagram can move them."""

    def end_sockets(
        self, serving: Mapping[tuple[Address | None, int], frozenset[tuple[Address, int]]], *, whole: bool
    ) -> int:
        """End those whose endpoint serves no more at a frontend that is named, or (`whole`) at any; count them."""


@runtime_checkable
class RuleWriter(Protocol):
    """A mode that writes rules, and counts them by table: all of ours, and those that the last commit wrote."""

    @property
    def rules(self) -> Mapping[str, int]:
        """The number of our rules in each table."""

    @property
    def written(self) -> Mapping[str, int]:
        """The number of rules that the last commit wrote into each table."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A mode that can begin with what the first `observe` reads, while it is not yet known what is wanted."""

    def read_ahead(self) -> None:
        """Read, in a thread of its own while nobody else uses the mode. What has changed since is read again.

        Raise what `observe` raises.
        """
