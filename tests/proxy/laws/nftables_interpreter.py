"""Interprets nftables mode's objects as the kernel would: the results for a connection's first packet.

Written from nft(8) and the kernel's order of hooks, not from the renderer. It knows only the statements of vipwire's
table, and raises UnknownRuleError for any other. At random choices it follows every branch.

    arriving     prerouting ▸ route ▸ input, or forward ▸ postrouting
    from here    output ▸ postrouting, and input if it stays here
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import (
    CHAIN,
    SET,
    Chain,
    CommentedElement,
    Goto,
    IntervalElement,
    Object,
    ObjectKey,
)

Objects = Mapping[ObjectKey, Object]
_UNSET = struct.pack("=I", 0)


class UnknownRuleError(Exception):
    """A rule, or a reference in one, that this interpreter does not know. Never caught: add the rule."""


class Arrival(NamedTuple):
    """An arriving packet: packed addresses, IANA protocol; `interface` is "" for a local process."""

    source: bytes
    destination: bytes
    protocol: int
    port: int
    interface: str


class Result(NamedTuple):
    """A possible result. `target` is set for a translated packet only."""

    fate: str
    target: tuple[bytes, int] | None = None
    masqueraded: bool = False


@dataclass
class _Packet:
    """A packet on its way, with its translation and the affinity memory."""

    arrival: Arrival
    local: frozenset[bytes]
    memory: dict[bytes, bytes]
    destination: bytes = b""
    port: int = 0
    mark: int = 0
    priority: bytes = _UNSET
    interface: str = ""
    translated: bool = False
    masqueraded: bool = False


class _Chance:
    """Takes given branches of random choices, and records the others."""

    def __init__(self, way: tuple[int, ...]) -> None:
        self._way = way
        self.taken: list[int] = []
        self.others: list[tuple[int, ...]] = []

    def draw(self, below: int) -> int:
        if len(self.taken) < len(self._way):
            number = self._way[len(self.taken)]
        else:
            number = 0
            self.others += [(*self.taken, other) for other in range(1, below)]
        self.taken.append(number)
        return number


_RETURN, _ACCEPT, _DROP, _REJECT, _BREAK = "return", "accepted", "dropped", "rejected", "break"
_FINAL = {_ACCEPT, _DROP, _REJECT}


@dataclass
class Table:
    """The objects of one table, and their effects."""

    objects: Objects
    width: int
    """Length of an address in bytes: 4 or 16."""
    _intervals: dict[str, list[tuple[bytes, IntervalElement]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for (name, key), value in self.objects.items():
            if isinstance(value, Chain):
                for rule in value.rules:
                    _parsed(rule)
            elif isinstance(value, IntervalElement):
                self._intervals.setdefault(name, []).append((key, value))

    def outcomes(
        self, arrival: Arrival, local: frozenset[bytes], memory: Mapping[bytes, bytes] | None = None
    ) -> dict[Result, dict[bytes, bytes]]:
        """Return all possible results, each with the affinity memory after it."""
        found: dict[Result, dict[bytes, bytes]] = {}
        ways: list[tuple[int, ...]] = [()]
        while ways:
            chance = _Chance(ways.pop())
            packet = _Packet(arrival, local, dict(memory or {}), arrival.destination, arrival.port)
            found[_Walk(self, packet, chance).go()] = packet.memory
            ways += chance.others
        return found

    def chain(self, name: str) -> Chain:
        chain = self.objects.get((CHAIN, name.encode()))
        if not isinstance(chain, Chain):
            raise UnknownRuleError(f"there is no chain {name}")
        return chain

    def base_chains(self, hook: str) -> list[tuple[str, Chain]]:
        found = [
            (key[1].decode(), value)
            for key, value in self.objects.items()
            if isinstance(value, Chain) and value.hook is not None and value.hook.hook == hook
        ]
        return sorted(found, key=lambda item: item[1].hook.priority if item[1].hook else 0)

    def specification(self, name: str) -> SetSpec:
        spec = self.objects.get((SET, name.encode()))
        if not isinstance(spec, SetSpec):
            raise UnknownRuleError(f"there is no set {name}")
        return spec

    def element(self, name: str, parts: list[bytes], expressions: list[str]) -> Object | None:
        """Look up an element. The key must match the set's declaration."""
        spec = self.specification(name)
        if list(spec.key) != expressions:
            raise UnknownRuleError(f"set {name} is of {spec.key}, not of {expressions}")
        if "interval" in spec.flags:
            return next(
                (found for first, found in self._intervals.get(name, ()) if _between(first, parts, found.last)),
                None,
            )
        return self.objects.get((name, b"".join(parts)))


