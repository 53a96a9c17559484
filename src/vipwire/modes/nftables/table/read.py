"""Reads the sets of Services and of counts from the kernel; checks whether the table exists.

A listing costs the square of a map's size; reading by key costs 2 us an element at any size. Both cost the same at
100,000 elements, where a listing releases the interpreter's lock less often, which is faster beside other threads.
vipwire derives the keys of the large maps from small ones:

    service-ips, local-ips   frontend ▸ class ┐           ┌─▶ service-endpoints           frontend . slot
    service-turns            frontend ▸ chain ┴▶ slots ───┴─▶ service-affinity-slots      frontend . slot ▸ identity
                                                               └▶ service-affinity-endpoints  frontend . identity

Node ports work alike. This holds for all tables of vipwire, because one pool yields both the class and the elements.
A foreign addition or removal makes the counts differ.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.decode import SetDeclaration
from vipwire.linux.netlink.nftables.elements import (
    Element,
    ElementCounter,
    decode_answers,
    decode_counters,
    decode_elements,
    decode_plain,
)
from vipwire.linux.netlink.nftables.wire import NFPROTO, Code, MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.table.blocks import BLOCKED, Planned, form_blocks
from vipwire.modes.nftables.table.names import (
    TABLE,
    Class,
    CommentedElement,
    Goto,
    IntervalElement,
    Object,
    ObjectKey,
    Space,
    handle_bytes,
)

Elements = dict[ObjectKey, Object]

_LEADING = {
    Space.SERVICE: (("service-ips", "service-turns", False), ("local-ips", "service-local-turns", True)),
    Space.NODE_PORT: (
        ("service-nodeports", "nodeport-turns", False),
        ("local-nodeports", "nodeport-local-turns", True),
    ),
}
"""The maps of frontends to classes and to round robin chains, and whether their pools are local."""
_ENDPOINTS = {f"{space.value}-endpoints": space for space in _LEADING}
_POOLS = {f"{space.value}{'-local' * local}": (space, local) for space in _LEADING for local in (False, True)}
_SLOTS = {f"{pool}-affinity-slots": which for pool, which in _POOLS.items()}
_REMEMBERED = {f"{pool}-affinity-endpoints": f"{pool}-affinity-slots" for pool in _POOLS}

INDEXED = (*_ENDPOINTS, *_SLOTS, *_REMEMBERED)
"""The maps with derivable keys, in the order of reading; all other sets are read before."""


def derive_keys(name: str, known: Mapping[str, Elements]) -> list[bytes] | None:
    """Derive the keys of map `name` from the sets in `known`; None if vipwire did not write a pool in them."""
    if name in _REMEMBERED:
        slots = known.get(_REMEMBERED[name], {}).items()
        return list(dict.fromkeys(key[:-4] + value for (_, key), value in slots if isinstance(value, bytes)))
    space, local = (_ENDPOINTS[name], None) if name in _ENDPOINTS else _SLOTS[name]
    found: list[bytes] = []
    for frontend, kind in _list_pools(space, known):
        if kind is None:
            return None
        if kind.sticky is (local is not None) and local in (None, kind.local):
            found += [frontend + slot for slot in _encode_slot_keys(kind.first_slot, kind.size)]
    return found


def _list_pools(space: Space, known: Mapping[str, Elements]) -> Iterator[tuple[bytes, Class | None]]:
    """Yield the pools of all frontends; None for a pool that vipwire did not write."""
    for ips, turns, local in _LEADING[space]:
        for (_, frontend), value in known.get(ips, {}).items():
            kind = _class(value.data) if isinstance(value, CommentedElement) else None
            if kind is not None and kind.algorithm is Algorithm.ROUND_ROBIN:
                kind = _find_round_robin(kind, known.get(turns, {}).get((turns, frontend)))
            yield frontend, kind if kind is not None and (kind.space, kind.local) == (space, local) else None


def _find_round_robin(kind: Class, chain: Object | None) -> Class | None:
    """Return the class with its size, which only the name of the Service's own chain contains."""
    if not isinstance(chain, Goto) or not chain.chain.startswith(f"{kind.chain}-"):
        return None
    size = chain.chain.removeprefix(f"{kind.chain}-").partition("-")[0]
    return kind._replace(size=int(size)) if size.isdecimal() else None


_class = lru_cache(maxsize=4096)(Class.of)


@lru_cache(maxsize=4096)
def _encode_slot_keys(first: int, size: int) -> tuple[bytes, ...]:
    return tuple(map(handle_bytes, range(first, first + size)))


LARGE = 150_000
"""From this number of elements on, vipwire reads a map by its keys."""
WORTHWHILE: Final = 1_000
"""Smaller sets are not listed ahead: a listing takes less than a millisecond."""
_ASKED = 256
"""Elements in one request: the answers must fit into the socket's buffer."""

Listings = Mapping[str, Iterable[memoryview]]
"""The kernel's messages of listings, by the set's name."""
NOTHING_AHEAD: Final[Listings] = MappingProxyType({})


def has_table(netlink: NetlinkSocket, family: Family) -> bool:
    tables = [decode.decode_table(payload) for payload in netlink.dump(MessageType.GETTABLE, encode.list_tables())]
    return any(table.name == TABLE and table.family == NFPROTO[family] for table in tables)


