"""Arranges the entries of a dispatch chain in a tree of chains, so that a packet passes few rules.

A chain with more than `LEAF` entries branches four ways, at the first digit in which the frontends' codes differ:

    KUBE-SERVICES      -d 0.0.0.0/0.0.0.3 -j KUBE-SVCS-2-0     …     and last the rule for node ports
    KUBE-SVCS-2-0      -d 0.0.0.4/0.0.0.12 -g KUBE-SVCS-4-4    …
    KUBE-SVCS-4-4      -d 10.96.0.4/32 -p tcp … -j KUBE-SVC-XPGD46QRK7WJZT7O

Rules inside the tree use goto (-g), so a packet without a match returns to the root chain. The tree depends only on
the set of entries, not on their order, so a new process computes the old one's tree. A change touches one leaf, and
sometimes the chains around it.

nf_tables refuses more than 16 nested jumps, and up to five chains follow a leaf, so depth is limited: frontends that
differ too late share a long leaf.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self, TypeAlias

from vipwire.model.net import Family
from vipwire.modes.iptables.rules.frontend_code import Zone, extract_digit, find_first_difference, select_low_digits
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, RANGES, ROOT, ROOTS, TABLES, Key, Rules
from vipwire.reconcile.backend import Rendered

LEAF: Final = 16
"""Limit of entries in a chain that does not branch."""

DEEPEST: Final = 9
"""Limit of nested chains of a tree below its root."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A chain of entries, sorted by code."""

    codes: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.codes)

    @property
    def chains(self) -> int:
        return 1

    @property
    def height(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Branch:
    """A chain that branches at digit `at`; `known` has the common digits before it.

    `size` counts the entries, `chains` the chains with itself, `height` the levels below.
    """

    at: int
    known: int
    children: "tuple[Node | None, ...]"
    size: int
    chains: int
    height: int

    @classmethod
    def over(cls, at: int, known: int, children: "tuple[Node | None, ...]", size: int) -> Self:
        below = [child for child in children if child is not None]
        chains, height = sum(child.chains for child in below), max(child.height for child in below)
        return cls(at, known, children, size, 1 + chains, 1 + height)

    def below(self, value: int) -> int:
        """Return the common digits, up to `at`, of the codes below one child."""
        return self.known | value << 2 * self.at


Node: TypeAlias = Leaf | Branch
EMPTY: Final = Leaf(())
Touched: TypeAlias = dict[str, Node | None]
"""The changed chains by name; None for a deleted chain."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of one dispatch chain's tree: the root's name, the others' prefix, the depth limit.

    It branches at digits before `before` only.
    """

    zone: Zone
    root: str
    prefix: str
    deepest: int = DEEPEST
    before: int = sys.maxsize

    def build(self, codes: Iterable[int], depth: int = 0) -> Node:
        found = sorted(codes)
        if len(found) <= LEAF or depth >= self.deepest:
            return Leaf(tuple(found))
        at = find_first_difference(found)
        if at >= self.before:
            return Leaf(tuple(found))
        groups: list[list[int]] = [[], [], [], []]
        for code in found:
            groups[extract_digit(code, at)].append(code)
        children = tuple(self.build(group, depth + 1) if group else None for group in groups)
        return Branch.over(at, select_low_digits(found[0], at), children, len(found))

    def insert(self, node: Node, code: int, touched: Touched, name: str = "", depth: int = 0) -> Node:
        name = name or self.root
        if isinstance(node, Leaf):
            return self._replace_node(name, node, self.build([*list_codes(node), code], depth), touched)
        if select_low_digits(code, node.at) != node.known:
            return self._branch_above(name, node, code, depth, touched)
        value = extract_digit(code, node.at)
        child, child_name = node.children[value], self.child_name(node, value)
        if child is None:
            new: Node = Leaf((code,))
            touched[child_name] = new
        else:
            new = self.insert(child, code, touched, child_name, depth + 1)
        result = _replace_child(node, value, new, +1)
        if child is None:
            touched[name] = result
        return result

    def remove(self, node: Node, code: int, touched: Touched, name: str = "", depth: int = 0) -> Node:
        name = name or self.root
        if isinstance(node, Leaf) or node.size - 1 <= LEAF:
            left = [other for other in list_codes(node) if other != code]
            return self._replace_node(name, node, self.build(left, depth), touched)
        value = extract_digit(code, node.at)
        child, child_name = node.children[value], self.child_name(node, value)
        if child is None:
            raise KeyError(code)
        if child.size > 1:
            return _replace_child(node, value, self.remove(child, code, touched, child_name, depth + 1), -1)
        touched[child_name] = None
        result = _replace_child(node, value, None, -1)
        kept = [(at, other) for at, other in enumerate(result.children) if other is not None]
        if len(kept) == 1:
            return self._replace_by_child(name, result, *kept[0], depth, touched)
        touched[name] = result
        return result

    def _branch_above(self, name: str, node: Branch, code: int, depth: int, touched: Touched) -> Node:
        """Add a code that differs in a digit common to all others: the subtree moves down unchanged."""
        if depth + node.height >= self.deepest:
            return self._replace_node(name, node, self.build([*list_codes(node), code], depth), touched)
        at = find_first_difference((select_low_digits(code, node.at), node.known))
        children: list[Node | None] = [None] * 4
        children[extract_digit(node.known, at)], children[extract_digit(code, at)] = node, Leaf((code,))
        result = Branch.over(at, select_low_digits(code, at), tuple(children), node.size + 1)
        touched[name] = result
        touched.update((self.child_name(result, value), child) for value, child in enumerate(children) if child)
        return result

    def _replace_by_child(
        self, name: str, node: Branch, value: int, child: Node, depth: int, touched: Touched
    ) -> Node:
        """Replace a chain by its only child, unchanged unless the depth limit had cut the child off."""
        if depth + 1 + child.height >= self.deepest:
            return self._replace_node(name, node, self.build(list_codes(child), depth), touched)
        touched[self.child_name(node, value)] = None
        touched[name] = child
        return child

    def _replace_node(self, name: str, old: Node, new: Node, touched: Touched) -> Node:
        touched.update(dict.fromkeys((gone for gone, _ in self.list_nodes(old, name)), None))
        touched.update(self.list_nodes(new, name))
        return new

    def list_nodes(self, node: Node, name: str = "") -> Iterator[tuple[str, Node]]:
        name = name or self.root
        yield name, node
        if isinstance(node, Branch):
            for value, child in enumerate(node.children):
                if child is not None:
                    yield from self.list_nodes(child, self.child_name(node, value))

    def find(self, node: Node, code: int) -> tuple[str, Node]:
        """Return the leaf for a code, with its name."""
        name = self.root
        while isinstance(node, Branch):
            value = extract_digit(code, node.at)
            child = node.children[value]
            if child is None:
                raise KeyError(code)
            name, node = self.child_name(node, value), child
        return name, node

    def child_name(self, node: Branch, value: int) -> str:
        return self.zone.write_chain_name(self.prefix, node.at, node.below(value))

    def write_rules(self, name: str, node: Node, entry: "Mapping[int, Rules] | Overlay") -> Rules:
        if isinstance(node, Leaf):
            return tuple(rule for code in node.codes for rule in entry[code])
        verb = "-j" if name == self.root else "-g"
        return tuple(
            f"{self.zone.write_match(node.at, node.below(value))} {verb} {self.child_name(node, value)}".lstrip()
            for value, child in enumerate(node.children)
            if child is not None
        )


def list_codes(node: Node) -> Iterator[int]:
    if isinstance(node, Leaf):
        yield from node.codes
        return
    for child in node.children:
        if child is not None:
            yield from list_codes(child)


def _replace_child(node: Branch, value: int, child: Node | None, by: int) -> Branch:
    children = (*node.children[:value], child, *node.children[value + 1 :])
    return Branch.over(node.at, node.known, children, node.size + by)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Entries with pending changes on top."""

    changed: Mapping[int, Rules | None]
    others: Mapping[int, Rules]

    def __getitem__(self, code: int) -> Rules:
        found = self.changed.get(code)
        return self.others[code] if found is None else found


@dataclass(frozen=True, slots=True)
class Draft:
    """A change of a dispatch chain: its new tree, and the chains to write (None: to delete)."""

    changed: Mapping[int, Rules | None]
    tree: Node
    chains: dict[str, Rules | None]


@dataclass(slots=True)
class Dispatch:
    """One dispatch chain in the kernel. `strays` are misplaced chains of its tree."""

    shape: Shape
    entries: dict[int, Rules] = field(default_factory=dict)
    tree: Node = EMPTY
    strays: frozenset[str] = frozenset()

    def load(self, entries: Mapping[int, Rules]) -> None:
        self.entries = dict(entries)
        self.tree = self.shape.build(self.entries)

    def chains(self) -> dict[str, Rules]:
        """Write every chain, without the rules behind the root's entries."""
        return {
            name: self.shape.write_rules(name, node, self.entries) for name, node in self.shape.list_nodes(self.tree)
        }

    @property
    def branches(self) -> int:
        """The number of rules that only lead to other chains of the tree."""
        return self.tree.chains - 1

    def draft(self, changed: Mapping[int, Rules | None], *, everything: bool) -> Draft:
        """Compute a change; `everything`: write all chains, not only the changed ones."""
        entry = Overlay(changed, self.entries)
        touched: Touched = {}
        if everything or 4 * len(changed) > len(self.entries):
            kept = [code for code in self.entries if code not in changed]
            tree = self.shape.build([*kept, *(code for code, rules in changed.items() if rules is not None)])
            touched.update(
                dict.fromkeys((*self.strays, *(name for name, _ in self.shape.list_nodes(self.tree))), None)
            )
            touched.update(self.shape.list_nodes(tree))
        else:
            tree = self._change_tree(changed, touched)
        chains = {
            name: None if node is None else self.shape.write_rules(name, node, entry)
            for name, node in touched.items()
        }
        return Draft(changed, tree, chains)

    def _change_tree(self, changed: Mapping[int, Rules | None], touched: Touched) -> Node:
        tree = self.tree
        for code, rules in changed.items():
            if rules is None:
                tree = self.shape.remove(tree, code, touched)
            elif code in self.entries:
                name, leaf = self.shape.find(tree, code)
                touched[name] = leaf
            else:
                tree = self.shape.insert(tree, code, touched)
        return tree

    def adopt(self, draft: Draft) -> None:
        """Record that the kernel accepted a change."""
        for code, rules in draft.changed.items():
            if rules is None:
                self.entries.pop(code, None)
            else:
                self.entries[code] = rules
        self.tree = draft.tree
        self.strays = frozenset()


def build_dispatches(family: Family, *, tree: bool) -> dict[tuple[str, str], Dispatch]:
    zone = Zone(family)
    deepest = DEEPEST if tree else 0
    made = {where: Shape(zone, where[1], prefix, deepest) for where, prefix in ROOTS.items()}
    for where, shape in made.items():
        if where[1] == RANGES:  # one jump further from the hook than other roots; no branches on ports
            made[where] = replace(shape, deepest=max(0, deepest - 1), before=zone.ports_at)
    return {where: Dispatch(shape) for where, shape in made.items()}


def expected_chains(
    empty: Mapping[tuple[str, str], Dispatch], wanted: Iterable[Rendered[Key, Rules]]
) -> Mapping[str, Mapping[str, Rules]]:
    """Return the expected rules of chains, by table: of Services, common chains, and dispatch chains.

    This fills `empty` with the wanted entries; building their trees takes memory for a moment. Without `empty` the
    dispatch chains are left out.
    """
    found: dict[str, dict[str, Rules]] = {table: {} for table in TABLES}
    entries: dict[tuple[str, str], dict[int, Rules]] = {where: {} for where in ROOTS}
    tails: dict[tuple[str, str], Rules] = {}
    for each in wanted:
        for key, rules in each.own.items():
            if key.kind == CHAIN:
                found[key.table][key.chain] = rules
            elif key.kind == ENTRY and isinstance(key.detail, int):
                entries[key.table, key.chain][key.detail] = rules
            elif key.kind == ROOT:
                tails[key.table, key.chain] = rules
    for (table, root), dispatch in empty.items():
        dispatch.load(entries[table, root])
        found[table] |= dispatch.chains()
        found[table][root] = (*found[table][root], *tails.get((table, root), ()))
    return found
