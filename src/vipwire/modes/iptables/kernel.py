"""iptables mode's backend: reads with iptables-save, writes with iptables-restore. One instance serves one family.

The backend keeps the dispatch chains' contents, because the tree is a function of all entries and a Service's entry
can move others. It keeps only contents that the kernel showed or accepted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from vipwire.errors import CommitError
from vipwire.model.net import Address, Family, format_address
from vipwire.model.problem import Problem
from vipwire.modes.iptables.access.tool_access import Known, LockWait, RuleAccess, ToolAccess
from vipwire.modes.iptables.change_detector import (
    ChangeDetector,
    Observation,
    build_change_detectors,
    compute_growth,
    count_branches,
    has_grown_by,
)
from vipwire.modes.iptables.counts import Ledger, count_by_service, map_endpoints_by_port, read_counters
from vipwire.modes.iptables.mode import find_shortcomings
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.frontend_code import decode_frontend
from vipwire.modes.iptables.rules.names import CHAIN, CLUSTER_IPS, ENTRY, JUMP, ROOT, ROOTS, TABLES, Key, Rules
from vipwire.modes.iptables.rules.ownership import IptablesOwner
from vipwire.modes.iptables.rules.read import read_rules
from vipwire.modes.iptables.rules.render import render_service
from vipwire.modes.iptables.rules.script import Writer, draft_trees
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.skeleton import is_guard, node_objects
from vipwire.modes.iptables.rules.tree import build_dispatches, expected_chains
from vipwire.modes.xtables.ownership import KUBELETS, write_removals
from vipwire.modes.xtables.save import read_table
from vipwire.modes.xtables.tool import RuleTool, Variant
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.counts import Counts
from vipwire.reconcile.delta import Delta, SentBytes

BATCH: Final = {Variant.NFT: 4000, Variant.LEGACY: 0}
"""Lines in a run. The legacy tool writes whole tables in each run, so smaller runs would gain nothing."""


class IptablesBackend:
    """The rules of one family, in the network namespace of the calling thread."""

    def __init__(
        self,
        tool: RuleTool,
        settings: RuleSettings,
        detector: ChangeDetector | None = None,
        writer: RuleAccess | None = None,
    ) -> None:
        self.family = tool.family
        self.settings = settings
        self.written: dict[str, int] = {}
        self._rules: Counter[str] = Counter()
        self._tool = tool
        self._detector = detector or build_change_detectors([tool.family], tool.variant)[tool.family]
        self._observed: Observation | None = None
        self._node = NodePlan(tool.family)
        self._dispatches = build_dispatches(tool.family, tree=settings.tree)
        self._tails: dict[tuple[str, str], Rules] = {}
        self._pinned: frozenset[tuple[str, str]] = frozenset()
        self._firewall_missing = True
        self._kubelet = False
        self._ledger = Ledger()
        self._access = writer or ToolAccess(tool, LockWait(), BATCH[tool.variant])
        self._wanted: Iterable[Rendered[Key, Rules]] = ()

    @property
    def rules(self) -> dict[str, int]:
        branches = count_branches(self._dispatches)
        return {table: self._rules[table] + branches[table] for table in TABLES}

    @property
    def variant(self) -> str:
        """The kernel's engine that holds the rules: `nft` or `legacy`."""
        return self._tool.variant.value

    def close(self) -> None:
        """Close the socket; the rules stay."""
        self._detector.close()
        self._access.close()

    def render_node(self, node: NodePlan) -> Mapping[Key, Rules]:
        """Render the constant objects. Later calls of `render` use this node."""
        self._node = node
        return node_objects(node, self.settings)

    def render(self, plan: ServicePlan) -> Rendered[Key, Rules]:
        return render_service(self._node, self.settings, plan)

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        return tuple(find_shortcomings(self.settings, plan))

    def describe(self, key: Key) -> str:
        return describe_key(self.family, key)

    def changed(self) -> bool:
        return self._observed is None or self._detector.observe() != self._observed

    def expect(self, wanted: Iterable[Rendered[Key, Rules]]) -> None:
        """Take the expected objects: after a restart or a foreign commit, the kernel holds nearly all of them."""
        self._wanted = wanted

    def observe(self) -> dict[Key, Rules]:
        before = self._detector.observe()
        tables = self._access.read(cache(self._expected_rules))
        self._wanted = ()
        for where in ROOTS:
            self._dispatches[where].load({})
            self._dispatches[where].strays = frozenset()
        seen = read_rules(self.family, tables, self._dispatches)
        self._tails = {(key.table, key.chain): rules for key, rules in seen.objects.items() if key.kind == ROOT}
        self._pinned = frozenset(seen.pinned)
        self._firewall_missing = names.FIREWALL not in tables[names.FILTER]
        self._kubelet = any(chain in table for table in tables.values() for chain in KUBELETS)
        if self._kubelet and not self.settings.on(self._node).localhost_node_ports:
            seen.objects = {key: rules for key, rules in seen.objects.items() if not is_guard(key)}
        self._rules = _count_rules(Delta(added=seen.objects))
        self._observed = before
        return seen.objects

    def _expected_rules(self) -> Known:
        by_bytes = self._tool.variant is Variant.NFT  # decoding text costs less than building trees
        roots = build_dispatches(self.family, tree=self.settings.tree) if by_bytes else {}
        return expected_chains(roots, self._wanted)

    def commit(self, delta: Delta[Key, Rules]) -> SentBytes:
        """Write a difference; return its size in bytes.

        Each table may be a separate commit. If the kernel refuses one, `changed` reports whether it may have accepted
        another.
        """
        drafted = draft_trees(delta, self._dispatches)
        tails = {**self._tails, **_select_root_rules(delta)}
        writer = self._build_writer(tails)
        before, size, commits = self._detector.observe(), 0, 0
        known, trees = before == self._observed, count_branches(self._dispatches)
        self._observed = None
        self.written = {}
        try:
            for run in writer.build_restore_runs(delta, drafted):
                written = self._access.write(run)
                size += written.size
                commits += written.commits
                for table, rules in run.rules.items():
                    self.written[table] = self.written.get(table, 0) + rules
        except CommitError:
            if known and self._tool.variant is Variant.NFT and self._detector.observe() == before:
                self._observed = before  # nf_tables counts commits: none was accepted
            raise
        for where, draft in drafted.items():
            self._dispatches[where].adopt(draft)
        self._tails = tails
        self._rules.update(_count_rules(delta))
        after = self._detector.observe_after(before, commits)
        if known and after is not None and self._changed_only_by(before, after, delta, trees):
            self._observed = after
        self._firewall_missing = False
        return size

    def _changed_only_by(
        self, before: Observation, after: Observation, delta: Delta[Key, Rules], trees: Counter[str]
    ) -> bool:
        """Report whether the tables changed by exactly this commit, without a foreign change.

        A commit may skip parts: chains that foreign rules use, or rules of kubelet.
        """
        if self._pinned or (self._kubelet and any(map(is_guard, (*delta.changed, *delta.removed)))):
            return True
        more = compute_growth(delta, trees, count_branches(self._dispatches), firewall_missing=self._firewall_missing)
        return has_grown_by(before, after, more)

    def script(self, delta: Delta[Key, Rules]) -> Iterator[str]:
        """Write the input of iptables-restore that `commit` would use for this difference."""
        writer = self._build_writer({**self._tails, **_select_root_rules(delta)})
        return (run.text for run in writer.build_restore_runs(delta, draft_trees(delta, self._dispatches)))

    def _build_writer(self, tails: Mapping[tuple[str, str], Rules]) -> Writer:
        batch = self._access.batch
        return Writer(tails, self._pinned, self._firewall_missing, kubelet=self._kubelet, batch=batch)

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        ends, variant = map_endpoints_by_port(plans), self._tool.variant
        chains = [chain for each in ends.values() for chain in each]
        tables = {
            names.NAT: read_counters(self.family, variant, names.NAT, chains),
            names.FILTER: read_counters(self.family, variant, names.FILTER),
        }
        return count_by_service(ends, tables, self._ledger, endpoints=endpoints)

    def housekeeping_due(self) -> None: ...

    def housekeep(self) -> None: ...

    def delete(self) -> bool:
        """Remove every chain and rule of vipwire and no other; report whether any existed."""
        tables = {table: read_table(self._tool.save(table)) for table in TABLES}
        found = False
        for text in write_removals(tables, [IptablesOwner()]):
            self._tool.restore(text)
            found = True
        return found


