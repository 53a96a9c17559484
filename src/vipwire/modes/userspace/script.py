"""Turns a difference into input of `iptables-restore --noflush`, and iptables-save output into objects. Pure.

A declared chain is created or emptied, so only chains of constant rules are declared when they change; in all others
single rules come and go. Each table commits as a whole. The filter comes first, so that refusals precede the end of
translation. Without removals in the nat table, nat comes first: until then another mode such as IPVS may translate,
behind the filter, and vipwire's filter would refuse its packets.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from vipwire.modes.userspace import names
from vipwire.modes.userspace.names import CHAINS, NAT, PORT, TABLES, Front, Key, Rule, Value
from vipwire.modes.xtables.save import BUILT_IN, ChainName, find_rule_target, read_tables
from vipwire.reconcile.delta import Delta

_LEADS: Final = re.compile(
    r"(?P<head>(?:.* )?-p (?P<protocol>tcp|udp) .*(?:--to-destination \S+:|--to-ports ))(?P<port>\d+)$"
)
Ports = Callable[[str], int]
"""Returns the port of a front."""
Fronts = Mapping[tuple[str, int], str]
"""The front at each port of a protocol (`tcp`, `udp`)."""


def write_script(delta: Delta[Key, Value], old: Ports, new: Ports) -> str:
    """Write a difference; "" without rules. `old` returns the ports in removed rules."""
    return "".join(f"{line}\n" for table in _order_tables(delta) for line in _write_table(table, delta, old, new))


def _order_tables(delta: Delta[Key, Value]) -> tuple[str, ...]:
    going = (*delta.removed, *delta.changed)
    return TABLES if any(not isinstance(key, Front) and key.table == NAT for key in going) else TABLES[::-1]


def _write_table(table: str, delta: Delta[Key, Value], old: Ports, new: Ports) -> Iterator[str]:
    lines = [*_write_chains(table, delta), *_write_rules(table, delta, old, new), *_write_deletions(table, delta)]
    if lines:
        yield f"*{table}"
        yield from lines
        yield "COMMIT"


def _write_chains(table: str, delta: Delta[Key, Value]) -> Iterator[str]:
    written = delta.written.items()
    chains = {key: value for key, value in written if isinstance(key, ChainName) and key.table == table}
    yield from (f":{key.chain} - [0:0]" for key in chains)
    for key, rules in chains.items():
        yield from (f"-A {key.chain} {words}" for words in (rules if isinstance(rules, tuple) else ()))


def _write_rules(table: str, delta: Delta[Key, Value], old: Ports, new: Ports) -> Iterator[str]:
    for rule, times in _select_rules(table, delta.removed):
        yield from (f"-D {rule.chain} {write_rule(rule, old)}" for _ in range(times))
    for key, (before, after) in delta.changed.items():
        if isinstance(key, Rule) and key.table == table and isinstance(before, int) and isinstance(after, int):
            yield from (f"-D {key.chain} {write_rule(key, old)}" for _ in range(before - after))
    for rule, times in _select_rules(table, delta.added):
        how = f"-I {rule.chain} 1" if rule.first else f"-A {rule.chain}"
        yield from (f"{how} {write_rule(rule, new)}" for _ in range(times))


def _select_rules(table: str, objects: Mapping[Key, Value]) -> Iterator[tuple[Rule, int]]:
    for key, value in objects.items():
        if isinstance(key, Rule) and key.table == table and isinstance(value, int):
            yield key, value


def _write_deletions(table: str, delta: Delta[Key, Value]) -> Iterator[str]:
    gone = [key.chain for key in delta.removed if isinstance(key, ChainName) and key.table == table]
    yield from (f"-F {chain}" for chain in gone)
    yield from (f"-X {chain}" for chain in gone)


def write_rule(rule: Rule, ports: Ports) -> str:
    return rule.words.replace(PORT, str(ports(rule.front))) if rule.front else rule.words


def read_rules(saved: str, fronts: Fronts) -> dict[Key, Value]:
    """Collect vipwire's chains and rules from iptables-save output of one or several tables.

    Raise DecodeError for text that iptables-save does not print.
    """
    found: dict[Key, Value] = {}
    times: Counter[Rule] = Counter()
    members: dict[ChainName, list[str]] = {}
    for table, chains in read_tables(saved).items():
        ours = CHAINS.get(table, ())
        for chain, rules in chains.items():
            if chain in ours:
                members[ChainName(table, chain)] = rules
            elif chain in BUILT_IN:
                ends = {words: find_rule_target(words) for words in rules}
                jumps = [words for words in rules if ends[words] in ours]
                times.update(Rule(table, chain, words, first=ends[words] not in _LAST_JUMPS) for words in jumps)
    for key, rules in members.items():
        if key.chain in FIXED:
            found[key] = tuple(rules)
        else:
            found[key] = None
            times.update(_read_chain(key, rules, fronts))
    found.update((rule, many) for rule, many in times.items())
    return found


FIXED: Final = frozenset({names.PORTALS_FILTER, names.REFUSE})
"""Chains whose rules are constant, or change all at once."""
_LAST_JUMPS: Final = (names.NODEPORT_CONTAINER, names.NODEPORT_HOST)


def _read_chain(key: ChainName, rules: Iterable[str], fronts: Fronts) -> Iterator[Rule]:
    """Read the rules of a chain. A misplaced `first` rule counts as another rule, so that vipwire replaces it."""
    at_head = True
    for words in rules:
        leads = words.startswith(("-s ", "-i ")) and find_rule_target(words) in CHAINS[key.table]
        first = leads or find_rule_target(words) == "RETURN"
        at_head = at_head and first
        yield _parse_rule(key, words, fronts)._replace(first=at_head)


def _parse_rule(key: ChainName, words: str, fronts: Fronts) -> Rule:
    found = _LEADS.fullmatch(words)
    if found is not None:
        front = fronts.get((found["protocol"], int(found["port"])))
        if front is not None:
            return Rule(key.table, key.chain, f"{found['head']}{PORT}", front)
    return Rule(key.table, key.chain, words)


def write_removal(saved: str) -> str:
    """Write the removal of all of vipwire's objects in iptables-save output; "" if none exist."""
    everything = read_rules(saved, {})
    return write_script(Delta(removed=everything), lambda _: 0, lambda _: 0) if everything else ""
