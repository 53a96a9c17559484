"""Prints kernel objects in nft's syntax, for errors, dry runs and explanations; never for the kernel."""

import struct
from collections.abc import Iterator
from functools import lru_cache

from vipwire.linux.netlink.nftables.wire import FLOWTABLE_COUNTER
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.modes.nftables.language import SetSpec, is_type
from vipwire.modes.nftables.table.blocks import split_block
from vipwire.modes.nftables.table.names import (
    CHAIN,
    FLOWTABLE,
    SET,
    TABLE,
    Block,
    Chain,
    CommentedElement,
    FlowtableSpec,
    Goto,
    IntervalElement,
    Object,
    ObjectKey,
)
from vipwire.modes.nftables.table.skeleton import declare_sets
from vipwire.reconcile.delta import Delta


def format_table_name(family: Family, name: str = TABLE) -> str:
    """Return a table's name in nft's syntax: `ip vipwire`."""
    return f"{'ip' if family is Family.IPV4 else 'ip6'} {name}"


def write_script(family: Family, delta: Delta[ObjectKey, Object]) -> Iterator[str]:
    """Write a difference as nft commands, removals first."""
    table = format_table_name(family)
    yield f"add table {table}"
    for key, old in delta.removed.items():
        yield _write_command("delete", table, family, key, old)
    for key, (old, new) in delta.changed.items():
        if isinstance(new, Chain) and isinstance(old, Chain):
            name = f"{table} {key[1].decode()}"
            yield f"flush chain {name}"
            if old.hook != new.hook:
                yield f"delete chain {name}\nadd chain {name}{_write_hook(new)}"
        else:
            yield _write_command("delete", table, family, key, old)
        yield _write_command("add", table, family, key, new)
    declared = sorted(delta.added.items(), key=lambda item: _rank_value(item[1]))
    for key, new in declared:
        if isinstance(new, Chain):
            yield f"add chain {table} {key[1].decode()}{_write_hook(new)}"
    for key, new in declared:
        yield _write_command("add", table, family, key, new)


def describe_key(family: Family, key: ObjectKey) -> str:
    """Name one object: `chain services`, `element service-ips 10.96.0.1 . tcp . 80`."""
    name, rest = key
    if name in (CHAIN, SET, FLOWTABLE):
        return f"{name}{rest.decode()}"
    return f"element {name} {_write_key(family, name, rest)}"


def _rank_value(value: Object) -> int:
    return 0 if isinstance(value, SetSpec | FlowtableSpec) else 2 if isinstance(value, Chain) else 1


def _write_hook(chain: Chain) -> str:
    hook = chain.hook
    return f" {{ type {hook.type} hook {hook.hook} priority {hook.priority}; }}" if hook else ""


def _write_command(verb: str, table: str, family: Family, key: ObjectKey, value: Object) -> str:
    name, rest = key
    match value:
        case Block():
            elements = split_block(rest, value).items()
            return "\n".join(_write_command(verb, table, family, (name, each), data) for each, data in elements)
        case Chain(rules):
            if verb == "delete":
                return f"flush chain {table} {rest.decode()}\ndelete chain {table} {rest.decode()}"
            return "\n".join(f"add rule {table} {rest.decode()} {rule}" for rule in rules)
        case FlowtableSpec(priority, flags):
            hook = f" {{ hook ingress priority {priority};{' counter;' if flags & FLOWTABLE_COUNTER else ''} }}"
            return f"{verb} flowtable {table} {rest.decode()}{hook if verb == 'add' else ''}"
        case SetSpec():
            kind = "set" if value.data is None else "map"
            return f"{verb} {kind} {table} {rest.decode()}" + (_write_declaration(value) if verb == "add" else "")
    return f"{verb} element {table} {name} {{ {write_element(family, key, value)} }}"


def _write_declaration(spec: SetSpec) -> str:
    data = "" if spec.data is None else " : " + (spec.data if spec.data == "verdict" else " . ".join(spec.data))
    how = "type" if is_type(spec.key[0]) else "typeof"
    more = (
        f" size {spec.size};" if spec.size else "",
        f" flags {','.join(sorted(spec.flags))};" if spec.flags else "",
        " counter;" if spec.counter else "",
        f" timeout {spec.timeout_seconds}s;" if spec.timeout_seconds else "",
        f" gc-interval {spec.gc_seconds}s;" if spec.gc_seconds else "",
    )
    return f" {{ {how} {' . '.join(spec.key)}{data};{''.join(more)} }}"


def write_element(family: Family, key: ObjectKey, value: Object) -> str:
    """Write one element as nft lists it: `10.96.0.1 . tcp . 80 comment "default/web" : 1:a`."""
    name, rest = key
    text = _write_key(family, name, rest)
    spec = _map_specs_by_name(family).get(name)
    match value:
        case IntervalElement(last, comment, data, chain):
            text = f"{_write_range(family, name, rest, last)}{_write_comment(comment)}"
            if chain:
                return f"{text} : goto {chain}"
        case Goto(chain):
            return f"{text} : goto {chain}"
        case CommentedElement(data, comment):
            text += _write_comment(comment)
        case bytes(data):
            pass
        case _:
            return text
    if not data or spec is None or spec.data is None:
        return text
    return f"{text} : {' . '.join(_write_parts(tuple(spec.data), data))}"


def _write_comment(comment: str) -> str:
    return f' comment "{comment}"' if comment else ""


@lru_cache(maxsize=2)
def _map_specs_by_name(family: Family) -> dict[str, SetSpec]:
    return {spec.name: spec for spec in declare_sets(family)}


def _write_key(family: Family, name: str, key: bytes) -> str:
    spec = _map_specs_by_name(family).get(name)
    return " . ".join(_write_parts(spec.key, key, ordered="interval" in spec.flags)) if spec else key.hex()


def _write_range(family: Family, name: str, first: bytes, last: bytes) -> str:
    spec = _map_specs_by_name(family)[name]
    low, high = (list(_write_parts(spec.key, key, ordered=True)) for key in (first, last))
    for at, (from_, to) in enumerate(zip(low, high, strict=True)):
        if from_ != to:
            low[at] = f"{from_}-{to}"
    if spec.key[-1].endswith("addr") and low[-1] != high[-1]:
        length = 4 if family is Family.IPV4 else 16
        bits = int.from_bytes(first[-length:]) ^ int.from_bytes(last[-length:])
        low[-1] = str(Prefix(Address(first[-length:]), length * 8 - bits.bit_length()))
    return " . ".join(low)


def _write_parts(expressions: tuple[str, ...], data: bytes, *, ordered: bool = False) -> Iterator[str]:
    at = 0
    for expression in expressions:
        if expression.endswith("addr"):
            length = 16 if expression.startswith("ip6") else 4
            yield format_address(Address(data[at : at + length]))
        elif expression == "meta l4proto":
            length = 4
            yield Protocol(data[at]).label
        elif expression == "th dport":
            length = 4
            yield str(int.from_bytes(data[at : at + 2]))
        else:
            length = 4
            (number,) = struct.unpack_from(">I" if ordered else "=I", data, at)
            yield f"{number >> 16:x}:{number & 0xFFFF:x}"
        at += length
