"""The names and the bytes of nftables mode: what an object is called, and how keys and values lie in registers.

A concatenation occupies registers of four bytes, each part padded with zeros at its end. A frontend is

    ip daddr . meta l4proto . th dport        4 (or 16) + 1+3 + 2+2 bytes
    meta l4proto . th dport                             1+3 + 2+2 bytes     for node ports

A *class* says how a frontend's pool is spread, and names the chain that does it. It travels from the map that knows
the frontend to the map of the chains in `meta priority`, as a handle `major:minor`: the kind of pool, and its size.
So does the slot that is then chosen, to the map of the endpoints: the pool, and the place in it.
The priority is the one field of a packet that can be set, looked up by and printed by nft, and that nobody misses:
the kernel computes it anew for a forwarded packet, and only the first packet of a connection gets here.
"""

import enum
import struct
import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Self, TypeAlias

from vipwire.linux.netlink.nftables.userdata import LONGEST_COMMENT
from vipwire.linux.netlink.nftables.wire import FLOWTABLE_COUNTER
from vipwire.model.net import Address
from vipwire.model.spread import Algorithm
from vipwire.model.value import Value
from vipwire.modes.nftables.language import SetSpec
from vipwire.plan.plan import FrontendKey, Target

TABLE = "vipwire"

CHAIN = "chain "
SET = "set "
FLOWTABLE = "flowtable "
"""First halves of keys that are no elements. No set can have such a name: it ends with a space."""

LARGEST_POOL = 65534
"""So many slots at most: a size has 16 bits in a class handle, and so has a slot's number, which counts from 1."""

DSTNAT, SRCNAT = -104, 96
"""The priorities of the nat chains: before those of others, at nft's dstnat (-100) and srcnat (100) or later.

The kernel calls all nat chains of a hook together, at dstnat or srcnat (net/netfilter/nf_nat_proto.c): the priorities
order them among each other only. docs/design/0019 lists which program has which.
"""


ordered_bytes = struct.Struct(">I").pack
"""Lays out a slot in the key of an interval set, where values sort as bytes."""

_HANDLE = struct.Struct("=I")
handle_bytes = _HANDLE.pack
"""Lays out what travels in `meta priority`, a class, a slot or an identity: host byte order."""


class CommentedElement(NamedTuple):
    """An element whose comment names the Service. `data` is empty in a set."""

    data: bytes
    comment: str


def commented(data: bytes, text: object) -> CommentedElement:
    """Build an element with a comment, cut to the length that the kernel returns."""
    return CommentedElement(data, str(text)[:LONGEST_COMMENT])


class IntervalElement(NamedTuple):
    """An element of an interval set or map: its key is the first of a range, part by part, `last` the last.

    In a map it has `data`, or `chain` to go to.
    """

    last: bytes
    comment: str
    data: bytes = b""
    chain: str = ""


class Goto(NamedTuple):
    """An element of a verdict map: `goto chain`."""

    chain: str


class Hook(Value, frozen=True):
    """Where a base chain is called: nft's words for the type and the hook, and the priority."""

    type: str
    hook: str
    priority: int


class Chain(Value, frozen=True):
    """A chain with its rules as nft text. `hook` is None for a chain that is only jumped to."""

    rules: tuple[str, ...]
    hook: Hook | None = None


class FlowtableSpec(Value, frozen=True):
    """A flowtable at the ingress of devices. Ours lets connection tracking go on counting what it carries."""

    priority: int = 0
    flags: int = FLOWTABLE_COUNTER


ObjectKey: TypeAlias = tuple[str, bytes]
"""(set name, element key), or (`CHAIN`, `SET` or `FLOWTABLE`, name)."""

Object: TypeAlias = bytes | CommentedElement | IntervalElement | Goto | Chain | SetSpec | FlowtableSpec
"""Plain bytes are the data of an element without a comment, empty in a set."""


class Space(enum.Enum):
    """The key that recognises frontends: address and port; for node ports the port, on an address of the node.

    RANGE is by address and a range of ports.
    """

    __hash__ = object.__hash__  # enum's own hashes the name, in Python, at each look-up of a key

    SERVICE = "service"
    NODE_PORT = "nodeport"
    RANGE = "range"


class AffinitySet(NamedTuple):
    """The set that remembers the clients of all frontends with a policy of `owner`, a Service port or a Service.

    `both`: the owner has frontends of the other policy too, so that each asks the other's memory where its own has
    nothing that it may use.
    """

    owner: str
    local: bool
    both: bool

    @property
    def map(self) -> str:
        """The map from clients to identities."""
        return f"{_MEMORY_MAP[self.local]}/{self.owner}"

    @property
    def other(self) -> str:
        """The map of the other policy."""
        return f"{_MEMORY_MAP[not self.local]}/{self.owner}"

    def remember_chain(self, prefix: str, seconds: int) -> str:
        """Name the chain that remembers a client of a frontend's pool, by the prefix of the pool's class."""
        return f"{prefix}-remember-{seconds}{_LOCAL[self.local]}/{self.owner}"

    def remembered_chain(self, prefix: str, seconds: int) -> str:
        """Name the chain that asks whether a client is remembered."""
        return f"{prefix}-remembered-{seconds}{_LOCAL[self.local]}{'-both' if self.both else ''}/{self.owner}"


