"""Reads a table out of nf_tables: every chain, and its rules in the words of iptables-nft-save.

A rule of others in a chain of theirs need not be understood, unless it names something of Kubernetes.
"""

from typing import Final

from vipwire.backends.iptables.names import FIREWALL
from vipwire.backends.iptables.read import is_ours
from vipwire.model.net import Family
from vipwire.netlink.attributes import attributes, text_of
from vipwire.netlink.nftables import encode, wire
from vipwire.netlink.nftables.wire import MessageType
from vipwire.netlink.socket import NetlinkSocket
from vipwire.xtables.binary.shown import Reader
from vipwire.xtables.binary.words import UnknownRuleError
from vipwire.xtables.save import Chains

_HEADER: Final = 4
_NAMES_US: Final = b"KUBE-"
_UNREAD: Final = "# a rule of others"


def read_chains(sock: NetlinkSocket, family: Family, words: Reader, table: str) -> Chains:
    """Read a table; it is empty if there is none.

    Raise UnknownRuleError for a rule that is not understood and has to be; DumpInterruptedError if it has changed.
    """
    request = encode.list_objects(family, table)
    found: Chains = {}
    for payload in sock.dump(MessageType.GETCHAIN, request):
        chain = attributes(payload, _HEADER)
        if text_of(chain[wire.CHAIN_TABLE]) == table:
            found[text_of(chain[wire.CHAIN_NAME])] = []
    current, rules = b"", []
    ours = False
    for payload in sock.dump(MessageType.GETRULE, request):
        rule = attributes(payload, _HEADER)
        name = bytes(rule[wire.RULE_CHAIN])
        if name != current:
            current, chain_name = name, text_of(rule[wire.RULE_CHAIN])
            rules = found.setdefault(chain_name, [])
            ours = is_ours(table, chain_name) or chain_name == FIREWALL
        rules.append(_read(words, bytes(rule.get(wire.RULE_EXPRESSIONS, b"")), needed=ours))
    return found


def _read(words: Reader, expressions: bytes, *, needed: bool) -> str:
    try:
        return words(expressions)
    except UnknownRuleError:
        if needed or _NAMES_US in expressions:
            raise
        return _UNREAD
