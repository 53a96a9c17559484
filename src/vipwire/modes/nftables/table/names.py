"""The names of nftables mode's objects, and the byte layout of keys and values in registers.

A concatenation occupies four-byte registers; zeros pad each part at its end. A frontend is

    ip daddr . meta l4proto . th dport        4 (or 16) + 1+3 + 2+2 bytes
    meta l4proto . th dport                             1+3 + 2+2 bytes     for node ports

A *class* describes how a chain chooses from a frontend's pool. Rules carry the class in `meta priority` from the
frontends' map to the chains' map, as a handle `major:minor` (kind and size of the pool), and then the chosen slot to
the endpoints' map. nft can set, look up and print the priority, and no other program needs it in a connection's first
packet: the kernel recomputes it for forwarded packets.
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
"""First parts of keys of objects that are no elements. They end with a space, so no set has such a name."""

LARGEST_POOL = 65534
"""The limit of slots: a class handle has 16 bits for the size, and slot numbers start at 1."""

DSTNAT, SRCNAT = -104, 96
"""The priorities of the nat chains: before other programs' at dstnat (-100) and srcnat (100) or later.

The kernel calls all nat chains of a hook at dstnat or srcnat (net/netfilter/nf_nat_proto.c); the priorities only
order them among each other. docs/design/0019 lists the priorities of other programs.
"""


ordered_bytes = struct.Struct(">I").pack
"""Packs a slot for the key of an interval set, where values sort as bytes."""

_HANDLE = struct.Struct("=I")
handle_bytes = _HANDLE.pack
"""Packs a value of `meta priority` (class, slot or identity) in host byte order."""


class CommentedElement(NamedTuple):
    """An element whose comment names the Service. `data` is empty in a set."""

    data: bytes
    comment: str


def add_comment(data: bytes, text: object) -> CommentedElement:
    """Return an element with a comment, cut to the length that the kernel returns."""
    return CommentedElement(data, str(text)[:LONGEST_COMMENT])


class IntervalElement(NamedTuple):
    """An element of an interval set or map, from its key to `last`, part by part.

    In a map it has `data`, or `chain` to go to.
    """

    last: bytes
    comment: str
    data: bytes = b""
    chain: str = ""


class Block(NamedTuple):
    """The elements of a pool, with their data one after the other. The key is the first slot's.

    A pool in the kernel that other programs have changed has no `data`, but all its `elements` with their keys.
    """

    data: bytes
    size: int
    elements: "tuple[tuple[bytes, Object], ...]" = ()


class Goto(NamedTuple):
    """An element of a verdict map: `goto chain`."""

    chain: str


class Hook(Value, frozen=True):
    """The hook of a base chain: nft's words for the type and the hook, and the priority."""

    type: str
    hook: str
    priority: int


class Chain(Value, frozen=True):
    """A chain with its rules as nft text. `hook` is None for a regular chain."""

    rules: tuple[str, ...]
    hook: Hook | None = None


class FlowtableSpec(Value, frozen=True):
    """A flowtable at the ingress of devices. vipwire's keeps connection tracking's counters up to date."""

    priority: int = 0
    flags: int = FLOWTABLE_COUNTER


ObjectKey: TypeAlias = tuple[str, bytes]
"""(set name, element key), or (`CHAIN`, `SET` or `FLOWTABLE`, name)."""

Object: TypeAlias = bytes | Block | CommentedElement | IntervalElement | Goto | Chain | SetSpec | FlowtableSpec
"""Plain bytes are the data of an element without a comment, empty in a set."""


class Space(enum.Enum):
    """The key of frontends in maps: address and port; a node port on any address; address and port range."""

    __hash__ = object.__hash__  # enum's own hashes the name, in Python, at each look-up of a key

    SERVICE = "service"
    NODE_PORT = "nodeport"
    RANGE = "range"