def read_ahead(netlink: NetlinkSocket, family: Family, declared: Iterable[SetDeclaration], sizes: range) -> Listings:
    """List the sets whose sizes are in `sizes`, in a separate thread; `read_elements` decodes the result."""
    return {
        item.name: list(netlink.dump_in_bulk(MessageType.GETSETELEM, encode.list_elements(family, TABLE, item.name)))
        for item in declared
        if item.count in sizes
    }


def read_elements(
    netlink: NetlinkSocket,
    family: Family,
    declared: Iterable[SetDeclaration],
    large: int = LARGE,
    ahead: Listings = NOTHING_AHEAD,
    planned: Planned | None = None,
) -> Elements:
    """Read the sets of the table; with `planned`, the slots of pools as blocks."""
    found: dict[str, Elements] = {}
    for item in sorted(declared, key=_order_map):
        pairs = (
            _read_by_keys(netlink, family, item, found) if item.count is not None and item.count >= large else None
        )
        listed = _list_elements(netlink, family, item, ahead) if pairs is None else pairs
        blocked = planned is not None and item.name in BLOCKED
        found[item.name] = _pool(item.name, listed, planned or {}) if blocked else dict(listed)
    elements: Elements = {}
    for name in tuple(found):
        elements.update(found.pop(name))
    return elements


def _pool(name: str, listed: Iterable[tuple[ObjectKey, Object]], planned: Planned) -> Elements:
    """Form blocks of the elements of a map."""
    slots = {key: value for (_, key), value in listed}
    return {(name, key): block for key, block in form_blocks(slots, planned.get(name, ())).items()}


def _order_map(item: SetDeclaration) -> int:
    """Order a map after those that contain its keys."""
    return INDEXED.index(item.name) + 1 if item.name in INDEXED else 0


def _read_by_keys(
    netlink: NetlinkSocket, family: Family, item: SetDeclaration, known: Mapping[str, Elements]
) -> list[tuple[ObjectKey, Object]] | None:
    """Read a map by its derived keys; None if the keys are incomplete or one is missing in the kernel."""
    keys = derive_keys(item.name, known) if item.name in INDEXED else None
    if keys is None or len(keys) != item.count or len(set(keys)) != len(keys):
        return None
    found: list[tuple[ObjectKey, Object]] = []
    try:
        for at in range(0, len(keys), _ASKED):
            found += _read_elements(netlink, family, item, keys[at : at + _ASKED])
    except (NetlinkError, DecodeError):
        netlink.drain()
        return None
    return found


def _read_elements(
    netlink: NetlinkSocket, family: Family, item: SetDeclaration, keys: Sequence[bytes]
) -> Iterator[tuple[ObjectKey, Object]]:
    request = encode.request_elements(family, TABLE, item.name, keys)
    answers = netlink.request_answers(MessageType.GETSETELEM, request, len(keys))
    columns = decode_answers(answers, item.key_length, item.value_length)
    return zip(zip(repeat(item.name), columns.keys), columns.data, strict=False)


def _list_elements(
    netlink: NetlinkSocket, family: Family, item: SetDeclaration, ahead: Listings
) -> Iterator[tuple[ObjectKey, Object]]:
    name, sizes = item.name, (item.key_length, item.value_length)
    listing = ahead.get(name)
    if listing is None:
        listing = netlink.dump(MessageType.GETSETELEM, encode.list_elements(family, TABLE, name))
    for payload in listing:
        plain = decode_plain(payload, *sizes)
        if plain is not None:
            yield from zip(zip(repeat(name), plain.keys), plain.data, strict=False)
            continue
        for element in decode_elements(payload, *sizes):
            yield (name, element.key), _convert_element(element)


def _convert_element(element: Element) -> Object:
    code, chain = element.verdict or (Code.GOTO, "")
    chain = chain if code == Code.GOTO else f"# verdict {code} {chain}"
    if element.key_end is not None:
        return IntervalElement(element.key_end, element.comment, element.data or b"", chain)
    if element.verdict is not None:
        return Goto(chain)
    if not element.comment:
        return element.data or b""
    return CommentedElement(element.data or b"", element.comment)


def read_counted(family: Family, names: Iterable[str]) -> dict[str, list[ElementCounter]]:
    """Read these sets of one family; empty for a set that does not exist.

    Elements that change meanwhile may be missing or doubled; callers take the last one. A separate socket keeps a
    scrape and a sync apart. Raise OSError if the kernel refuses.
    """
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        return {name: _read_set_counters(netlink, family, name) for name in names}


def _read_set_counters(netlink: NetlinkSocket, family: Family, name: str) -> list[ElementCounter]:
    found: dict[bytes, ElementCounter] = {}
    try:
        with suppress(DumpInterruptedError):
            for payload in netlink.dump(MessageType.GETSETELEM, encode.list_elements(family, TABLE, name)):
                found.update((each.key, each) for each in decode_counters(payload))
    except NetlinkError as error:
        if error.errno != errno.ENOENT:
            raise
    return list(found.values())
