"""iptables mode for people: its objects as iptables-restore reads them, and a packet's way through the rules.

Rules choose an endpoint by chance. So the walk is done once for each that may be chosen; the ways are the same but
for the pool's rule and the endpoint's chain, and are shown as one.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import takewhile
from typing import Final, Protocol

from vipwire.model.net import Address, Family
from vipwire.modes.iptables.explain.walk import Recall, Run, Table, run
from vipwire.modes.iptables.rules.names import Key, Rules
from vipwire.modes.iptables.rules.recent import Recent
from vipwire.modes.xtables.words import RESTORE
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import End, ObjectState, Step, Walk

_SHOWN: Final = 4
"""Endpoints whose rules are shown; of the others only how many there are."""


class ScriptWriter(Protocol):
    """Writes what a sync would give to iptables-restore: the backend, after it has observed."""

    family: Family

    def script(self, delta: Delta[Key, Rules]) -> Iterable[str]:
        """Write the input of every run, in order."""


class IptablesExplainer:
    """Explains the rules of one family, in the network namespace of the calling thread."""

    def __init__(self, writer: ScriptWriter) -> None:
        self._writer = writer

    def script(self, delta: Delta[Key, Rules], *, anew: bool = False) -> Iterable[str]:
        """Write a difference as a sync would: the input of `iptables-restore --noflush`."""
        del anew
        return [line for text in self._writer.script(delta) for line in text.splitlines()]

    def script_taker(self) -> str:
        """Name iptables-restore, of the family."""
        return RESTORE[self._writer.family]

    def remains(self) -> str:
        """Return "": every chain of ours is read."""
        return ""

    def walk(
        self,
        observed: Mapping[Key, Rules],
        wanted: Mapping[Key, Rules],
        packet: Packet,
        own: frozenset[Address] = frozenset(),
    ) -> Walk:
        """Follow a packet through the rules."""
        recent = Recent()
        table = Table(self._writer.family, observed, wanted, own)
        return walk(table, packet, lambda name: recent.seen(name, packet.source))


def walk(table: Table, packet: Packet, recall: Recall = lambda _: None) -> Walk:
    """Follow a packet in every way that chance may take, and as a client that is remembered. Pure."""
    runs = [run(table, packet)]
    while runs[-1].more:
        runs.append(run(table, packet, len(runs)))
    end = End.UNKNOWN if any(each.uncertain for each in runs) else _end(runs)
    shares: dict[tuple[Address, int] | None, Fraction] | None = None
    if any(each.target for each in runs):
        shares = {}
        for each in runs:
            target = None if each.verdict else each.target
            shares[target] = shares.get(target, Fraction(0)) + each.share
    masqueraded = frozenset(each.target[0] for each in runs if each.target and each.masqueraded)
    bound = run(table, packet, recall=recall)
    remembered = None
    if bound.met is not None and bound.target is not None:
        remembered = (*bound.target, bound.met)
    remembers = any("remembers " in step.effect for each in runs for step in each.steps)
    affinity = "" if remembers else "clients are not remembered: there is no rule for it"
    steps = tuple(_merged(runs))
    return Walk(end, steps, shares, masqueraded, remembered, choice=runs[0].choice, affinity=affinity)


def _end(runs: Sequence[Run]) -> End:
    if any(each.target and not each.verdict for each in runs):
        return End.ANSWERED
    return {"drop": End.DROPPED, "reject": End.REJECTED}.get(runs[0].verdict, End.UNTOUCHED)


def _merged(runs: Sequence[Run]) -> list[Step]:
    """Merge the steps of all runs: first those that all begin with, then each run's own, then the common end."""
    first = runs[0].steps
    before = min((_common(first, each.steps) for each in runs), default=0)
    rests = [each.steps[before:] for each in runs]
    after = min((_common(rests[0][::-1], rest[::-1]) for rest in rests), default=0)
    own = list(dict.fromkeys(tuple(rest[: len(rest) - after]) for rest in rests))
    shown = len(own) if len(own) == _SHOWN + 1 else _SHOWN  # a line for one more could show that one
    merged = [*first[:before], *(step for steps in own[:shown] for step in steps)]
    if len(own) > shown:
        merged.append(Step(merged[-1].object, "", f"{len(own) - shown} more like these", ObjectState.PLANNED))
    return [*merged, *rests[0][len(rests[0]) - after :]]


def _common(one: Sequence[Step], other: Sequence[Step]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
