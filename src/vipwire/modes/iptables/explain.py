"""Prints iptables mode's objects as iptables-restore reads them, and follows a packet through the rules.

`modes.xtables.traversal` follows the packet; this module selects the rules at each hook. `skipped` replaces chance:
the number of matching `statistic` rules that let the packet pass. Only a pool's chain has such rules, so one path for
each and one more cover all cases. Of a dispatch chain only the entries of the packet's frontend can match.
"""

import pathlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from vipwire.model.net import Address, Family, Protocol, parse_address
from vipwire.modes.inspection import Inspection
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.choice import run_program
from vipwire.modes.iptables.rules.frontend_code import ANY_PORT, decode_frontend, encode_frontend
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, ROOT, ROOTS, Key, Rules
from vipwire.modes.iptables.rules.read import read_last_port
from vipwire.modes.iptables.rules.skeleton import jump_keys
from vipwire.modes.xtables.match import ListedRule, PacketHeader, Surroundings, compare_rules
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.modes.xtables.traversal import Traversal
from vipwire.modes.xtables.words import RESTORE
from vipwire.plan.plan import FrontendKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import BY_CHANCE, BY_HASH, IN_TURN, Explainer, Path, Walk, merge
from vipwire.reconcile.steps import ObjectState, Verdict

_LISTS: Final = pathlib.Path("/proc/thread-self/net/xt_recent")
_CLOCK: Final = pathlib.Path("/proc/timer_list")
_ENTRY: Final = re.compile(r"^src=(\S+) .*?last_seen: (\d+) ", re.MULTILINE)
_JIFFIES: Final = re.compile(r"^jiffies: (\d+)$", re.MULTILINE)
_RATES: Final = (100, 250, 300, 1000)
_EARLY: Final = 300
_WRAP: Final = 1 << 32


class Recent:
    """The kernel's lists of clients (`-m recent`) in the calling thread's network namespace, at one moment.

    Each list is a file of /proc/net/xt_recent; an unreadable one counts as empty:

        src=10.244.1.13 ttl: 63 last_seen: 4339285431 oldest_pkt: 1 4339285431

    Times are in jiffies; /proc/timer_list has the current one. The kernel does not export HZ, so vipwire takes the
    usual rate that agrees best with the uptime (jiffies start 5 minutes before 2^32, include/linux/jiffies.h).
    """

    def __init__(self, lists: pathlib.Path = _LISTS, clock: pathlib.Path = _CLOCK) -> None:
        self._lists, self._clock = lists, clock
        self._now: tuple[int, int] | None = None

    def compute_seconds_since_seen(self, name: str, client: Address) -> float | None:
        """Return the seconds since a client was last seen; None if the list lacks it."""
        try:
            text = (self._lists / name).read_text(encoding="ascii")
            for address, last in _ENTRY.findall(text):
                if parse_address(address) == client:
                    now, rate = self._read_time()
                    return max(0.0, (now - int(last)) / rate)
        except (OSError, ValueError):
            pass
        return None

    def _read_time(self) -> tuple[int, int]:
        if self._now is None:
            found = _JIFFIES.search(self._clock.read_text(encoding="ascii"))
            if found is None:
                raise ValueError("the kernel does not report its jiffies")
            now = int(found[1])
            self._now = now, compute_ticks_per_second(now, time.clock_gettime(time.CLOCK_BOOTTIME))
        return self._now


def compute_ticks_per_second(jiffies: int, uptime: float) -> int:
    """Return the kernel's HZ, from a count of jiffies and the uptime at the same moment."""
    return min(_RATES, key=lambda rate: abs(_WRAP - _EARLY * rate + uptime * rate - jiffies))


_JUMPS: Final = jump_keys()[::-1]
"""Each jump was inserted at the top of its chain, so the last one comes first."""

Recall = Callable[[str], float | None]
"""Returns the seconds since a list of `-m recent` last saw the packet's source; None if the list lacks it."""


@dataclass(frozen=True)
class RuleTables:
    """The observed rules, the wanted ones, and this node's own addresses."""

    family: Family
    observed: Mapping[Key, Rules]
    wanted: Mapping[Key, Rules]
    own: frozenset[Address] = frozenset()

    @cached_property
    def ranges(self) -> Mapping[tuple[str, Address | None, Protocol], list[tuple[range, int]]]:
        """The port ranges by table, address and protocol, each with its entry's code."""
        found: dict[tuple[str, Address | None, Protocol], list[tuple[range, int]]] = {}
        for objects in (self.observed, self.wanted):
            for key, rules in objects.items():
                if key.kind == ENTRY and key.chain == names.RANGES and isinstance(key.detail, int):
                    front, last = decode_frontend(self.family, key.detail), max(map(read_last_port, rules))
                    place = (key.table, front.address, front.protocol)
                    found.setdefault(place, []).append((range(front.port, last + 1), key.detail))
        return found


