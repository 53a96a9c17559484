"""An optional interface of a backend, for people: its objects as text, and a packet's way through them.

Optional: where a mode lacks it, the plan is still explained, only without the kernel's objects.
"""

import enum
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple, Protocol, TypeVar

from vipwire.model.net import Address
from vipwire.model.value import Value
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta

K = TypeVar("K")
V = TypeVar("V")


class ObjectState(enum.Enum):
    """The comparison of an observed object with the plan; the value is for people."""

    PLANNED = "as planned"
    DIFFERENT = "not as planned"
    MISSING = "missing"
    FOREIGN = "not ours"


class Step(NamedTuple):
    """One object of the kernel that a packet meets, and what it does to this packet.

    `object` names it (`chain services`), `text` is the rule or element as the mode's tool shows it.
    """

    object: str
    text: str
    effect: str
    state: ObjectState


class End(enum.Enum):
    """The end of a packet, as far as the kernel's objects tell. UNKNOWN: one of them cannot be read."""

    ANSWERED = "answered"
    DROPPED = "dropped"
    REJECTED = "rejected"
    UNTOUCHED = "untouched"
    UNKNOWN = "unknown"


class Direct(NamedTuple):
    """What sockets meet that are given an endpoint when they connect, so that no rule sees the packet.

    `node`: those of this node's processes, unless they are bound to an address. `pods`: those of its Pods.
    `difference` says in what their endpoints are not as planned. `affinity`: clients are remembered there, but not by
    their address, so that nobody can say where one will go.
    """

    node: bool
    pods: bool
    difference: str = ""
    affinity: bool = False


BY_CHANCE: Final = "each new connection goes to one of them by chance"
IN_TURN: Final = "new connections go to them in turn"
BY_ADDRESS: Final = "the client's address decides which of them it gets"
BY_ADDRESS_AND_PORT: Final = "the client's address and port decide which of them it gets"
"""How a target is chosen, for `Walk.choice`; modes that know other ways have words of their own."""


class Walk(Value, frozen=True):
    """A packet's way through the kernel's objects.

    `shares` are the probabilities of what a new connection meets: a target (address, port), or None where this slot
    leads nowhere; they add up to 1 if `end` is ANSWERED, and are empty otherwise. `masqueraded` are the targets'
    addresses that see the node instead of the client. `remembered` is the target to which session affinity binds this
    client now, with the seconds that are left. `relayed`: the client's connection ends on this node, and another one
    begins here, so that every target sees the node. `refuses_strays`: in this mode the address is the node's own, so
    that ports which no Service has are refused, where the plan leaves such packets alone. `choice` is how a target is
    chosen, as a sentence; "" where that was not seen. `affinity` says in how far session affinity is kept otherwise
    than by remembering clients. `direct` is what sockets meet before there is a packet; None: nothing.
    """

    end: End
    steps: tuple[Step, ...] = ()
    shares: Mapping[tuple[Address, int] | None, Fraction] | None = None
    masqueraded: frozenset[Address] = frozenset()
    remembered: tuple[Address, int, float] | None = None
    relayed: bool = False
    refuses_strays: bool = False
    choice: str = ""
    affinity: str = ""
    direct: Direct | None = None


class Explainer(Protocol[K, V]):
    """Makes one mode's objects of one family understandable."""

    def script(self, delta: Delta[K, V], *, anew: bool = False) -> Iterable[str]:
        """Write a difference as commands of the mode's own tool, a line each; `anew` to remove what remains first."""
        ...

    def script_taker(self) -> str:
        """Name the program that takes such a script of this family: `nft -f -`."""
        ...

    def remains(self) -> str:
        """Name what stands in our place in the kernel although `observe` reads nothing of ours; "" for nothing."""
        ...

    def walk(
        self, observed: Mapping[K, V], wanted: Mapping[K, V], packet: Packet, own: frozenset[Address] = frozenset()
    ) -> Walk:
        """Follow a packet through the observed objects; `wanted` are the plan's, `own` this node's addresses."""
        ...
