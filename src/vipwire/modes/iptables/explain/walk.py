"""A packet's way through the rules of this mode: which rules `modes.xtables.traversal` tries, hook by hook. Pure.

Chance is a parameter: `skipped` is how many of the rules that match by chance let the packet pass. Only the chain of
a pool has such rules, so that as many paths as it has of them, and one more, are all that can happen.

Of a dispatch chain only the entries of the packet's own frontend are tried: no other can match, in whatever order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.iptables.rules import bpf, names
from vipwire.modes.iptables.rules.frontend_code import ANY_PORT, decode, encode
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, ROOT, ROOTS, Key, Rules
from vipwire.modes.iptables.rules.read import last_port
from vipwire.modes.iptables.rules.skeleton import jump_keys
from vipwire.modes.xtables.match import Header, Listed, Surroundings, compare_rules
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.modes.xtables.traversal import Traversal
from vipwire.plan.plan import FrontendKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_CHANCE, BY_HASH, IN_TURN, Path, Walk, merge
from vipwire.reconcile.steps import ObjectState, Verdict

_JUMPS: Final = jump_keys()[::-1]
"""Each was put before all others of its chain: the last comes first."""

Recall = Callable[[str], float | None]
"""Tells how many seconds ago the packet's source was last seen in a list of `-m recent`; None if it is not in it."""


@dataclass(frozen=True)
class Table:
    """The observed rules, the wanted ones, and this node's own addresses."""

    family: Family
    observed: Mapping[Key, Rules]
    wanted: Mapping[Key, Rules]
    own: frozenset[Address] = frozenset()

    @cached_property
    def ranges(self) -> Mapping[tuple[str, Address | None, Protocol], list[tuple[range, int]]]:
        """The ranges of ports by table, address and protocol, with the number of the entry."""
        found: dict[tuple[str, Address | None, Protocol], list[tuple[range, int]]] = {}
        for objects in (self.observed, self.wanted):
            for key, rules in objects.items():
                if key.kind == ENTRY and key.chain == names.RANGES and isinstance(key.detail, int):
                    front, last = decode(self.family, key.detail), max(map(last_port, rules))
                    place = (key.table, front.address, front.protocol)
                    found.setdefault(place, []).append((range(front.port, last + 1), key.detail))
        return found


@dataclass(slots=True)
class Run(Path):
    """One path. `more` is whether other paths are left.

    `met` is how many seconds more the client is remembered in the list that it was found in.
    """

    more: bool = False
    met: float | None = None


def walk(table: Table, packet: Packet, recall: Recall = lambda _: None) -> Walk:
    """Follow a packet in every way that chance may take, and as a client that is remembered."""
    runs = [run(table, packet)]
    while runs[-1].more:
        runs.append(run(table, packet, len(runs)))
    bound = run(table, packet, recall=recall)
    remembered = (*bound.target, bound.met) if bound.met is not None and bound.target is not None else None
    remembers = any(Verdict.REMEMBER in step.verdicts for each in runs for step in each.steps)
    affinity = "" if remembers else "clients are not remembered: there is no rule for it"
    return merge(runs, remembered=remembered, affinity=affinity)


def run(table: Table, packet: Packet, skipped: int = 0, recall: Recall = lambda _: None) -> Run:
    """Follow the first packet of a connection through the chains that it meets."""
    done, header = Run(), Header.of(packet)
    way = Traversal(_Rules(table, packet, done, skipped, recall), header)
    for verdict in way.pass_hooks():
        if verdict is Verdict.DNAT:
            done.target = header.destination, header.port
        if verdict is not None and verdict.end is not None:
            done.end = verdict.end
            break
    done.steps, done.uncertain, done.masqueraded = way.steps, way.uncertain, way.masqueraded
    return done


class _Rules(Surroundings):
    """The rules of one family as one packet meets them, with what they ask for."""

    def __init__(self, table: Table, packet: Packet, done: Run, skipped: int, recall: Recall) -> None:
        self._table, self._packet, self._run = table, packet, done
        self._left, self._recall = skipped, recall

    def owns(self, address: Address) -> bool:
        """Report whether an address is this node's."""
        return address in self._table.own

    def draw(self, chance: Fraction, *, in_turn: bool) -> bool:
        """Decide a rule that depends on chance or on whose turn it is."""
        self._run.choice = IN_TURN if in_turn else BY_CHANCE
        if self._left:
            self._left -= 1
            self._run.share *= 1 - chance
            return False
        self._run.share *= chance
        self._run.more = True
        return True

    def recall(self, name: str, seconds: int) -> bool:
        """Report whether the client is in a list and was seen so recently."""
        ago = self._recall(name)
        if ago is None or ago > seconds:
            return False
        self._run.met = seconds - ago
        return True

    def run_program(self, code: str, source: Address) -> bool:
        """Run our program, which hashes the client's address; raise ValueError for any other."""
        self._run.choice = BY_HASH
        return bpf.matches(code, source)

    def rules(self, table: str, chain: str, header: Header) -> Iterable[Listed] | None:
        """List a chain; None if it is neither there nor planned. Of a dispatch chain, what this packet may match."""
        keys = list(self._keys(table, chain, header))
        known = chain in BUILT_IN or (table, chain) in ROOTS
        if not known and not any(key in self._table.observed or key in self._table.wanted for key in keys):
            return None
        return self._listed(keys)

    def _keys(self, table: str, chain: str, header: Header) -> Iterator[Key]:
        if (table, chain) in ROOTS:
            yield from (Key(ENTRY, table, chain, code) for code in self._codes(table, chain, header))
            yield Key(ROOT, table, chain)
            return
        yield from (key for key in _JUMPS if (key.table, key.chain) == (table, chain))
        if chain not in BUILT_IN:
            yield Key(CHAIN, table, chain)

    def _listed(self, keys: Iterable[Key]) -> Iterator[Listed]:
        for key in keys:
            strange = ObjectState.DIFFERENT if key in self._table.wanted else ObjectState.FOREIGN
            yield from compare_rules(self._table.observed.get(key, ()), self._table.wanted.get(key, ()), strange)

    def _codes(self, table: str, root: str, header: Header) -> tuple[int, ...]:
        family, protocol = self._table.family, self._packet.protocol
        if root == names.CLUSTER_IPS:
            return (encode(family, FrontendKey(header.destination, *ANY_PORT)),)
        if root == names.RANGES:
            ranges = self._table.ranges.get((table, header.destination, protocol), ())
            return tuple(dict.fromkeys(code for ports, code in ranges if header.port in ports))
        keys = (FrontendKey(address, protocol, header.port) for address in (header.destination, None))
        return tuple(encode(family, key) for key in keys)
