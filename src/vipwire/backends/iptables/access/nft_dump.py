"""Reads a table out of nf_tables: every chain, and its rules in the words of iptables-nft-save.

Each chain is a dump of its own: the kernel begins a dump at the table's first rule for every 32 KB that it answers,
which would take time by the square of the table. A rule of others in a chain of theirs need not be understood, unless
it names something of Kubernetes.
"""

from collections.abc import Iterator
from typing import Final

from vipwire.backends.iptables.names import FIREWALL, TABLES
from vipwire.backends.iptables.read import is_ours
from vipwire.model.net import Family
from vipwire.netlink.attributes import attributes, text_of
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
    """List the chains of the tables that we write."""
    found: dict[str, list[str]] = {table: [] for table in TABLES}
    for payload in sock.dump(MessageType.GETCHAIN, wire.header(wire.NFPROTO[family])):
        chain = attributes(payload, _HEADER)
        table = text_of(chain[wire.CHAIN_TABLE])
        if table in found:
            found[table].append(text_of(chain[wire.CHAIN_NAME]))
    return found


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