@dataclass(slots=True)
class ChancePath(Path):
    """One path.

    `more`: other paths remain. `met`: the seconds for which the matched list still remembers the client.
    """

    more: bool = False
    met: float | None = None


def walk_rules(table: RuleTables, packet: Packet, recall: Recall = lambda _: None) -> Walk:
    """Follow a packet along every path of chance, then as a remembered client."""
    runs = [run_once(table, packet)]
    while runs[-1].more:
        runs.append(run_once(table, packet, len(runs)))
    bound = run_once(table, packet, recall=recall)
    remembered = (*bound.target, bound.met) if bound.met is not None and bound.target is not None else None
    remembers = any(Verdict.REMEMBER in step.verdicts for each in runs for step in each.steps)
    affinity = "" if remembers else "the kernel has no rule for session affinity"
    return merge(runs, remembered=remembered, affinity=affinity)


def run_once(table: RuleTables, packet: Packet, skipped: int = 0, recall: Recall = lambda _: None) -> ChancePath:
    done, header = ChancePath(), PacketHeader.of(packet)
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
    """The rules of one family for one packet, with the answers that they need."""

    def __init__(self, table: RuleTables, packet: Packet, done: ChancePath, skipped: int, recall: Recall) -> None:
        self._table, self._packet, self._run = table, packet, done
        self._left, self._recall = skipped, recall

    def owns_address(self, address: Address) -> bool:
        return address in self._table.own

    def draw(self, chance: Fraction, *, in_turn: bool) -> bool:
        self._run.choice = IN_TURN if in_turn else BY_CHANCE
        if self._left:
            self._left -= 1
            self._run.share *= 1 - chance
            return False
        self._run.share *= chance
        self._run.more = True
        return True

    def recall(self, name: str, seconds: int) -> bool:
        ago = self._recall(name)
        if ago is None or ago > seconds:
            return False
        self._run.met = seconds - ago
        return True

    def run_program(self, code: str, source: Address) -> bool:
        """Run vipwire's hash program on the client's address; raise ValueError for any other program."""
        self._run.choice = BY_HASH
        return run_program(code, source)

    def list_rules(self, table: str, chain: str, header: PacketHeader) -> Iterable[ListedRule] | None:
        """List the rules of a chain; None if the kernel and the plan both lack the chain.

        Of a dispatch chain, list only rules that this packet may match.
        """
        keys = list(self._find_keys(table, chain, header))
        known = chain in BUILT_IN or (table, chain) in ROOTS
        if not known and not any(key in self._table.observed or key in self._table.wanted for key in keys):
            return None
        return self._list_rules(keys)

    def _find_keys(self, table: str, chain: str, header: PacketHeader) -> Iterator[Key]:
        if (table, chain) in ROOTS:
            yield from (Key(ENTRY, table, chain, code) for code in self._compute_frontend_codes(table, chain, header))
            yield Key(ROOT, table, chain)
            return
        yield from (key for key in _JUMPS if (key.table, key.chain) == (table, chain))
        if chain not in BUILT_IN:
            yield Key(CHAIN, table, chain)

    def _list_rules(self, keys: Iterable[Key]) -> Iterator[ListedRule]:
        for key in keys:
            strange = ObjectState.DIFFERENT if key in self._table.wanted else ObjectState.FOREIGN
            yield from compare_rules(self._table.observed.get(key, ()), self._table.wanted.get(key, ()), strange)

    def _compute_frontend_codes(self, table: str, root: str, header: PacketHeader) -> tuple[int, ...]:
        family, protocol = self._table.family, self._packet.protocol
        if root == names.CLUSTER_IPS:
            return (encode_frontend(family, FrontendKey(header.destination, *ANY_PORT)),)
        if root == names.RANGES:
            ranges = self._table.ranges.get((table, header.destination, protocol), ())
            return tuple(dict.fromkeys(code for ports, code in ranges if header.port in ports))
        keys = (FrontendKey(address, protocol, header.port) for address in (header.destination, None))
        return tuple(encode_frontend(family, key) for key in keys)


class IptablesExplainer(Explainer[Key, Rules, RuleTables]):
    """Explains the rules of one family, in the calling thread's network namespace."""

    def __init__(self, backend: IptablesBackend) -> None:
        super().__init__(RESTORE[backend.family])
        self._backend = backend

    def write_script(self, delta: Delta[Key, Rules]) -> Iterable[str]:
        return [line for text in self._backend.script(delta) for line in text.splitlines()]

    def arrange(
        self, observed: Mapping[Key, Rules], wanted: Mapping[Key, Rules], own: frozenset[Address]
    ) -> RuleTables:
        return RuleTables(self._backend.family, observed, wanted, own)

    def trace(self, objects: RuleTables, packet: Packet) -> Walk:
        """Follow a packet, with the affinity that the kernel remembers for its source."""
        recent = Recent()
        return walk_rules(objects, packet, lambda name: recent.compute_seconds_since_seen(name, packet.source))


INSPECTION: Final = Inspection(lambda _family, mode: IptablesExplainer(mode))