_LOCAL = ("", "-local")
_MEMORY_MAP = ("affinity", "affinity-local")


def is_memory(name: str) -> bool:
    """Report whether a map remembers clients."""
    return name.partition("/")[0] in _MEMORY_MAP and "/" in name


class Class(NamedTuple):
    """How a pool is spread: whose key, which of its pools, if clients are remembered, how it is chosen, how many."""

    space: Space
    local: bool
    sticky: bool
    algorithm: Algorithm
    size: int

    @property
    def prefix(self) -> str:
        """The prefix of the names of this pool's chains and maps: `service`, `nodeport-local`."""
        return f"{self.space.value}-local" if self.local else self.space.value

    @property
    def chain(self) -> str:
        """The chain that spreads over such pools: `service-pick-3`, `service-affinity-hash-3`."""
        verb = VERBS[self.algorithm]
        words = [self.prefix, *(["affinity"] if self.sticky else []), *_verb(verb, sticky=self.sticky)]
        # Pools in turn are counted for each Service: the class only leads to the Service's own chain.
        return "-".join(words if self.algorithm is Algorithm.ROUND_ROBIN else [*words, str(self.size)])

    @property
    def handle(self) -> bytes:
        """The class handle in a register."""
        kind = 1 + (self.space is Space.NODE_PORT) + 2 * self.local + 4 * self.sticky
        major = kind + 12 * list(Algorithm).index(self.algorithm) + 48 * (self.space is Space.RANGE)
        return handle_bytes(major << 16 | (1 if self.algorithm is Algorithm.ROUND_ROBIN else self.size))

    @classmethod
    def of(cls, handle: bytes) -> Self | None:
        """Read a class handle; None for bytes that are none."""
        if len(handle) != _HANDLE.size:
            return None
        major, size = divmod(_HANDLE.unpack(handle)[0], 1 << 16)
        wide, rest = divmod(major - 1, 48)
        algorithm, rest = divmod(rest, 12)
        sticky, rest = divmod(rest, 4)
        local, node_port = divmod(rest, 2)
        if not 0 <= wide <= 1 or (wide and node_port) or sticky > 1:
            return None
        space = Space.RANGE if wide else Space.NODE_PORT if node_port else Space.SERVICE
        return cls(space, bool(local), bool(sticky), list(Algorithm)[algorithm], size)

    @property
    def first_slot(self) -> int:
        """The first slot of such a pool: nft prints `0:1`, and `1:1` for the pool of an external policy Local."""
        return self.local << 16 | 1


VERBS = {
    Algorithm.RANDOM: "pick",
    Algorithm.ROUND_ROBIN: "turn",
    Algorithm.SOURCE_HASH: "hash",
    Algorithm.MAGLEV: "maglev",
}


def _verb(verb: str, *, sticky: bool) -> list[str]:
    return [] if sticky and verb == "pick" else [verb]


_PROTO_PORT = struct.Struct("!B3xH2x")
_port_bytes = lru_cache(maxsize=4096)(struct.Struct("!H2x").pack)


def frontend_bytes(key: FrontendKey) -> bytes:
    """Lay out a frontend's key."""
    rest = _PROTO_PORT.pack(key.protocol, key.port)
    return rest if key.address is None else key.address + rest


def target_bytes(target: Target) -> bytes:
    """Lay out `address . port`."""
    return target.address + _port_bytes(target.port)


def connection_bytes(source: Address, target: Target, protocol: int) -> bytes:
    """Lay out `ip saddr . ip daddr . meta l4proto . th dport`."""
    return source + target.address + _PROTO_PORT.pack(protocol, target.port)


def identities(targets: Iterable[Target], *, by_address: bool) -> list[bytes]:
    """Give each target of a pool a number that stays the same while other targets come and go.

    It is the same in all pools of a Service port, which share what is remembered. `by_address` numbers a Pod,
    whichever of its ports is meant. Two targets with the same checksum (one in 40,000 pools of 500) are told apart by
    counting on.
    """
    taken: set[int] = set()
    numbers: list[bytes] = []
    for target in targets:
        number = zlib.crc32(target.address if by_address else target_bytes(target)) or 1
        while number in taken:
            number = number % 0xFFFFFFFF + 1
        taken.add(number)
        numbers.append(handle_bytes(number))
    return numbers
