"""The operations of a transaction, and the requests for dumps.

A transaction is one datagram: BATCH_BEGIN, operations, BATCH_END. The kernel commits all of it or nothing, and
acknowledges the sequence number of each refused operation. Sequence numbers are consecutive from BATCH_BEGIN, by
which `refused` finds the operation.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from vipwire.linux.netlink.message import (
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    build_message,
    encode_attribute,
    encode_message,
    encode_nested,
    encode_string,
    encode_u32be,
)
from vipwire.linux.netlink.nftables import userdata, wire
from vipwire.linux.netlink.nftables.elements import plain_elements
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.model.net import Family
from vipwire.model.value import Value

T = TypeVar("T")


class Operation(NamedTuple):
    """One message of a transaction; `payload` begins with the nfnetlink header."""

    kind: MessageType
    flags: int
    payload: bytes


class NetfilterHook(Value, frozen=True):
    """The hook of a base chain. `hook` is the number of the netfilter hook (0 prerouting … 4 postrouting).

    `type` is `filter`, `nat` or `route`; the kernel calls smaller priorities first; `policy` is `accept` or `drop`.
    `devices` are the interfaces of a chain at ingress or egress (decoded only), a prefix with `*`.
    """

    type: str
    hook: int
    priority: int
    policy: str = "accept"
    devices: tuple[str, ...] = ()


HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
POLICIES = {"drop": 0, "accept": 1}
_MARK = wire.encode_header(0, wire.SUBSYSTEM)


def encode_transaction(operations: Sequence[Operation], first: int, generation: int | None = None) -> list[bytes]:
    """Assemble a batch as parts, with len(operations) + 2 sequence numbers: that of BATCH_BEGIN is `first`.

    Only the last operation asks for an acknowledgement, which covers all. The kernel acknowledges refusals in any
    case, and refuses the batch (ERESTART) if another program has committed since `generation`.
    """
    guard = b"" if generation is None else encode_u32be(wire.BATCH_GENERATION, generation)
    parts = [encode_message(wire.BATCH_BEGIN, NLM_F_REQUEST, first, _MARK + guard)]
    last = len(operations) - 1
    for index, (kind, flags, payload) in enumerate(operations):
        wanted = NLM_F_REQUEST | NLM_F_ACK if index == last else NLM_F_REQUEST
        parts += build_message(kind, flags | wanted, first + 1 + index, payload)
    parts.append(encode_message(wire.BATCH_END, NLM_F_REQUEST, first + 1 + len(operations), _MARK))
    return parts


def find_refused(operations: Sequence[T], first: int, sequence: int) -> T | None:
    """Return the operation of an acknowledgement's sequence number; None for the batch as a whole."""
    index = sequence - first - 1
    return operations[index] if 0 <= index < len(operations) else None


def new_table(family: Family, name: str, comment: str = "") -> Operation:
    """Create a table unless it exists."""
    body = encode_string(wire.TABLE_NAME, name) + encode_u32be(wire.TABLE_FLAGS, 0)
    if comment:
        body += encode_attribute(wire.TABLE_USERDATA, userdata.encode_comment(comment))
    return _build_operation(MessageType.NEWTABLE, NLM_F_CREATE, family, body)


def delete_table(family: Family, name: str) -> Operation:
    return _build_operation(MessageType.DELTABLE, 0, family, encode_string(wire.TABLE_NAME, name))


def new_chain(family: Family, table: str, name: str, hook: NetfilterHook | None = None) -> Operation:
    """Create a chain; with `hook`, a base chain. An existing one keeps its rules and takes the policy."""
    body = encode_string(wire.CHAIN_TABLE, table) + encode_string(wire.CHAIN_NAME, name)
    if hook is not None:
        body += encode_string(wire.CHAIN_TYPE, hook.type)
        body += encode_u32be(wire.CHAIN_POLICY, POLICIES[hook.policy])
        number, priority = (
            encode_u32be(wire.HOOK_NUMBER, hook.hook),
            encode_u32be(wire.HOOK_PRIORITY, hook.priority & 0xFFFFFFFF),
        )
        body += encode_nested(wire.CHAIN_HOOK, number, priority)
    return _build_operation(MessageType.NEWCHAIN, NLM_F_CREATE, family, body)


def delete_chain(family: Family, table: str, name: str) -> Operation:
    """Delete a chain with its rules; no rule may refer to it."""
    return _build_operation(
        MessageType.DELCHAIN, 0, family, encode_string(wire.CHAIN_TABLE, table) + encode_string(wire.CHAIN_NAME, name)
    )


