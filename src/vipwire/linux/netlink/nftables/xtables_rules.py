"""The operations and requests for tables of iptables-nft: chains and rules with matches and targets of xtables."""

from collections.abc import Iterable
from functools import lru_cache

from vipwire.linux.netlink.message import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    encode_attribute,
    encode_nested,
    encode_string,
    encode_u32be,
)
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.model.net import Family


def open_table(family: Family, name: str) -> Operation:
    """Create a table unless it exists; keeps an existing table's flags."""
    payload = wire.encode_header(wire.NFPROTO[family]) + encode_string(wire.TABLE_NAME, name)
    return Operation(MessageType.NEWTABLE, NLM_F_CREATE, payload)


def recreate_chains(family: Family, table: str, names: Iterable[str]) -> list[Operation]:
    """Create chains; the kernel refuses an existing one (EEXIST)."""
    head = wire.encode_header(wire.NFPROTO[family]) + encode_string(wire.CHAIN_TABLE, table)
    kind, flags = MessageType.NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL
    return [Operation(kind, flags, head + encode_string(wire.CHAIN_NAME, name)) for name in names]


def new_xtables_rules(
    family: Family, table: str, chain: str, rules: Iterable[tuple[bytes, int]], *, first: bool = False
) -> list[Operation]:
    """Append rules of xtables, each with the protocol of its matches; `first`: prepend them."""
    head = list_rules(family, table, chain)
    flags = NLM_F_CREATE if first else NLM_F_CREATE | NLM_F_APPEND
    kind = MessageType.NEWRULE
    return [
        Operation(
            kind, flags, b"".join((head, encode_nested(wire.RULE_EXPRESSIONS, expressions), _encode_compat(protocol)))
        )
        for expressions, protocol in rules
    ]


@lru_cache
def _encode_compat(protocol: int) -> bytes:
    if not protocol:
        return b""
    return encode_nested(
        wire.RULE_COMPATIBLE, encode_u32be(wire.COMPATIBLE_PROTOCOL, protocol), encode_u32be(wire.COMPATIBLE_FLAGS, 0)
    )


def delete_rule(family: Family, table: str, chain: str, handle: int) -> Operation:
    which = encode_attribute(wire.RULE_HANDLE, handle.to_bytes(8))
    return Operation(MessageType.DELRULE, 0, list_rules(family, table, chain) + which)


def list_rules(family: Family, table: str, chain: str) -> bytes:
    return _encode_table_prefix(family, table) + encode_string(wire.RULE_CHAIN, chain)


@lru_cache
def _encode_table_prefix(family: Family, table: str) -> bytes:
    return wire.encode_header(wire.NFPROTO[family]) + encode_string(wire.RULE_TABLE, table)


def request_chain(family: Family, table: str, chain: str) -> bytes:
    return (
        wire.encode_header(wire.NFPROTO[family])
        + encode_string(wire.CHAIN_TABLE, table)
        + encode_string(wire.CHAIN_NAME, chain)
    )
