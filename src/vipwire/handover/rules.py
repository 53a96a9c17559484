"""Chains and rules of iptables that other modes have left, ours or kube-proxy's: found by name, removed by table.

Three modes write into the same tables, and two share names (KUBE-SERVICES, KUBE-MARK-MASQ: kube-proxy's, so not ours
to change). A chain that only one mode has tells whose leftovers these are; chains with shared names alone say nothing
and are left alone: older kubelets make some of them. What the running mode has in the same engine is never touched.

The filter tables go first. As long as the nat table of both modes is in force, all connections are translated; what
refuses the untranslated must not outlive what translates.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from vipwire.backends.iptables.kernel import removal
from vipwire.backends.iptables.names import TABLES
from vipwire.backends.iptables.read import is_ours
from vipwire.backends.iptables.rules.skeleton import jump_keys
from vipwire.backends.ipvs.names import ChainName, Rules
from vipwire.backends.ipvs.objects.chains import parse_save, restore_text
from vipwire.backends.ipvs.skeleton import KUBE_PROXYS, node_objects
from vipwire.backends.userspace import script
from vipwire.backends.userspace.names import CHAINS
from vipwire.config.configuration import ProxyMode
from vipwire.model.net import Family
from vipwire.plan.node import NodePlan
from vipwire.reconcile.delta import Delta
from vipwire.xtables.save import BUILT_IN, read_table
from vipwire.xtables.tool import RuleTool
from vipwire.xtables.variant import has_kubelets_chains

GUARD: Final = ChainName("filter", "KUBE-IPVS-FILTER")
"""Keeps the host's own ports off the addresses of kube-ipvs0: it stays as long as these do."""
TRIALS: Final = {
    "KUBE-PROXY-PROBE": ProxyMode.IPTABLES,
    "KUBE-IPVS-PROBE": ProxyMode.IPVS,
    "KUBE-PORTALS-PROBE": ProxyMode.USERSPACE,
}
"""Chains that nobody jumps to, made for a moment to try a kernel: they are left by who was killed in that moment."""
Saved = Mapping[str, str]
"""What iptables-save prints, by table."""


def remove_rules(tool: RuleTool, running: ProxyMode | None, *, guard: bool = False) -> dict[ProxyMode, int]:
    """Remove the chains that other modes than `running` have left in one engine; tell how many of each mode.

    `running` is None where the mode that runs writes no rules into this engine. With `guard` what keeps the host's
    ports off ipvs mode's addresses stays. Raise CommitError if the tables cannot be read or written.
    """
    saved = _save(tool)
    found = census(tool.family, saved, guard=guard)
    if running is not None:
        found.pop(running, None)
    if ProxyMode.IPTABLES in found or (ProxyMode.IPVS in found and running is not ProxyMode.IPTABLES):
        _remove_iptables(tool, running)
    if ProxyMode.IPVS in found:
        _write(tool, ipvs_removal(tool.family, _save(tool), running, guard=guard))
        if running is not ProxyMode.IPTABLES:  # what these jumped to could only be emptied before
            _remove_iptables(tool, running)
    if ProxyMode.USERSPACE in found:
        _write(tool, script.removal(saved["nat"] + saved["filter"]))
    for table, text in saved.items():
        _write(tool, _trial_removal(table, text, found))
    return found


def census(family: Family, saved: Saved, *, guard: bool = False) -> dict[ProxyMode, int]:
    """Count the chains by the mode that alone has such; modes without any are left out. Pure."""
    shared = _ipvs_chains(family)
    counts = dict.fromkeys((ProxyMode.IPTABLES, ProxyMode.IPVS, ProxyMode.USERSPACE), 0)
    for table, text in saved.items():
        for chain in read_table(text):
            ipvs, iptables = ChainName(table, chain) in shared, is_ours(table, chain)
            if ipvs and not iptables and chain not in BUILT_IN and not (guard and (table, chain) == GUARD):
                counts[ProxyMode.IPVS] += 1
            counts[ProxyMode.IPTABLES] += iptables and not ipvs
            counts[ProxyMode.USERSPACE] += chain in CHAINS.get(table, ())
            if chain in TRIALS:
                counts[TRIALS[chain]] += 1
    return {mode: count for mode, count in counts.items() if count}