def new_rule(family: Family, table: str, chain: str, expressions: bytes) -> Operation:
    """Append a rule; `expressions` comes from `compile_rule`."""
    body = encode_string(wire.RULE_TABLE, table) + encode_string(wire.RULE_CHAIN, chain)
    body += encode_nested(wire.RULE_EXPRESSIONS, expressions)
    return _build_operation(MessageType.NEWRULE, NLM_F_CREATE | NLM_F_APPEND, family, body)


def flush_chain(family: Family, table: str, chain: str) -> Operation:
    return _build_operation(
        MessageType.DELRULE, 0, family, encode_string(wire.RULE_TABLE, table) + encode_string(wire.RULE_CHAIN, chain)
    )


def new_set(family: Family, table: str, name: str, declaration: bytes) -> Operation:
    """Create a set or map that does not exist; `declaration` comes from `compile_set`."""
    body = encode_string(wire.SET_TABLE, table) + encode_string(wire.SET_NAME, name) + declaration
    return _build_operation(MessageType.NEWSET, NLM_F_CREATE | NLM_F_EXCL, family, body)


def delete_set(family: Family, table: str, name: str) -> Operation:
    """Delete a set or map with its elements; no rule may refer to it."""
    return _build_operation(
        MessageType.DELSET, 0, family, encode_string(wire.SET_TABLE, table) + encode_string(wire.SET_NAME, name)
    )


def _build_operation(kind: MessageType, flags: int, family: Family, body: bytes) -> Operation:
    return Operation(kind, flags, wire.encode_header(wire.NFPROTO[family]) + body)


# An attribute's length has 16 bits, and NFTA_SET_ELEM_LIST_ELEMENTS holds all elements of a message.
ELEMENTS_PER_MESSAGE = 60_000


def _build_element_operations(
    kind: MessageType, flags: int, family: Family, table: str, name: str, blobs: Iterable[bytes]
) -> list[Operation]:
    head, blobs = list_elements(family, table, name), list(blobs)
    parts = _split_blobs(blobs) if len(blobs) != 1 else (blobs,)
    return [Operation(kind, flags, head + encode_nested(wire.ELEMENTS_LIST, *part)) for part in parts]


def _split_blobs(blobs: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if len(set(map(len, blobs))) == 1:
        count = max(1, ELEMENTS_PER_MESSAGE // len(blobs[0]))
        yield from (blobs[at : at + count] for at in range(0, len(blobs), count))
        return
    part: list[bytes] = []
    size = 0
    for blob in blobs:
        if size + len(blob) > ELEMENTS_PER_MESSAGE and part:
            yield part
            part, size = [], 0
        part.append(blob)
        size += len(blob)
    if part:
        yield part


def new_elements(family: Family, table: str, name: str, blobs: Iterable[bytes]) -> list[Operation]:
    """Add elements (from `elements.element`) to a set, in as few operations as possible.

    The kernel ignores an existing element, but refuses a map element with other data (EEXIST).
    """
    return _build_element_operations(MessageType.NEWSETELEM, NLM_F_CREATE, family, table, name, blobs)


def delete_elements(family: Family, table: str, name: str, blobs: Iterable[bytes]) -> list[Operation]:
    """Remove elements by their keys. The kernel refuses a missing one (ENOENT)."""
    return _build_element_operations(MessageType.DELSETELEM, 0, family, table, name, blobs)


def flush_set(family: Family, table: str, name: str) -> Operation:
    body = encode_string(wire.ELEMENTS_TABLE, table) + encode_string(wire.ELEMENTS_SET, name)
    return _build_operation(MessageType.DELSETELEM, 0, family, body)


def list_tables() -> bytes:
    return wire.encode_header(0)


def list_objects(family: Family, table: str) -> bytes:
    """Encode the payload of a dump of a table's chains, rules or sets (Kind.GETCHAIN, GETRULE, GETSET).

    The kernel does not filter chains by table: compare the decoded table.
    """
    return wire.encode_header(wire.NFPROTO[family]) + encode_string(wire.TABLE_NAME, table)


@lru_cache(maxsize=256)  # each transaction names a few sets of a few dozen
def list_elements(family: Family, table: str, name: str) -> bytes:
    head = wire.encode_header(wire.NFPROTO[family])
    return head + encode_string(wire.ELEMENTS_TABLE, table) + encode_string(wire.ELEMENTS_SET, name)


def request_elements(family: Family, table: str, name: str, keys: Sequence[bytes]) -> bytes:
    """Encode the payload of a request (Kind.GETSETELEM) for elements by their keys, all of one size.

    The kernel answers each with a message; the first missing one ends the request (ENOENT).
    """
    blobs = plain_elements(keys, [b""] * len(keys))
    return list_elements(family, table, name) + encode_nested(wire.ELEMENTS_LIST, *blobs)


def request_generation() -> bytes:
    return wire.encode_header(0)