def _between(first: bytes, parts: list[bytes], last: bytes) -> bool:
    at = 0
    for part in parts:
        end = at + len(part)
        if not first[at:end] <= part <= last[at:end]:
            return False
        at = end
    return True


class _Walk:
    """One packet's path through the hooks."""

    def __init__(self, table: Table, packet: _Packet, chance: _Chance) -> None:
        self._table, self._packet, self._chance = table, packet, chance

    def go(self) -> Result:
        packet = self._packet
        packet.interface = packet.arrival.interface
        for hook in self._hooks():
            for _, chain in self._table.base_chains(hook):
                if self._settled(chain, hook):
                    continue
                fate = self._chain(chain)
                if fate in (_DROP, _REJECT):
                    return Result(fate)
        if packet.translated:
            return Result("answered", (packet.destination, packet.port), packet.masqueraded)
        return Result("untouched", None, packet.masqueraded)

    def _hooks(self) -> Iterator[str]:
        packet = self._packet
        if packet.interface:
            yield "prerouting"
            if packet.destination in packet.local:
                yield "input"
                return
            yield "forward"
            packet.interface = ""
            yield "postrouting"
            return
        yield "output"
        yield "postrouting"
        if packet.destination in packet.local:
            packet.interface = "lo"
            yield "input"

    def _settled(self, chain: Chain, hook: str) -> bool:
        """Report whether a NAT chain is skipped: a translated packet meets no further one."""
        nat = chain.hook is not None and chain.hook.type == "nat"
        done = self._packet.translated if hook in ("prerouting", "output") else self._packet.masqueraded
        return nat and done

    def _chain(self, chain: Chain) -> str:
        for rule in chain.rules:
            fate = self._rule(rule)
            if fate in _FINAL:
                return fate
            if fate == _RETURN:
                break
        return _ACCEPT if chain.hook is not None else _RETURN

    def _rule(self, rule: str) -> str:
        """Evaluate a rule. `_BREAK`: it does not apply; `_RETURN`: its chain ends here."""
        for statement, words in _parsed(rule):
            fate = statement(self, *words)
            if fate != "":
                return fate
        return _BREAK

    # Statements: each returns "" to continue the rule.

    def jump(self, name: str) -> str:
        fate = self._chain(self._table.chain(name))
        return fate if fate in _FINAL else ""

    def goto(self, name: str) -> str:
        return self._chain(self._table.chain(name))

    def counter(self) -> str:
        return ""

    def end(self) -> str:
        return _RETURN

    def drop(self) -> str:
        return _DROP

    def reject(self) -> str:
        return _REJECT

    def set_priority_from_map(self, key: str, name: str) -> str:
        data = self._data(name, key, ("meta priority",))
        if data is None:
            return _BREAK
        self._packet.priority = data
        return ""

    def deal(self, below: str, offset: str) -> str:
        """Follow every slot: without counter and seed, random choices, turns and hashes are alike."""
        self._packet.priority = struct.pack("=I", self._chance.draw(int(below)) + int(offset))
        return ""

    def set_priority_none(self) -> str:
        self._packet.priority = _UNSET
        return ""

    def mark(self, operation: str, number: str) -> str:
        bits = int(number, 16)
        self._packet.mark = self._packet.mark | bits if operation == "or" else self._packet.mark ^ bits
        return ""

    def marked(self, number: str) -> str:
        return "" if self._packet.mark & int(number, 16) else _BREAK

    def verdict_map(self, key: str, name: str) -> str:
        found = self._lookup(name, key)
        if found is None:
            return _BREAK
        if not isinstance(found, Goto | IntervalElement) or self._table.specification(name).data != "verdict":
            raise UnknownRuleError(f"{name} holds no verdicts")
        return self.goto(found.chain)

    def in_set(self, key: str, negated: str | None, name: str) -> str:
        if self._table.specification(name).data is not None:
            raise UnknownRuleError(f"{name} is a map")
        found = self._lookup(name, key) is not None
        return "" if found is not bool(negated) else _BREAK

    def address(self, word: str, side: str, negated: str | None, prefix: str) -> str:
        self._check_family(word)
        address = self._packet.arrival.source if side == "s" else self._packet.destination
        inside = ip_address(address) in ip_network(prefix)
        return "" if inside is not bool(negated) else _BREAK

    def interface(self, negated: str | None, name: str) -> str:
        have = self._packet.interface
        same = have.startswith(name[:-1]) if name.endswith("*") else have == name
        return "" if same is not bool(negated) else _BREAK

    def local(self, side: str) -> str:
        address = self._packet.arrival.source if side == "s" else self._packet.destination
        return "" if address in self._packet.local else _BREAK

    def is_new(self) -> str:
        return ""

    def dnatted(self) -> str:
        return "" if self._packet.translated else _BREAK

    def protocol(self, name: str) -> str:
        return "" if self._packet.arrival.protocol == {"tcp": 6, "udp": 17, "sctp": 132}[name] else _BREAK

    def masquerade(self) -> str:
        self._packet.masqueraded = True
        return _ACCEPT

    def dnat(self, word: str, key: str, name: str) -> str:
        self._check_family(word)
        width = self._table.width
        if self._table.specification(name).data == (f"{word} daddr",):  # the port is kept
            address = self._data(name, key, (f"{word} daddr",))
            data = None if address is None else address + self._packet.port.to_bytes(2) + bytes(2)
        else:
            data = self._data(name, key, (f"{word} daddr", "th dport"))
        if data is None:
            return _BREAK
        if len(data) != width + 4 or data[width + 2 :] != bytes(2):
            raise UnknownRuleError(f"{name} holds {data.hex()}, which is no address and port")
        packet = self._packet
        packet.destination, packet.port = data[:width], int.from_bytes(data[width : width + 2])
        packet.translated = True
        return _ACCEPT

    def remember(self, name: str, key: str, seconds: str) -> str:
        if int(seconds) < 1:
            raise UnknownRuleError(f"a timeout of {seconds} s")
        self._packet.memory[self._memory(name, key)] = self._packet.priority
        return ""

    def forget(self, name: str, key: str) -> str:
        self._packet.memory.pop(self._memory(name, key), None)
        return ""

    def count(self, name: str) -> str:
        """Check that the set counts packets; no effect on the result."""
        spec = self._table.specification(name)
        if not spec.counter or "dynamic" not in spec.flags or spec.data is not None:
            raise UnknownRuleError(f"{name} cannot count")
        return ""

    # Expressions of statements.

    def _check_family(self, word: str) -> None:
        if word != ("ip" if self._table.width == 4 else "ip6"):
            raise UnknownRuleError(f"{word!r} in a table of the other family")

    def _memory(self, name: str, key: str) -> bytes:
        """Build the key of a map that packets write."""
        spec = self._table.specification(name)
        if "timeout" not in spec.flags or spec.data != ("meta priority",) or list(spec.key) != key.split(" . "):
            raise UnknownRuleError(f"{name} cannot remember {key}")
        return b"".join([name.encode(), b" ", *self._parts(key)])

    def _lookup(self, name: str, key: str) -> Object | None:
        if "dynamic" in self._table.specification(name).flags:
            return self._packet.memory.get(self._memory(name, key))
        parts = self._parts(key)
        if "interval" in self._table.specification(name).flags and key.endswith("meta priority"):
            (slot,) = struct.unpack("=I", parts[-1])
            parts[-1] = slot.to_bytes(4)
        return self._table.element(name, parts, key.split(" . "))

    def _data(self, name: str, key: str, kind: tuple[str, ...]) -> bytes | None:
        if self._table.specification(name).data != kind:
            raise UnknownRuleError(f"{name} does not hold {kind}")
        found = self._lookup(name, key)
        if found is None or isinstance(found, bytes):
            return found
        if not isinstance(found, CommentedElement | IntervalElement):
            raise UnknownRuleError(f"{name} holds {found!r}")
        return found.data

    def _parts(self, key: str) -> list[bytes]:
        """Load the fields of a key as in registers: each padded to words of four bytes."""
        return [self._load(expression) for expression in key.split(" . ")]

    def _load(self, expression: str) -> bytes:
        packet = self._packet
        match expression.split():
            case [("ip" | "ip6") as word, ("saddr" | "daddr") as side]:
                self._check_family(word)
                return packet.arrival.source if side == "saddr" else packet.destination
            case ["meta", "l4proto"]:
                return bytes((packet.arrival.protocol, 0, 0, 0))
            case ["th", "dport"]:
                return packet.port.to_bytes(2) + bytes(2)
            case ["meta", "priority"]:
                return packet.priority
        raise UnknownRuleError(f"field {expression!r}")


