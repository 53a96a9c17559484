"""The optional interface of a backend for `vipwire explain`: objects as text, and a packet's path through them.

Without it, `explain` shows the plan only. A mode follows the packet on each path that chance leaves open; `merge`
makes one walk of these paths, for every mode.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import takewhile
from typing import Any, Final, Generic, NamedTuple, TypeVar

from vipwire.model.net import Address
from vipwire.model.value import Value
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Endpoint = tuple[Address, int]
_SHOWN: Final = 4
"""The most paths whose own steps are shown; the rest is a number."""


class Direct(NamedTuple):
    """Sockets that get an endpoint in connect(), so that no rule sees their packets.

    `node`: sockets of this node's processes, unless bound to an address. `pods`: sockets of its Pods. `difference`
    says how their endpoints differ from the plan. `affinity`: clients are remembered by a key other than their
    address, so their endpoint cannot be predicted.
    """

    node: bool
    pods: bool
    difference: str = ""
    affinity: bool = False


BY_CHANCE: Final = "each new connection goes to a random endpoint"
IN_TURN: Final = "new connections go to the endpoints in turn"
BY_ADDRESS: Final = "the client's address decides the endpoint"
BY_ADDRESS_AND_PORT: Final = "the client's address and port decide the endpoint"
BY_HASH: Final = f"{BY_ADDRESS}, the same on every node"
BY_MAGLEV: Final = f"{BY_ADDRESS_AND_PORT} (Maglev), the same on every node"
"""How a mode chooses a target, for `Path.choice`; modes with other ways have their own texts."""


@dataclass(slots=True)
class Path:
    """One path of a packet, of those that chance leaves open; `share` is its probability.

    `target` is the packet's endpoint, `masqueraded` whether that sees the node instead of the client. `end` is
    DROPPED or REJECTED if an object refuses the packet. `uncertain`: an object on the path cannot be read. `choice`
    is a sentence about the choice of a target, "" if not seen.
    """

    steps: list[Step] = field(default_factory=list)
    share: Fraction = Fraction(1)
    end: End = End.UNTOUCHED
    target: Endpoint | None = None
    masqueraded: bool = False
    uncertain: bool = False
    choice: str = ""

    @property
    def outcome(self) -> End:
        return End.ANSWERED if self.target is not None and self.end is End.UNTOUCHED else self.end


class Walk(Value, frozen=True):
    """A packet's way through the kernel's objects.

    `shares` are the probabilities of a new connection's results: a target (address, port), or None if a slot leads
    nowhere; they add up to 1 if `end` is ANSWERED. `masqueraded` are the addresses of targets that see the node
    instead of the client. `remembered` is the target to which session affinity binds this client now, with the
    seconds left. `relayed`: the client's connection ends on this node and a second one begins, so every target sees
    the node. `refuses_strays`: this mode gives the address to the node, so ports of no Service are refused, where the
    plan leaves such packets alone. `choice` is as in `Path`. `affinity` says how session affinity works other than by
    remembering clients. `direct` describes sockets that get their endpoint without a packet; None: none.
    """

    end: End
    steps: tuple[Step, ...] = ()
    shares: Mapping[Endpoint | None, Fraction] | None = None
    masqueraded: frozenset[Address] = frozenset()
    remembered: tuple[Address, int, float] | None = None
    relayed: bool = False
    refuses_strays: bool = False
    choice: str = ""
    affinity: str = ""
    direct: Direct | None = None


def merge(paths: Sequence[Path], **more: Any) -> Walk:
    """Make one walk of all paths of a packet; `more` are further fields from the mode."""
    shares: dict[Endpoint | None, Fraction] = {}
    for path in paths:
        target = path.target if path.outcome is End.ANSWERED else None
        shares[target] = shares.get(target, Fraction(0)) + path.share
    return Walk(
        _end(paths),
        tuple(_merge_steps(paths)),
        shares if any(path.target for path in paths) else None,
        frozenset(path.target[0] for path in paths if path.target and path.masqueraded),
        choice=paths[0].choice,
        **more,
    )


def _end(paths: Sequence[Path]) -> End:
    if any(path.uncertain for path in paths):
        return End.UNKNOWN
    return End.ANSWERED if any(path.outcome is End.ANSWERED for path in paths) else paths[0].outcome


def _merge_steps(paths: Sequence[Path]) -> list[Step]:
    """Merge the steps of all paths: equal steps once, a path's own steps behind those of earlier paths.

    A path whose end differs from most (its element is missing) comes last.
    """
    usual = next((path for path in paths if path.outcome is End.ANSWERED), paths[0])
    alike = list(dict.fromkeys(tuple(path.steps) for path in paths if path.outcome is usual.outcome))
    merged, place = list(usual.steps), 0
    shown = len(alike) if len(alike) == _SHOWN + 1 else _SHOWN  # the line "one more" is no shorter
    for steps in alike[:shown]:
        place = _insert(merged, steps) or place
    if len(alike) > shown and place:
        before = merged[place - 1]
        merged.insert(place, Step(before.where, before.object, effects=(Effect(Verdict.MORE, len(alike) - shown),)))
    for path in paths:
        if path.outcome is not usual.outcome:
            share = f"{float(path.share) * 100:.3g} % of new connections"
            merged.append(Step("", share, "", ObjectState.DIFFERENT, (Effect(Verdict.DIVERGE),)))
            merged += path.steps[_count_common(usual.steps, path.steps) :]
    return merged


def _insert(merged: list[Step], steps: Sequence[Step]) -> int:
    """Insert missing steps before the next existing one; return the index behind the last, 0 if none."""
    at = place = 0
    own: list[Step] = []
    for step in steps:
        if step not in merged[at:]:
            own.append(step)
            continue
        found = merged.index(step, at)
        merged[found:found] = own
        at = found + len(own)
        place = at if own else place
        at, own = at + 1, []
    merged += own
    return len(merged) if own else place


def _count_common(one: Sequence[Step], other: Sequence[Step]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class Explainer(Generic[K, V, T]):
    """Explains one mode's objects of one family. `tool` takes a script of this family: `nft -f -`."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self._arranged: tuple[Mapping[K, V], Mapping[K, V], frozenset[Address], T] | None = None

    def write_script(self, delta: Delta[K, V]) -> Iterable[str]:
        """Write a difference as commands of the mode's tool, one a line."""
        raise NotImplementedError

    def describe_foreign_objects(self) -> str:
        """Name foreign objects in vipwire's place in the kernel that `observe` skips; "" for none."""
        return ""

    def write_removal_of_foreign(self) -> Iterable[str]:
        """Write the commands that remove the objects of `describe_foreign_objects`."""
        return ()

    def arrange(self, observed: Mapping[K, V], wanted: Mapping[K, V], own: frozenset[Address]) -> T:
        """Prepare objects for `trace`; `wanted` are the plan's, `own` this node's addresses."""
        raise NotImplementedError

    def trace(self, objects: T, packet: Packet) -> Walk:
        raise NotImplementedError

    def walk(
        self, observed: Mapping[K, V], wanted: Mapping[K, V], packet: Packet, own: frozenset[Address] = frozenset()
    ) -> Walk:
        """Follow a packet. Equal objects are arranged only once, for many packets."""
        known = self._arranged
        if known is None or known[0] is not observed or known[1] is not wanted or known[2] != own:
            known = self._arranged = observed, wanted, own, self.arrange(observed, wanted, own)
        return self.trace(known[3], packet)
