"""The interface for removing what a mode left on a node beside rules of iptables: see `proxy.handover.leftovers`."""

from typing import TYPE_CHECKING, Protocol

from vipwire.model.value import Value

if TYPE_CHECKING:
    from vipwire.modes.xtables.ownership import Place


class RemovalResult(Value, frozen=True):
    """What one look has removed, and what waits for its connections to end. In words."""

    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Remains(Protocol):
    """The leftovers of one mode in one family. It is asked again as long as something waits."""

    def before_rules(self) -> RemovalResult:
        """Find leftovers, and remove what must go before the rules of other modes do.

        Raise CommitError, OSError or UnsupportedError if the kernel does not let us.
        """

    def held(self) -> "frozenset[Place]":
        """Name the chains of this mode that must stay as long as what `before_rules` has found is in use."""

    def after_rules(self) -> RemovalResult:
        """Remove what can go once the rules are gone. Raise as `before_rules` does."""