def own_chains(mode: ProxyMode, chains: Iterable[str]) -> frozenset[str]:
    """Choose the chains, of whichever table, that have names of a mode's. Pure."""
    if mode is ProxyMode.IPTABLES:
        return frozenset(chain for chain in chains if any(is_ours(table, chain) for table in TABLES))
    known: set[str] = set()
    if mode is ProxyMode.IPVS:
        known = {key.chain for key in _ipvs_chains(Family.IPV4)}
    elif mode is ProxyMode.USERSPACE:
        known = {chain for table in CHAINS.values() for chain in table}
    return frozenset(chains) & known


def others(tool: RuleTool) -> frozenset[ProxyMode]:
    """Name the modes other than ipvs that have left chains in an engine. Raise CommitError if it cannot be read."""
    return frozenset(census(tool.family, _save(tool)).keys() - {ProxyMode.IPVS})


def disarm(tool: RuleTool) -> None:
    """Remove what userspace mode has left in the filter table: it drops whatever is not translated by then."""
    _write(tool, script.removal(tool.save("filter")))


def ipvs_removal(family: Family, saved: Saved, running: ProxyMode | None, *, guard: bool) -> str:
    """Write what removes the chains that only ipvs mode has, and its jumps. Pure."""
    found = parse_save("".join(saved.values()), frozenset(_ipvs_chains(family)))
    kept = {str(key.detail) for key in jump_keys()} if running is ProxyMode.IPTABLES else set[str]()
    gone: dict[ChainName, Rules] = {}
    for key, rules in found.items():
        if key.chain in BUILT_IN:
            gone[key] = tuple(
                rule for rule in rules if rule not in kept and not (guard and rule.endswith(f" {GUARD.chain}"))
            )
        elif not is_ours(*key) and not (guard and key == GUARD):
            gone[key] = rules
    return restore_text(
        Delta(removed={key: rules for key, rules in gone.items() if rules or key.chain not in BUILT_IN})
    )


def without_ipvs(family: Family, table: str, saved: str) -> str:
    """Leave out of a saved table what ipvs mode has there, so that nobody removes it. Pure."""
    skeleton = _ipvs_chains(family)
    own = {key.chain for key in skeleton if key.table == table and key.chain not in BUILT_IN}
    jumps = {
        f"-A {key.chain} {rule}"
        for key, rules in skeleton.items()
        if key.table == table and key.chain in BUILT_IN
        for rule in rules
    }
    kept = (line for line in saved.splitlines() if line not in jumps and _chain_of(line) not in own)
    return "".join(f"{line}\n" for line in kept)


def _chain_of(line: str) -> str:
    """Name the chain that a line of iptables-save declares or adds to."""
    words = line.split(" ", 2)
    if words[0] == "-A":
        return words[1]
    return words[0].removeprefix(":") if line.startswith(":") else ""


def _remove_iptables(tool: RuleTool, running: ProxyMode | None) -> None:
    saved = _save(tool)
    kubelet = any(map(has_kubelets_chains, saved.values()))
    for table, text in saved.items():
        seen = without_ipvs(tool.family, table, text) if running is ProxyMode.IPVS else text
        _write(tool, removal(table, seen, kubelet=kubelet))


def _trial_removal(table: str, saved: str, found: Collection[ProxyMode]) -> str:
    chains = [chain for chain in read_table(saved) if chain in TRIALS and TRIALS[chain] in found]
    lines = [*(f":{chain} - [0:0]" for chain in chains), *(f"-X {chain}" for chain in chains)]
    return "\n".join([f"*{table}", *lines, "COMMIT", ""]) if chains else ""


def _write(tool: RuleTool, text: str) -> None:
    if text:
        tool.restore(text)


def _save(tool: RuleTool) -> dict[str, str]:
    return {table: tool.save(table) for table in TABLES}


def _ipvs_chains(family: Family) -> dict[ChainName, Rules]:
    objects = node_objects(NodePlan(family)).items()
    ours = {key: cast("Rules", value) for key, value in objects if isinstance(key, ChainName)}
    return dict.fromkeys(KUBE_PROXYS, ()) | ours
