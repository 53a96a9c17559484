"""Reads a table from nf_tables: every chain, with its rules in the words of iptables-nft-save.

If the expected rules of a chain are known, their bytes are compared, and only differing chains are decoded. Each
chain is a separate dump: for every 32 KB of answer the kernel starts again at the table's first rule, which takes
quadratic time. A foreign rule in a foreign chain need not be decodable unless it names a chain of Kubernetes.
"""

import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire.linux.netlink.message import HEADER, NLM_F_DUMP_INTR, TYPE_MASK, split_messages
from vipwire.linux.netlink.nftables import decode, wire, xtables_rules
from vipwire.linux.netlink.nftables.decode import list_chain_names
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.iptables.access.tool_access import NAMES_US, Known
from vipwire.modes.iptables.rules.names import FIREWALL, TABLES, Rules
from vipwire.modes.iptables.rules.read import is_ours
from vipwire.modes.xtables.binary.expressions import COUNTER_NUMBERS, Encoder, Halves
from vipwire.modes.xtables.binary.shown import RuleReader
from vipwire.modes.xtables.binary.words import UnknownRuleError
from vipwire.modes.xtables.save import Chains

_ATTRIBUTE: Final = struct.Struct("=HH")
_HANDLE: Final = 12
_NUMBERS: Final = len(COUNTER_NUMBERS)


def find_expressions(request: bytes) -> int:
    """Return the offset of the expressions in the message of a chain's first rule.

    `request` asked for the chain; both messages begin with a header, the table and the chain.
    """
    return HEADER.size + len(request) + _HANDLE


def has_rules(dump: bytes, begin: int, rules: Iterable[Halves]) -> bool:
    """Report whether the messages of a dump are exactly these rules, without decoding them. Pure.

    `begin` is the result of `find_expressions`. The kernel lists a rule as table, chain, handle, handle of the
    previous rule, and expressions (nf_tables_fill_rule_info). In one chain only the expressions can differ, of which
    counter values are ignored. A rule with more attributes has another length.
    """
    at, end = 0, len(dump)
    for before, after, _ in rules:
        expressions = at + begin
        counter = expressions + _ATTRIBUTE.size + len(before)
        behind = counter + _NUMBERS
        following = behind + len(after)
        if following > end or HEADER.unpack_from(dump, at)[0] != following - at:
            return False
        size, kind = _ATTRIBUTE.unpack_from(dump, expressions)
        if size != following - expressions or kind & TYPE_MASK != wire.RULE_EXPRESSIONS:
            return False
        if not (dump.startswith(before, expressions + _ATTRIBUTE.size) and dump.startswith(after, behind)):
            return False
        if not at:
            begin += _HANDLE
        at = following
    return at == end


DATAGRAM: Final = 1 << 15
"""More than the kernel's largest answer to a dump."""
_UNREAD: Final = "# a rule of others"


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads the tables of one family."""

    sock: NetlinkSocket
    family: Family
    encoder: Encoder
    words: RuleReader

    def read(self, known: Callable[[], Known]) -> dict[str, Chains]:
        """Read all tables that vipwire writes; a missing one is empty.

        Raise UnknownRuleError for an undecodable rule that matters; DumpInterruptedError if the table changed
        meanwhile.
        """
        found = list_chains(self.sock, self.family)
        ours = any(NAMES_US in chain for chains in found.values() for chain in chains)
        expected = known() if ours else {}
        return {
            table: dict(self._read_chains(table, chains, expected.get(table, {}))) for table, chains in found.items()
        }

    def _read_chains(
        self, table: str, chains: Iterable[str], known: Mapping[str, Rules]
    ) -> Iterator[tuple[str, Sequence[str]]]:
        for chain in chains:
            request = xtables_rules.list_rules(self.family, table, chain)
            dump = self.sock.dump_whole(MessageType.GETRULE, request, DATAGRAM)
            rules = known.get(chain)
            if rules is None or not self._has_expected_rules(dump, request, rules):
                rules = tuple(self._read_rules(dump, needed=is_ours(table, chain) or chain == FIREWALL))
            yield chain, rules

    def _has_expected_rules(self, dump: bytes, request: bytes, rules: Rules) -> bool:
        try:
            return has_rules(dump, find_expressions(request), map(self.encoder.split_rule, rules))
        except UnknownRuleError:
            return False

    def _read_rules(self, dump: bytes, *, needed: bool) -> Iterator[str]:
        for message in split_messages(dump):
            if message.flags & NLM_F_DUMP_INTR:
                raise DumpInterruptedError(errno.EINTR, "the dump was interrupted by a change")
            expressions = decode.decode_expressions(message.payload)
            try:
                yield self.words(expressions)
            except UnknownRuleError:
                if needed or NAMES_US.encode() in expressions:
                    raise
                yield _UNREAD


def list_chains(sock: NetlinkSocket, family: Family) -> dict[str, list[str]]:
    found = list_chain_names(sock, family)
    return {table: [*found.get(table, ())] for table in TABLES}


def count_rules(sock: NetlinkSocket, family: Family, chains: Mapping[str, Iterable[str]]) -> int:
    return sum(
        1
        for table, each in chains.items()
        for chain in each
        for _ in sock.dump(MessageType.GETRULE, xtables_rules.list_rules(family, table, chain), DATAGRAM)
    )
