"""iptables mode's rules as lines, sorted by table and chain: what a case expects under `--- iptables`."""

from collections.abc import Iterable

from vipwire.modes.iptables.rules.names import ROOT, Key, Rules
from vipwire.modes.iptables.rules.render import render
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.iptables.rules.skeleton import node_objects
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan


def iptables_lines(node: NodePlan, plans: Iterable[ServicePlan]) -> list[str]:
    """Write the rules of Services; without any, those that belong to no Service."""
    objects: dict[Key, Rules] = {}
    for plan in plans:
        objects |= render(node, Settings(), plan).own
    if not objects:
        objects = node_objects(node, Settings())
    by_chain: dict[tuple[str, str], list[str]] = {}
    for key, rules in sorted(objects.items(), key=lambda item: (item[0].table, item[0].chain, item[0].kind == ROOT)):
        by_chain.setdefault((key.table, key.chain), []).extend(rules)
    return [f"{table} {chain} {rule}" for (table, chain), rules in by_chain.items() for rule in rules or ["(empty)"]]
