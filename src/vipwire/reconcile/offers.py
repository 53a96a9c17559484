"""What some modes can do besides `modes.spec.Mode`, which every mode implements. `isinstance` tells which can."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from vipwire.model.net import Address
from vipwire.plan.plan import ServicePlan


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