_FIELD = r"(?:(?:ip6?) [sd]addr|meta l4proto|th dport|meta priority)"
_KEY = rf"({_FIELD}(?: \. {_FIELD})*)"
_TUPLE = r"ct (?:original|reply) (?:ip6? [sd]addr|proto-(?:src|dst))"
_COUNTED = rf"(?:{_FIELD}|{_TUPLE})(?: \. (?:{_FIELD}|{_TUPLE}))*"
_NAME = r"([a-z0-9./-]+)"
_Statement = Callable[..., str]
_STATEMENTS: list[tuple[str, _Statement]] = [
    (rf"jump {_NAME}", _Walk.jump),
    (rf"goto {_NAME}", _Walk.goto),
    (r"counter", _Walk.counter),
    (r"return", _Walk.end),
    (r"drop", _Walk.drop),
    (r"reject(?: with tcp reset)?", _Walk.reject),
    (r"meta priority set none", _Walk.set_priority_none),
    (r"meta priority set numgen (?:random|inc) mod (\d+) offset (\d+)", _Walk.deal),
    (r"meta priority set jhash ip6? saddr(?: \. th sport)? mod (\d+) seed 0x[0-9a-f]+ offset (\d+)", _Walk.deal),
    (rf"meta priority set {_KEY} map @{_NAME}", _Walk.set_priority_from_map),
    (r"meta mark set meta mark (or|xor) (0x[0-9a-f]+)", _Walk.mark),
    (r"meta mark and (0x[0-9a-f]+) != 0", _Walk.marked),
    (rf"{_KEY} vmap @{_NAME}", _Walk.verdict_map),
    (rf"{_KEY} (!= )?@{_NAME}", _Walk.in_set),
    (r"(ip6?) ([sd])addr (!= )?([0-9a-f.:]+(?:/\d+)?)", _Walk.address),
    (r'iifname (!= )?"([^"]+)"', _Walk.interface),
    (r"fib ([sd])addr type local", _Walk.local),
    (r"ct state new", _Walk.is_new),
    (r"ct status dnat", _Walk.dnatted),
    (r"meta l4proto (tcp|udp|sctp)", _Walk.protocol),
    (r"masquerade fully-random", _Walk.masquerade),
    (rf"dnat (ip6?) to {_KEY} map @{_NAME}", _Walk.dnat),
    (rf"update @{_NAME} \{{ {_KEY} timeout (\d+)s : meta priority \}}", _Walk.remember),
    (rf"update @{_NAME} \{{ {_COUNTED} \}}", _Walk.count),
    (rf"delete @{_NAME} \{{ {_KEY} : meta priority \}}", _Walk.forget),
]


@lru_cache(maxsize=4096)
def _parsed(rule: str) -> tuple[tuple[_Statement, tuple[str, ...]], ...]:
    found: list[tuple[_Statement, tuple[str, ...]]] = []
    rest = rule
    while rest:
        for pattern, statement in _STATEMENTS:
            if match := re.match(pattern + r"(?: |$)", rest):
                found.append((statement, match.groups()))
                rest = rest[match.end() :]
                break
        else:
            raise UnknownRuleError(f"{rest!r} in {rule!r}")
    return tuple(found)
