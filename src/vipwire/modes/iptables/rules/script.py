"""Turns a difference into input of iptables-restore.

A declared chain is emptied and filled again, atomically. Chains follow those that they jump to; dispatch chains and
jumps to them come last, so no packet reaches a new chain early. Deleted chains are emptied first and deleted last.

The cost of an iptables-nft transaction grows faster than its size, so a large difference takes several runs:
unreachable new chains in batches, then one run with all that matters, then the deletions.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from vipwire.modes.iptables.rules.names import (
    CHAIN,
    ENTRY,
    FIREWALL,
    JUMP,
    ROOT,
    TABLES,
    Key,
    Rules,
    rank_chain,
    tree_root,
)
from vipwire.modes.iptables.rules.skeleton import is_guard, jump_keys
from vipwire.modes.iptables.rules.tree import Dispatch, Draft
from vipwire.reconcile.delta import Delta

_AT_ONCE: Final = 200
_ORDER: Final = {key: place for place, key in enumerate(jump_keys())}


class Jump(NamedTuple):
    """A rule to insert into a foreign chain, or to delete; `verb` is -I, -A or -D."""

    verb: str
    chain: str
    rule: str

    @property
    def line(self) -> str:
        return f"{self.verb} {self.chain} {self.rule}"


@dataclass(slots=True)
class TablePart:
    """The changes of one table.

    `chains`: the chains to write, with their rules; `gone`: to delete; `emptied`: to empty, because foreign rules
    jump to them; `fresh`: the new ones of `chains`.
    """

    chains: dict[str, Rules] = field(default_factory=dict)
    jumps: list[Jump] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    fresh: set[str] = field(default_factory=set)

    def lines(self, table: str) -> Iterator[str]:
        yield f"*{table}"
        # iptables-legacy keeps chains in a sorted list, with an index of every 40th. In reverse order, each new chain
        # goes to the list's beginning: a quarter less time than in alphabetical order, and no order is faster.
        chains = sorted((*self.chains, *self.emptied, *self.gone), reverse=True)
        for chain in chains:
            yield f":{chain} - [0:0]"
        for chain in chains:
            if rules := self.chains.get(chain):
                begin = f"-A {chain} "
                yield begin + f"\n{begin}".join(rules)
        yield from (jump.line for jump in self.jumps)
        for chain in self.gone:
            yield f"-X {chain}"
        yield "COMMIT"

    def __bool__(self) -> bool:
        return bool(self.chains or self.jumps or self.gone or self.emptied)


@dataclass(frozen=True, slots=True)
class RestoreInput:
    """One run: the changes of some tables."""

    parts: Mapping[str, TablePart]

    @property
    def tables(self) -> int:
        """The number of tables that change; iptables-restore commits each by itself."""
        return sum(bool(part) for part in self.parts.values())

    @property
    def rules(self) -> Mapping[str, int]:
        return {table: sum(len(rules) for rules in part.chains.values()) for table, part in self.parts.items()}

    def pieces(self) -> Iterator[str]:
        """Yield the input of one iptables-restore in pieces, filter before nat, as in kube-proxy."""
        for table in TABLES:
            if part := self.parts.get(table):
                lines = part.lines(table)
                while some := list(islice(lines, _AT_ONCE)):
                    yield "\n".join((*some, ""))

    @property
    def text(self) -> str:
        return "".join(self.pieces())


Drafts = dict[tuple[str, str], Draft]


def draft_trees(delta: Delta[Key, Rules], dispatches: Mapping[tuple[str, str], Dispatch]) -> Drafts:
    changes: dict[tuple[str, str], dict[int, Rules | None]] = {}
    everything: set[tuple[str, str]] = set()
    for key, new in _list_changes(delta):
        where = (key.table, key.chain)
        if key.kind == ENTRY and isinstance(key.detail, int):
            changes.setdefault(where, {})[key.detail] = new
        elif key.kind == ROOT:
            changes.setdefault(where, {})
            everything.add(where)
    return {
        where: dispatches[where].draft(changed, everything=where in everything) for where, changed in changes.items()
    }


def _list_changes(delta: Delta[Key, Rules]) -> Iterator[tuple[Key, Rules | None]]:
    yield from ((key, None) for key in delta.removed)
    yield from delta.added.items()
    yield from ((key, new) for key, (_, new) in delta.changed.items())


@dataclass(slots=True)
class Writer:
    """Writes a difference.

    `tails`: the rules behind a dispatch chain's entries; `pinned`: chains that foreign rules jump to; `batch`: limit
    of lines in a run, 0 for none. KUBE-FIREWALL is created if missing and never emptied; with `kubelet`, rules about
    it stay.
    """

    tails: Mapping[tuple[str, str], Rules]
    pinned: frozenset[tuple[str, str]] = frozenset()
    firewall_missing: bool = False
    kubelet: bool = False
    batch: int = 0

    def build_restore_runs(self, delta: Delta[Key, Rules], drafted: Drafts) -> Iterator[RestoreInput]:
        parts = self.build_table_parts(delta, drafted)
        if not self.batch or sum(_measure_part(part) for part in parts.values()) <= self.batch:
            yield RestoreInput(parts)
            return
        main = {table: TablePart() for table in TABLES}
        batches: list[tuple[str, TablePart]] = []
        deletions: list[tuple[str, TablePart]] = []
        for table, part in parts.items():
            fresh = {chain: rules for chain, rules in part.chains.items() if Key(CHAIN, table, chain) in delta.added}
            fresh = {chain: rules for chain, rules in fresh.items() if rank_chain(chain)}
            batches += (
                (table, TablePart(dict(piece), fresh={chain for chain, _ in piece}))
                for piece in _split_chains(fresh.items(), self.batch)
            )
            rest = {chain: rules for chain, rules in part.chains.items() if chain not in fresh}
            main[table] = TablePart(rest, part.jumps, emptied=part.emptied, fresh=part.fresh & rest.keys())
            deletions += (
                (table, TablePart(gone=[chain for chain, _ in piece]))
                for piece in _split_chains(((chain, ()) for chain in _order_by_callers(table, part.gone)), self.batch)
            )
        for table, part in self._common_first(main, batches):
            yield RestoreInput({table: part})
        yield RestoreInput(main)
        for table, part in deletions:
            yield RestoreInput({table: part})

    def _common_first(
        self, main: dict[str, TablePart], batches: list[tuple[str, TablePart]]
    ) -> Iterator[tuple[str, TablePart]]:
        """Order the common chains before the Services' chains that jump to them."""
        for table in {table for table, _ in batches}:
            common = {c: rules for c, rules in main[table].chains.items() if c.endswith("-MASQ")}
            if common:
                main[table].chains = {c: rules for c, rules in main[table].chains.items() if c not in common}
                yield table, TablePart(common, fresh=main[table].fresh & common.keys())
        yield from batches

    def build_table_parts(self, delta: Delta[Key, Rules], drafted: Drafts) -> dict[str, TablePart]:
        parts = {table: TablePart() for table in TABLES}
        chains = [(key, new) for key, new in _list_changes(delta) if key.kind == CHAIN]
        if self.batch:  # a single run has its own order
            chains.sort(key=lambda item: rank_chain(item[0].chain))
        for key, new in chains:
            if key in delta.added:
                parts[key.table].fresh.add(key.chain)
            self._put_chain(parts[key.table], key.table, key.chain, new)
        for (table, root), draft in drafted.items():
            for chain, rules in draft.chains.items():
                if chain == root and rules is not None:
                    self._put_chain(parts[table], table, chain, (*rules, *self.tails.get((table, root), ())))
                else:
                    self._put_chain(parts[table], table, chain, rules)
        jumps = [item for item in _list_jumps(delta) if item[0].kind == JUMP]
        for key, before, after in sorted(jumps, key=lambda item: _ORDER.get(item[0], 0)):
            if self.kubelet and is_guard(key) and after < before:
                continue
            parts[key.table].jumps += _build_jumps(key, before, after)
            if after and self.firewall_missing and is_guard(key):
                parts[key.table].chains[FIREWALL] = ()
        return {table: part for table, part in parts.items() if part}

    def _put_chain(self, part: TablePart, table: str, chain: str, rules: Rules | None) -> None:
        if rules is not None:
            part.chains[chain] = rules
        elif (table, chain) in self.pinned:
            part.emptied.append(chain)
        else:
            part.gone.append(chain)


