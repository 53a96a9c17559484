"""Turns the output of iptables-save into vipwire's objects. Pure.

A foreign or misplaced rule in a dispatch chain shows in the value of its root. In foreign chains vipwire owns only
the jumps with its exact words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.frontend_code import ANY_PORT, encode_frontend
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, JUMP, ROOT, Key, Rules, rank_chain, tree_root
from vipwire.modes.iptables.rules.skeleton import jump_keys
from vipwire.modes.iptables.rules.tree import Dispatch, Leaf
from vipwire.modes.xtables.save import Chains, find_rule_target
from vipwire.plan.plan import FrontendKey

_DESTINATION: Final = re.compile(r"(?<!! )-d (\S+)/(32|128)(?: |$)")
_PORT: Final = re.compile(r"-m (tcp|udp|sctp) --dport (\d+)(?::(\d+))?(?: |$)")
_FORWARDS: Final = re.compile(r"(?:^| )(-[jg]) (KUBE-\S+)$")
_JUMPS: Final = frozenset(jump_keys())


@dataclass(slots=True)
class ObservedRules:
    """vipwire's objects, and those of its chains that foreign rules jump to, which the kernel cannot delete."""

    objects: dict[Key, Rules] = field(default_factory=dict)
    pinned: set[tuple[str, str]] = field(default_factory=set)


def is_ours(table: str, chain: str) -> bool:
    """Report whether vipwire owns a chain whole."""
    return (table, chain) in names.WHOLE or rank_chain(chain) > 0 or tree_root(table, chain) is not None


def read_rules(
    family: Family, tables: Mapping[str, Chains], dispatches: Mapping[tuple[str, str], Dispatch]
) -> ObservedRules:
    """Return vipwire's objects, and load the dispatch chains with their contents."""
    seen = ObservedRules()
    for name, found in tables.items():
        trees: dict[str, dict[str, Sequence[str]]] = {}
        for chain, rules in found.items():
            if name == names.NAT and rank_chain(chain):
                seen.objects[Key(CHAIN, name, chain)] = tuple(rules)
                continue
            root = tree_root(name, chain)
            if root is not None:
                trees.setdefault(root, {})[chain] = rules
            elif (name, chain) in names.WHOLE:
                seen.objects[Key(CHAIN, name, chain)] = tuple(rules)
            else:
                _record_foreign(name, chain, rules, seen)
        for root, chains in trees.items():
            seen.objects.update(_read_root(family, name, root, chains, dispatches[name, root]))
    return seen


def _record_foreign(table: str, chain: str, rules: Iterable[str], seen: ObservedRules) -> None:
    """Note vipwire's jumps in a foreign chain, and foreign jumps to vipwire's chains."""
    for rule in rules:
        if "KUBE-" not in rule and chain != names.FIREWALL:
            continue
        key = Key(JUMP, table, chain, rule)
        if key in _JUMPS:
            seen.objects[key] = (*seen.objects.get(key, ()), rule)
        elif is_ours(table, there := find_rule_target(rule)):
            seen.pinned.add((table, there))


def _read_root(
    family: Family, table: str, root: str, chains: Chains, dispatch: Dispatch
) -> Iterator[tuple[Key, Rules]]:
    """Read a dispatch chain: its entries and its root.

    The root's value is the rules behind the entries, and any deviation from the expected order.
    """
    entries: dict[int, Rules] = {}
    tail: list[str] = []
    strange: list[str] = []
    for chain, rules in chains.items():
        for rule in rules:
            forward = _FORWARDS.search(rule)
            if forward and chains.get(forward[2]) is not None:
                continue
            key = _read_frontend(rule, root)
            if key is not None:
                code = encode_frontend(family, key)
                entries[code] = (*entries.get(code, ()), rule)
            elif chain == root:
                tail.append(rule)
            else:
                strange.append(rule)
    dispatch.load(entries)
    expected = dispatch.chains()
    dispatch.strays = frozenset(chains.keys() - expected.keys())
    if dispatch.strays or strange or not _holds_expected_rules(chains, expected, root, tail, dispatch):
        tail.append(f"# {len(chains)} chains that are not as they should be")
    yield from ((Key(ENTRY, table, root, code), rules) for code, rules in entries.items())
    yield Key(ROOT, table, root), tuple(tail)


def _read_frontend(rule: str, root: str) -> FrontendKey | None:
    """Return the frontend of a dispatch chain's rule; None if the rule is for several."""
    port, where = _PORT.search(rule), _DESTINATION.search(rule)
    address = parse_address(where[1]) if where else None
    if root == names.CLUSTER_IPS and address is not None and (port is None or port[3]):
        return FrontendKey(address, *ANY_PORT)
    if port is None or (port[3] and root != names.RANGES):
        return None
    return FrontendKey(address, Protocol[port[1].upper()], int(port[2]))


def read_last_port(rule: str) -> int:
    """Return the last port that a frontend's rule matches; 0 if it names none."""
    port = _PORT.search(rule)
    return int(port[3] or port[2]) if port else 0


def _holds_expected_rules(
    chains: Chains, expected: Mapping[str, Rules], root: str, tail: list[str], dispatch: Dispatch
) -> bool:
    """Report whether every chain holds its expected rules; a leaf's frontends may be in any order."""
    for chain, rules in expected.items():
        there = chains.get(chain)
        if there is None:
            return False
        want = [*rules, *tail] if chain == root else [*rules]
        if [*there] == want:
            continue
        if chain == root and [*there[len(there) - len(tail) :]] != tail:
            return False
        if not isinstance(dispatch.tree, Leaf) and chain == root:
            return False
        if sorted(there) != sorted(want) or not _are_in_order(there, rules):
            return False
    return True


def _are_in_order(there: Sequence[str], rules: Rules) -> bool:
    """Report whether a frontend's rules are in order.

    A node port has several (loopback is counted first), and so has a frontend that refuses some sources and drops all
    others.
    """
    leading = [rule for rule in rules if names.LOCALHOST_COUNTER in rule or rule.startswith("-s ")]
    if not leading:
        return True
    place = {rule: at for at, rule in enumerate(there)}
    following = dict(pairwise(rules))
    return all(place[rule] < place[following[rule]] for rule in leading)
