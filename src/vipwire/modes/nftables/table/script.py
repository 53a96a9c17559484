"""Turns a difference into the operations of one transaction, in an order that the kernel accepts.

sets, flowtables and chains
              appear          before rules or elements refer to them
base chains whose hook differs
              are replaced    the kernel changes no hook, and no rule refers to a base chain
sets of another layout
              are emptied     they may refer to chains that disappear
elements go, then come        a changed element goes and comes: the kernel has no operation for a change
rules are written             a changed chain is emptied and filled, atomically
chains, flowtables and sets
              disappear       after all rules and elements that refer to them
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeGuard

from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.elements import encode_element_attributes, plain_elements
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.nftables.flowtables import delete_flowtable, new_flowtable
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Family
from vipwire.modes.nftables.language import SetSpec, compile_set
from vipwire.modes.nftables.table import names
from vipwire.modes.nftables.table.blocks import encode_block, find_missing, split_block
from vipwire.modes.nftables.table.names import (
    CHAIN,
    FLOWTABLE,
    SET,
    TABLE,
    Block,
    Chain,
    CommentedElement,
    FlowtableSpec,
    IntervalElement,
    Object,
    ObjectKey,
)
from vipwire.modes.nftables.table.skeleton import compile_cached
from vipwire.reconcile.delta import Delta

COMMENT = "vipwire: Kubernetes Services; every change by hand is undone"
_AT_ONCE: Final = 4096
NO_SIZES: Final[Mapping[str, int]] = MappingProxyType({})


class _Group:
    """Objects of one set or kind. Two lists need less memory than pairs, of which a first sync would have 200,000."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        """Without their first part."""
        self.values: list[Object] = []

    def __iter__(self) -> Iterator[tuple[bytes, Object]]:
        return zip(self.keys, self.values, strict=True)

    def parts(self) -> Iterator["_Group"]:
        """Split a large group, whose elements need less memory if they are not encoded all at once."""
        for at in range(0, len(self.keys), _AT_ONCE):
            part = _Group()
            part.keys, part.values = self.keys[at : at + _AT_ONCE], self.values[at : at + _AT_ONCE]
            yield part


_Groups: TypeAlias = dict[str, _Group]


class DescribedOperation(NamedTuple):
    """One operation, with its description for an error."""

    operation: Operation
    words: str


def build_operations(
    family: Family, delta: Delta[ObjectKey, Object], *, recreate: bool = False, sizes: Mapping[str, int] = NO_SIZES
) -> list[DescribedOperation]:
    """Write a difference. `recreate`: delete the table and write all of `delta`, which must only add.

    `sizes` are those of the hashes among the sets of `delta`; other sets have the size of their declarations.
    """
    return list(_order_operations(family, delta, sizes, recreate=recreate))


def replace_sets(
    family: Family, sets: Iterable[SetSpec], elements: Mapping[ObjectKey, Object], chains: Mapping[str, Chain]
) -> list[DescribedOperation]:
    """Make sets with elements anew, in one transaction. `chains` are all whose rules refer to the sets."""
    groups = _group_objects(elements.items())
    replaced = [_flush_chain(family, name) for name in chains]
    for spec in sets:
        replaced += _delete_set(family, spec.name), _new_set(family, spec)
        group = groups.get(spec.name)
        replaced += _build_element_operations(family, {spec.name: group}, adding=True) if group else ()
    for name, chain in chains.items():
        replaced += _new_rules(family, name, chain)
    return replaced


def _order_operations(
    family: Family, delta: Delta[ObjectKey, Object], sizes: Mapping[str, int], *, recreate: bool
) -> Iterator[DescribedOperation]:
    if recreate:  # the table may be absent, and deleting an absent one is refused
        yield DescribedOperation(encode.new_table(family, TABLE), "add table")
        yield DescribedOperation(encode.delete_table(family, TABLE), "delete table")
    added, removed, coming, going = _group_sides(delta)
    if recreate or SET in added:
        yield DescribedOperation(encode.new_table(family, TABLE, COMMENT), "add table")
    if added:
        yield from _declare_objects(family, added, sizes)
    yield from _new_hooks(family, going, coming)
    for key, value in removed.get(SET, ()):
        if isinstance(value, SetSpec) and not value.key:  # of another layout: vipwire has not read its elements
            yield DescribedOperation(encode.flush_set(family, TABLE, key.decode()), f"flush set {key.decode()}")
    yield from _build_element_operations(family, going, adding=False)
    for name, _ in _list_chains(going) if CHAIN in going else ():
        yield _flush_chain(family, name)
    for name, chain in _list_chains(coming) if CHAIN in coming else ():
        yield from _new_rules(family, name, chain)
    yield from _build_element_operations(family, coming, adding=True)
    if removed:
        yield from _remove_objects(family, removed)


def _group_sides(delta: Delta[ObjectKey, Object]) -> tuple[_Groups, _Groups, _Groups, _Groups]:
    """Group the additions and the removals; a change counts as both."""
    added = _group_objects(delta.added.items()) if delta.added else {}
    removed = _group_objects(delta.removed.items()) if delta.removed else {}
    if not delta.changed:
        return added, removed, added, removed
    coming, going = list(delta.added.items()), list(delta.removed.items())
    for key, (old, new) in delta.changed.items():
        coming += _list_replaced(key, new, old)
        going += _list_replaced(key, old, new)
    return added, removed, _group_objects(coming), _group_objects(going)


def _list_replaced(key: ObjectKey, value: Object, other: Object) -> Iterable[tuple[ObjectKey, Object]]:
    """List what a changed object has and its other state lacks."""
    if not isinstance(value, Block):
        return [(key, value)]
    return [((key[0], each), data) for each, data in find_missing(key[1], value, other).items()]


def _group_objects(objects: Iterable[tuple[ObjectKey, Object]]) -> _Groups:
    """Group objects by message: one for the elements of each set, one for all chains, all sets, all flowtables."""
    groups: _Groups = {}
    for (name, key), value in objects:
        if (group := groups.get(name)) is None:
            group = groups[name] = _Group()
        group.keys.append(key)
        group.values.append(value)
    return groups


def _declare_objects(family: Family, added: _Groups, sizes: Mapping[str, int]) -> Iterator[DescribedOperation]:
    for _, value in added.get(SET, ()):
        if isinstance(value, SetSpec):
            yield _new_set(family, replace(value, size=sizes[value.name]) if value.name in sizes else value)
    for key, value in added.get(FLOWTABLE, ()):
        if isinstance(value, FlowtableSpec):
            name = key.decode()
            operation = new_flowtable(family, TABLE, name, value.priority, value.flags)
            yield DescribedOperation(operation, f"add flowtable {name}")
    for name, chain in _list_chains(added):
        yield DescribedOperation(encode.new_chain(family, TABLE, name, _encode_hook(chain)), f"add chain {name}")


def _encode_hook(chain: Chain) -> encode.NetfilterHook | None:
    hook = chain.hook
    return None if hook is None else encode.NetfilterHook(hook.type, encode.HOOKS[hook.hook], hook.priority)


def _new_hooks(family: Family, going: _Groups, coming: _Groups) -> Iterator[DescribedOperation]:
    before = dict(_list_chains(going)) if CHAIN in going else {}
    for name, chain in _list_chains(coming) if before else ():
        if name in before and before[name].hook != chain.hook:
            yield DescribedOperation(encode.delete_chain(family, TABLE, name), f"delete chain {name}")
            yield DescribedOperation(encode.new_chain(family, TABLE, name, _encode_hook(chain)), f"add chain {name}")


def _remove_objects(family: Family, removed: _Groups) -> Iterator[DescribedOperation]:
    for name, _ in _list_chains(removed):
        yield DescribedOperation(encode.delete_chain(family, TABLE, name), f"delete chain {name}")
    for key, _ in removed.get(FLOWTABLE, ()):
        name = key.decode()
        yield DescribedOperation(delete_flowtable(family, TABLE, name), f"delete flowtable {name}")
    for key, _ in removed.get(SET, ()):
        yield _delete_set(family, key.decode())


def _new_set(family: Family, spec: SetSpec) -> DescribedOperation:
    operation = encode.new_set(family, TABLE, spec.name, compile_set(spec, family))
    return DescribedOperation(operation, f"add set {spec.name}")


def _delete_set(family: Family, name: str) -> DescribedOperation:
    return DescribedOperation(encode.delete_set(family, TABLE, name), f"delete set {name}")


def _flush_chain(family: Family, name: str) -> DescribedOperation:
    return DescribedOperation(encode.flush_chain(family, TABLE, name), f"flush chain {name}")


def _new_rules(family: Family, name: str, chain: Chain) -> Iterator[DescribedOperation]:
    for rule in chain.rules:
        operation = encode.new_rule(family, TABLE, name, compile_cached(rule, family))
        yield DescribedOperation(operation, f"add rule {name} {rule}")


def _list_chains(groups: _Groups) -> Iterator[tuple[str, Chain]]:
    return ((key.decode(), value) for key, value in groups.get(CHAIN, ()) if isinstance(value, Chain))


def _build_element_operations(family: Family, groups: _Groups, *, adding: bool) -> Iterator[DescribedOperation]:
    make, verb = (encode.new_elements, "add") if adding else (encode.delete_elements, "delete")
    for name in [name for name in groups if name not in (CHAIN, SET, FLOWTABLE)]:
        for part in groups.pop(name).parts():  # pop: a first sync does not hold all of them twice at its end
            blobs = _encode_elements(part) if adding else _encode_keys(part)
            for operation in make(family, TABLE, name, blobs):
                yield DescribedOperation(operation, f"{verb} elements of {name}")


def _encode_elements(group: _Group) -> list[bytes]:
    """Encode one set's elements; the endpoints, the most numerous, in one go."""
    if _are_plain(group.values):
        return plain_elements(group.keys, group.values)
    blobs: list[bytes] = []
    for key, value in group:
        if isinstance(value, Block):
            blobs += encode_block(key, value)
        else:
            blobs.append(_encode_value(key, value))
    return blobs


def _are_plain(values: list[Object]) -> TypeGuard[list[bytes]]:
    return set(map(type, values)) == {bytes}


def _encode_value(key: bytes, value: Object) -> bytes:
    match value:
        case bytes():
            return encode_element_attributes(key, value)
        case CommentedElement(data, comment):
            return encode_element_attributes(key, data, comment=comment)
        case IntervalElement(last, comment, data, chain):
            verdict = (Code.GOTO, chain) if chain else None
            return encode_element_attributes(key, data or None, verdict=verdict, key_end=last, comment=comment)
        case names.Goto(chain):
            return encode_element_attributes(key, verdict=(Code.GOTO, chain))
    raise TypeError(f"{type(value).__name__} is no element")


def _encode_keys(group: _Group) -> list[bytes]:
    blobs: list[bytes] = []
    for key, value in group:
        if isinstance(value, Block):
            blobs += [encode_element_attributes(each) for each in split_block(key, value)]
        else:
            last = value.last if isinstance(value, IntervalElement) else None
            blobs.append(encode_element_attributes(key, key_end=last))
    return blobs