def _count_rules(delta: Delta[Key, Rules]) -> Counter[str]:
    """Return the change of each table's number of rules, without jumps in foreign chains."""
    more: Counter[str] = Counter()
    for objects, sign in ((delta.added, 1), (delta.removed, -1)):
        for key, rules in objects.items():
            if key.kind != JUMP:
                more[key.table] += sign * len(rules)
    for key, (old, new) in delta.changed.items():
        if key.kind != JUMP:
            more[key.table] += len(new) - len(old)
    return more


def _select_root_rules(delta: Delta[Key, Rules]) -> dict[tuple[str, str], Rules]:
    return {(key.table, key.chain): rules for key, rules in delta.written.items() if key.kind == ROOT}


def describe_key(family: Family, key: Key) -> str:
    """Name an object: `iptables nat chain KUBE-SEP-…`, `iptables filter rule FORWARD -j KUBE-FORWARD`."""
    table = f"{'iptables' if family is Family.IPV4 else 'ip6tables'} {key.table}"
    if key.kind == ENTRY and isinstance(key.detail, int):
        if key.chain == CLUSTER_IPS:
            address = decode_frontend(family, key.detail).address or Address(b"")
            return f"{table} entry {format_address(address)} of {key.chain}"
        return f"{table} entry {decode_frontend(family, key.detail)} of {key.chain}"
    kind = {CHAIN: "chain", ROOT: "dispatch chain", JUMP: "rule"}[key.kind]
    return f"{table} {kind} {key.chain} {key.detail}".rstrip()