def _list_jumps(delta: Delta[Key, Rules]) -> Iterator[tuple[Key, int, int]]:
    yield from ((key, len(old), 0) for key, old in delta.removed.items())
    yield from ((key, 0, len(new)) for key, new in delta.added.items())
    yield from ((key, len(old), len(new)) for key, (old, new) in delta.changed.items())


def _build_jumps(key: Key, before: int, after: int) -> Iterator[Jump]:
    if after > before:
        yield Jump("-A" if key.chain == FIREWALL else "-I", key.chain, str(key.detail))
    for _ in range(before - after):
        yield Jump("-D", key.chain, str(key.detail))


def _order_by_callers(table: str, chains: Iterable[str]) -> list[str]:
    """Order deleted chains so that each precedes the chains that it jumps to."""
    return sorted(chains, key=lambda chain: (tree_root(table, chain) is None, -rank_chain(chain)))


def _measure_part(part: TablePart) -> int:
    return sum(1 + len(rules) for rules in part.chains.values()) + len(part.gone)


def _split_chains(chains: Iterable[tuple[str, Rules]], batch: int) -> Iterator[list[tuple[str, Rules]]]:
    piece: list[tuple[str, Rules]] = []
    size = 0
    for chain, rules in chains:
        piece.append((chain, rules))
        size += 1 + len(rules)
        if size >= batch:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
