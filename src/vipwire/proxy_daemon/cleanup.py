"""Removes the rules of all of vipwire's modes, and nothing that a running kube-proxy uses.

Without a running kube-proxy every mode removes all its objects, also those under kube-proxy's names. With one:

    kube-proxy's mode     stays, except for chains that only vipwire makes
    all other modes       go, except for chains that kube-proxy's mode has too
    tables of nftables    `vipwire` goes; `kube-proxy` is never touched

If kube-proxy's mode is unknown, chains that its iptables or ipvs mode may use stay.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.linux.host.kernel import read_capabilities, require_net_admin
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.registry import find_spec, list_specs, load_driver
from vipwire.modes.spec import ModeSpec
from vipwire.modes.xtables.ownership import (
    ChainRule,
    Owners,
    RuleOwner,
    Tables,
    count_chains_of_one_mode,
    write_removals,
)
from vipwire.modes.xtables.save import BUILT_IN, ChainName, Chains, find_rule_target
from vipwire.modes.xtables.tool import RuleTool
from vipwire.process_lifecycle.single_instance import AlreadyRunningError
from vipwire.proxy_daemon.handover.kube_proxy import KubeProxy, find_kube_proxy
from vipwire.proxy_daemon.handover.leftovers import (
    list_engines,
    list_engines_without_tool,
    list_owners,
    read_rule_tables,
)
from vipwire.proxy_daemon.start.modes import find_usable_families, needs_net_admin
from vipwire.proxy_daemon.start.record import find_running_proxy

_UNKNOWN: Final = ("iptables", "ipvs")
"""Modes of kube-proxy whose chain names vipwire uses too."""


class Cleaned(NamedTuple):
    """A leftover. `left` is the reason why it stays, "" if removed. `mode` is "" for several modes."""

    mode: str
    family: Family
    what: str = ""
    left: str = ""
    remedy: str = "`vipwire cleanup --all` also removes this"


def run_cleanup(config: Config) -> int:
    """Remove everything of vipwire's, of every mode and family.

    Return 1 if something stays for lack of a program. Raise AlreadyRunningError if a vipwire proxy runs. Objects
    under the names of a running kube-proxy stay, unless the configuration asks to remove all.
    """
    if needs_net_admin(config):
        require_net_admin("vipwire cleanup")
    if (holder := find_running_proxy()) is not None:  # it would undo the removal
        raise AlreadyRunningError(
            f"vipwire cleanup is impossible while a proxy runs here: {holder}; {holder.remedy} first"
        )
    rules = "CAP_NET_ADMIN" in read_capabilities()
    beside = find_kube_proxy() if rules and not config.cleanup_all else None
    stuck = False
    for each in clean_up(find_usable_families(), rules=rules, beside=beside):
        told = {"mode": each.mode, "ip_family": each.family.value, "what": each.what}
        told = {name: value for name, value in told.items() if value}
        if each.left:
            log.warning("left", **told, reason=each.left, remedy=each.remedy)
            stuck = stuck or beside is None
        else:
            log.info("removed", **told)
    return int(stuck)


def clean_up(families: tuple[Family, ...], *, rules: bool, beside: KubeProxy | None) -> Iterator[Cleaned]:
    """Remove everything of vipwire's; without `rules`, only objects that need no privilege.

    Raise CommitError if the kernel refuses.
    """
    if beside is None or not rules:
        yield from _clean_everything(families, list_specs(), rules=rules)
        for family in families if rules else ():
            for name, what in list_engines_without_tool(family):
                yield Cleaned(name, family, what, "no program can remove this", "install the package iptables")
        return
    kept = frozenset((beside.mode,) if beside.mode else _UNKNOWN)
    free = [spec for spec in list_specs() if load_driver(spec).owner(Family.IPV4) is None]
    yield from _clean_everything(families, free, rules=True)
    for family in families:
        yield from _clean_beside(family, kept, beside)
    rest = [spec for spec in list_specs() if spec not in free and spec.name not in kept]
    yield from _clean_everything(families, rest, rules=False)


def _clean_everything(families: tuple[Family, ...], specs: Iterable[ModeSpec], *, rules: bool) -> Iterator[Cleaned]:
    for spec in specs:
        for family, mode in load_driver(spec).cleaners(families, rules=rules):
            with contextlib.closing(mode):
                if mode.delete():
                    yield Cleaned(spec.name, family)


def _clean_beside(family: Family, kept: frozenset[str], beside: KubeProxy) -> Iterator[Cleaned]:
    """Remove iptables rules, and their helpers, beside a kube-proxy that runs in one of the modes `kept`."""
    known = list_owners(family)
    running = find_spec(beside.mode) if beside.mode in known else list_specs()[0]
    remains = {
        name: found
        for name in known
        if name not in kept and (found := load_driver(find_spec(name)).remains(family, running)) is not None
    }
    held: set[ChainName] = set()
    for each in remains.values():
        with contextlib.suppress(UnsupportedError):
            each.remove_before_rules()
            held |= each.list_held_chains()
    for tool in list_engines(family):
        yield from _rules(tool, known, kept, frozenset(held), beside)
    for name, each in remains.items():
        with contextlib.suppress(UnsupportedError):
            result = each.remove_after_rules()
            yield from (Cleaned(name, family, what) for what in result.removed)
            yield from (
                Cleaned(name, family, what, "still in use: run this command again later") for what in result.waiting
            )


def _rules(
    tool: RuleTool, known: Owners, kept: frozenset[str], held: frozenset[ChainName], beside: KubeProxy
) -> Iterator[Cleaned]:
    tables = read_rule_tables(tool)
    leaving = [VipwireOnlyOwner(owner) if name in kept else owner for name, owner in known.items()]
    running = all_of([owner for name, owner in known.items() if name in kept])
    found = count_chains_of_one_mode({name: owner for name, owner in known.items() if name not in kept}, tables, held)
    texts = list(write_removals(tables, leaving, running, held))
    for text in texts:
        tool.restore(text)
    if texts:
        what = (
            ", ".join(f"{count} chains of {name} mode" for name, count in found.items()) or "chains of vipwire's own"
        )
        yield Cleaned("", tool.family, f"{tool.name}: {what}")
    if count := _count(known, kept, tables):
        what = f"{tool.name}: {count} chains with kube-proxy's names"
        yield Cleaned("", tool.family, what, f"{beside} runs here")


def _count(known: Owners, kept: frozenset[str], tables: Tables) -> int:
    return sum(
        any(
            known[name].owns_chain(table, chain) and not known[name].is_only_vipwires(table, chain)
            for name in kept & known.keys()
        )
        for table, chains in tables.items()
        for chain in chains
    )


class VipwireOnlyOwner(RuleOwner):
    """Owns a mode's objects that kube-proxy never writes: vipwire can remove them beside kube-proxy in that mode."""

    def __init__(self, owner: RuleOwner) -> None:
        self._owner, self.trial = owner, owner.trial

    def owns_chain(self, table: str, chain: str) -> bool:
        return self.is_only_vipwires(table, chain)

    def is_only_vipwires(self, table: str, chain: str) -> bool:
        return self._owner.is_only_vipwires(table, chain)

    def list_jumps(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield the rules that jump to these from chains that stay; kube-proxy did not write them."""
        del kubelet
        for chain, rules in chains.items():
            if chain in BUILT_IN or self._owner.owns_chain(table, chain):
                yield from (
                    ChainRule(chain, rule) for rule in rules if self.is_only_vipwires(table, find_rule_target(rule))
                )

    def list_shared_rules(self, table: str) -> frozenset[ChainRule]:
        return frozenset(
            link
            for link in self._owner.list_shared_rules(table)
            if self.is_only_vipwires(table, find_rule_target(link.rule))
        )


class _KubeProxyOwner(RuleOwner):
    """Owns the objects that kube-proxy writes, too, in any of several modes."""

    def __init__(self, owners: Collection[RuleOwner]) -> None:
        self._owners = owners

    def owns_chain(self, table: str, chain: str) -> bool:
        return any(
            owner.owns_chain(table, chain) and not owner.is_only_vipwires(table, chain) for owner in self._owners
        )

    def is_only_vipwires(self, table: str, chain: str) -> bool:
        del table, chain
        return False

    def list_jumps(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        found = (link for owner in self._owners for link in owner.list_jumps(table, chains, kubelet=kubelet))
        return (link for link in found if self.owns_chain(table, find_rule_target(link.rule)))

    def list_shared_rules(self, table: str) -> frozenset[ChainRule]:
        return frozenset(
            link
            for owner in self._owners
            for link in owner.list_shared_rules(table)
            if self.owns_chain(table, find_rule_target(link.rule))
        )


def all_of(owners: Collection[RuleOwner]) -> RuleOwner | None:
    """Return the owner of kube-proxy's objects in these owners' modes; None without owners."""
    return _KubeProxyOwner(owners) if owners else None
