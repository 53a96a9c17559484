"""Reads a table out of nf_tables: every chain, and its rules in the words of iptables-nft-save.

What a chain should hold may be known: then its bytes are compared, and only those that differ are read.

Each chain is a dump of its own: the kernel begins a dump at the table's first rule for every 32 KB that it answers,
which would take time by the square of the table. A rule of others in a chain of theirs need not be understood, unless
it names something of Kubernetes.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire.linux.netlink.message import NLM_F_DUMP_INTR, messages
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.decode import chain_names
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_compare import expressions_at, holds
from vipwire.modes.iptables.access.tool_access import NAMES_US, Known
from vipwire.modes.iptables.rules.names import FIREWALL, TABLES, Rules
from vipwire.modes.iptables.rules.read import is_ours
from vipwire.modes.xtables.binary.expressions import Encoder
from vipwire.modes.xtables.binary.shown import Reader
from vipwire.modes.xtables.binary.words import UnknownRuleError
from vipwire.modes.xtables.save import Chains

DATAGRAM: Final = 1 << 15
"""More than the kernel ever answers at once to a dump."""
_UNREAD: Final = "# a rule of others"


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads the tables of one family."""

    sock: NetlinkSocket
    family: Family
    encoder: Encoder
    words: Reader

    def read(self, known: Callable[[], Known]) -> dict[str, Chains]:
        """Read all tables that we write; one that is not there is empty.

        Raise UnknownRuleError for a rule that is not understood and has to be; DumpInterruptedError if it changed.
        """
        found = chains_of(self.sock, self.family)
        ours = any(NAMES_US in chain for chains in found.values() for chain in chains)
        expected = known() if ours else {}
        return {table: dict(self._chains(table, chains, expected.get(table, {}))) for table, chains in found.items()}

    def _chains(
        self, table: str, chains: Iterable[str], known: Mapping[str, Rules]
    ) -> Iterator[tuple[str, Sequence[str]]]:
        for chain in chains:
            request = encode.list_rules(self.family, table, chain)
            dump = self.sock.dump_whole(MessageType.GETRULE, request, DATAGRAM)
            rules = known.get(chain)
            if rules is None or not self._holds(dump, request, rules):
                rules = tuple(self._rules(dump, needed=is_ours(table, chain) or chain == FIREWALL))
            yield chain, rules

    def _holds(self, dump: bytes, request: bytes, rules: Rules) -> bool:
        try:
            return holds(dump, expressions_at(request), map(self.encoder.halves, rules))
        except UnknownRuleError:
            return False

    def _rules(self, dump: bytes, *, needed: bool) -> Iterator[str]:
        for message in messages(dump):
            if message.flags & NLM_F_DUMP_INTR:
                raise DumpInterruptedError(errno.EINTR, "the dump was interrupted by a change")
            expressions = decode.expressions(message.payload)
            try:
                yield self.words(expressions)
            except UnknownRuleError:
                if needed or NAMES_US.encode() in expressions:
                    raise
                yield _UNREAD


def chains_of(sock: NetlinkSocket, family: Family) -> dict[str, list[str]]:
    """List the chains of the tables that we write."""
    found = chain_names(sock, family)
    return {table: [*found.get(table, ())] for table in TABLES}


def count_rules(sock: NetlinkSocket, family: Family, chains: Mapping[str, Iterable[str]]) -> int:
    """Count the rules of chains, by table."""
    return sum(
        1
        for table, each in chains.items()
        for chain in each
        for _ in sock.dump(MessageType.GETRULE, encode.list_rules(family, table, chain), DATAGRAM)
    )
