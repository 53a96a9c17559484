"""Reads sets: those that are the Services, and those in which packets count; and whether there is our table at all.

A set is listed, or a large map's elements are asked for one by one: a listing costs the square of its size (`index`).
One by one costs 2 us an element at any size. At 100,000 a listing costs as much, and does not let go of the
interpreter at every element, which costs a daemon with other threads.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from vipwire.modes.nftables.table import index
from vipwire.modes.nftables.table.names import TABLE, CommentedElement, IntervalElement, Object, ObjectKey, Verdict

LARGE = 150_000
"""From so many elements on they are asked for by their keys."""
WORTHWHILE: Final = 1_000
"""Sets of fewer elements are not listed ahead: they take less than a millisecond."""
_ASKED = 256
"""So many elements at once: their answers wait in the socket's buffer."""

Elements = dict[ObjectKey, Object]
Listings = Mapping[str, Iterable[memoryview]]
"""The messages of the kernel's listings, by the set's name."""
NOTHING_AHEAD: Final[Listings] = MappingProxyType({})


def has_table(netlink: NetlinkSocket, family: Family) -> bool:
    """Report whether there is a table of our name in a family, whoever made it."""
    tables = [decode.table(payload) for payload in netlink.dump(MessageType.GETTABLE, encode.list_tables())]
    return any(table.name == TABLE and table.family == NFPROTO[family] for table in tables)


def read_ahead(netlink: NetlinkSocket, family: Family, declared: Iterable[SetDeclaration], sizes: range) -> Listings:
    """List the sets of such sizes, in a thread beside others; `read_elements` takes what comes of it."""
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
) -> Elements:
    """Read all elements of these sets of our table; those that are listed already are not asked for again."""
    found: dict[str, Elements] = {}
    for item in sorted(declared, key=_turn):
        pairs = _by_key(netlink, family, item, found) if item.count is not None and item.count >= large else None
        found[item.name] = dict(_listed(netlink, family, item, ahead) if pairs is None else pairs)
    elements: Elements = {}
    for name in tuple(found):
        elements.update(found.pop(name))
    return elements


def _turn(item: SetDeclaration) -> int:
    """Sort a map behind those that contain its keys."""
    return index.INDEXED.index(item.name) + 1 if item.name in index.INDEXED else 0


def _by_key(
    netlink: NetlinkSocket, family: Family, item: SetDeclaration, known: index.Elements
) -> list[tuple[ObjectKey, Object]] | None:
    """Read a map whose keys can be told; None if that are not all of its keys, or one of them is not there."""
    keys = index.keys(item.name, known) if item.name in index.INDEXED else None
    if keys is None or len(keys) != item.count or len(set(keys)) != len(keys):
        return None
    found: list[tuple[ObjectKey, Object]] = []
    try:
        for at in range(0, len(keys), _ASKED):
            found += _answered(netlink, family, item, keys[at : at + _ASKED])
    except (NetlinkError, DecodeError):
        netlink.drain()
        return None
    return found


def _answered(
    netlink: NetlinkSocket, family: Family, item: SetDeclaration, keys: Sequence[bytes]
) -> Iterator[tuple[ObjectKey, Object]]:
    request = encode.ask_elements(family, TABLE, item.name, keys)
    answers = netlink.answers(MessageType.GETSETELEM, request, len(keys))
    columns = decode_answers(answers, item.key_length, item.value_length)
    return zip(zip(repeat(item.name), columns.keys), columns.data, strict=False)


def _listed(
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
            yield (name, element.key), _value(element)


def _value(element: Element) -> Object:
    code, chain = element.verdict or (Code.GOTO, "")
    chain = chain if code == Code.GOTO else f"# verdict {code} {chain}"
    if element.key_end is not None:
        return IntervalElement(element.key_end, element.comment, element.data or b"", chain)
    if element.verdict is not None:
        return Verdict(chain)
    if not element.comment:
        return element.data or b""
    return CommentedElement(element.data or b"", element.comment)


def read_counted(family: Family, names: Iterable[str]) -> dict[str, list[ElementCounter]]:
    """Read these sets of our table of one family: elements by set, none where there is no such set.

    Elements that come or go meanwhile may be missing or stand there twice; of each the last is taken. Over a socket
    of its own, so that a scrape and a sync do not meet. Raise OSError where the kernel does not let itself be read.
    """
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        return {name: _read(netlink, family, name) for name in names}


def _read(netlink: NetlinkSocket, family: Family, name: str) -> list[ElementCounter]:
    found: dict[bytes, ElementCounter] = {}
    try:
        with suppress(DumpInterruptedError):
            for payload in netlink.dump(MessageType.GETSETELEM, encode.list_elements(family, TABLE, name)):
                found.update((each.key, each) for each in decode_counters(payload))
    except NetlinkError as error:
        if error.errno != errno.ENOENT:
            raise
    return list(found.values())