class AffinitySet(NamedTuple):
    """The map that remembers the clients of a policy's frontends; `owner` is a Service port or a Service.

    `both`: the owner has frontends of the other policy too, so a look-up that finds no usable endpoint tries the
    other map.
    """

    owner: str
    local: bool
    both: bool

    @property
    def map(self) -> str:
        return f"{_MEMORY_MAP[self.local]}/{self.owner}"

    @property
    def other_policy_map(self) -> str:
        return f"{_MEMORY_MAP[not self.local]}/{self.owner}"

    def name_update_chain(self, prefix: str, seconds: int) -> str:
        """Return the name of the chain that remembers a client; `prefix` is that of the pool's class."""
        return f"{prefix}-remember-{seconds}{_LOCAL[self.local]}/{self.owner}"

    def name_lookup_chain(self, prefix: str, seconds: int) -> str:
        """Return the name of the chain that looks a client up; `prefix` is that of the pool's class."""
        return f"{prefix}-remembered-{seconds}{_LOCAL[self.local]}{'-both' if self.both else ''}/{self.owner}"


_LOCAL = ("", "-local")
_MEMORY_MAP = ("affinity", "affinity-local")


def is_memory(name: str) -> bool:
    return name.partition("/")[0] in _MEMORY_MAP and "/" in name


class Class(NamedTuple):
    """How a chain chooses from a pool: key, pool, affinity, algorithm, and number of endpoints."""

    space: Space
    local: bool
    sticky: bool
    algorithm: Algorithm
    size: int

    @property
    def prefix(self) -> str:
        """The prefix of this pool's chains and maps: `service`, `nodeport-local`."""
        return f"{self.space.value}-local" if self.local else self.space.value

    @property
    def chain(self) -> str:
        """The chain that chooses from such pools: `service-pick-3`, `service-affinity-hash-3`."""
        verb = VERBS[self.algorithm]
        words = [self.prefix, *(["affinity"] if self.sticky else []), *_chain_words(verb, sticky=self.sticky)]
        # Each Service has its own counter for round robin: the class leads to the Service's own chain.
        return "-".join(words if self.algorithm is Algorithm.ROUND_ROBIN else [*words, str(self.size)])

    @property
    def handle(self) -> bytes:
        kind = 1 + (self.space is Space.NODE_PORT) + 2 * self.local + 4 * self.sticky
        major = kind + 12 * list(Algorithm).index(self.algorithm) + 48 * (self.space is Space.RANGE)
        return handle_bytes(major << 16 | (1 if self.algorithm is Algorithm.ROUND_ROBIN else self.size))

    @classmethod
    def of(cls, handle: bytes) -> Self | None:
        """Unpack a class handle; None for any other bytes."""
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
        """The first slot of this class's pools. nft prints `0:1`, or `1:1` for pools of the external policy Local."""
        return self.local << 16 | 1


VERBS = {
    Algorithm.RANDOM: "pick",
    Algorithm.ROUND_ROBIN: "turn",
    Algorithm.SOURCE_HASH: "hash",
    Algorithm.MAGLEV: "maglev",
}


def _chain_words(verb: str, *, sticky: bool) -> list[str]:
    return [] if sticky and verb == "pick" else [verb]


_PROTO_PORT = struct.Struct("!B3xH2x")
port_bytes = lru_cache(maxsize=4096)(struct.Struct("!H2x").pack)


def encode_frontend(key: FrontendKey) -> bytes:
    rest = _PROTO_PORT.pack(key.protocol, key.port)
    return rest if key.address is None else key.address + rest


def encode_target(target: Target) -> bytes:
    """Pack `address . port`."""
    return target.address + port_bytes(target.port)


def encode_connection(source: Address, target: Target, protocol: int) -> bytes:
    """Pack `ip saddr . ip daddr . meta l4proto . th dport`."""
    return source + target.address + _PROTO_PORT.pack(protocol, target.port)


def encode_identities(targets: Iterable[Target], *, by_address: bool) -> list[bytes]:
    """Give each target of a pool a number that stays the same while other targets change.

    The number is the same in all pools of a Service port, which share affinity. `by_address` numbers a Pod, for all
    its ports. Equal checksums of two targets (one in 40,000 pools of 500) are counted up.
    """
    taken: set[int] = set()
    numbers: list[bytes] = []
    for target in targets:
        number = zlib.crc32(target.address if by_address else encode_target(target)) or 1
        while number in taken:
            number = number % 0xFFFFFFFF + 1
        taken.add(number)
        numbers.append(handle_bytes(number))
    return numbers
