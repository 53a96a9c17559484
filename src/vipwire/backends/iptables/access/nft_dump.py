"""Reads a table out of nf_tables: every chain, and its rules in the words of iptables-nft-save.

Each chain is a dump of its own: the kernel begins a dump at the table's first rule for every 32 KB that it answers,
which would take time by the square of the table. A rule of others in a chain of theirs need not be understood, unless
it names something of Kubernetes.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vipwire.backends.iptables.names import FIREWALL, TABLES
from vipwire.backends.iptables.read import is_ours
from vipwire.errors import DecodeError
from vipwire.model.net import Family
from vipwire.netlink.attributes import string, text_of, walk
from vipwire.netlink.nftables import decode, encode, wire
from vipwire.netlink.nftables.wire import MessageType
from vipwire.netlink.socket import NetlinkSocket
from vipwire.xtables.binary.shown import Reader
from vipwire.xtables.binary.words import UnknownRuleError
from vipwire.xtables.save import Chains

DATAGRAM: Final = 1 << 16
"""More than the kernel ever answers at once to a dump."""
_HEADER: Final = 4
_NAMES_US: Final = b"KUBE-"
_UNREAD: Final = "# a rule of others"


def read_tables(sock: NetlinkSocket, family: Family, words: Reader) -> dict[str, Chains]:
    """Read all tables that we write; one that is not there is empty.

    Raise UnknownRuleError for a rule that is not understood and has to be; DumpInterruptedError if it has changed.
    """
    return {
        table: {chain: list(_rules(sock, family, words, table, chain)) for chain in chains}
        for table, chains in chains_of(sock, family).items()
    }


def chains_of(sock: NetlinkSocket, family: Family) -> dict[str, list[str]]:
    """List the chains of the tables that we write, all at once: the kernel tells those of a family."""
    found: dict[str, list[str]] = {table: [] for table in TABLES}
    wanted = {string(wire.CHAIN_TABLE, table): chains for table, chains in found.items()}
    for payload in sock.dump(MessageType.GETCHAIN, wire.header(wire.NFPROTO[family])):
        size = int.from_bytes(payload[_HEADER : _HEADER + 2], sys.byteorder)
        chains = wanted.get(bytes(payload[_HEADER : _HEADER + (size + 3 & ~3)]))  # the table is said first
        if chains is not None:
            chains.append(_name(payload))
    return found


def count_rules(sock: NetlinkSocket, family: Family, chains: Mapping[str, Iterable[str]]) -> int:
    """Count the rules of chains, by table."""
    return sum(
        1
        for table, each in chains.items()
        for chain in each
        for _ in sock.dump(MessageType.GETRULE, encode.list_rules(family, table, chain), DATAGRAM)
    )


def _name(payload: memoryview) -> str:
    """Find the name in a message of a dump of chains, quickly: these are many."""
    for kind, value in walk(payload, _HEADER):
        if kind == wire.CHAIN_NAME:
            return text_of(value)
    raise DecodeError("a chain without a name")


def _rules(sock: NetlinkSocket, family: Family, words: Reader, table: str, chain: str) -> Iterator[str]:
    ours = is_ours(table, chain) or chain == FIREWALL
    for payload in sock.dump(MessageType.GETRULE, encode.list_rules(family, table, chain), DATAGRAM):
        yield _read(words, decode.expressions(payload), needed=ours)


def _read(words: Reader, expressions: bytes, *, needed: bool) -> str:
    try:
        return words(expressions)
    except UnknownRuleError:
        if needed or _NAMES_US in expressions:
            raise
        return _UNREAD
