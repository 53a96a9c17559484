"""What a packet meets in the rules of this mode: a small reading of iptables, for the matches that they have."""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from vipwire.backends.userspace.names import REFUSE, Chain, Key, Rule, Value
from vipwire.model.net import Address, Prefix
from vipwire.plan.resolve import Packet
from vipwire.xtables.save import BUILT_IN


class Verdict(enum.Enum):
    """What a rule decides."""

    TRANSLATED = "translated"
    DROPPED = "dropped"
    REJECTED = "rejected"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Meeting:
    """The rules that matched on the way, and what the last of them decides; `rule` is that one."""

    passed: tuple[Rule, ...]
    verdict: Verdict
    rule: Rule | None = None


_VERDICTS: Final = {
    "DNAT": Verdict.TRANSLATED,
    "REDIRECT": Verdict.TRANSLATED,
    "DROP": Verdict.DROPPED,
    "REJECT": Verdict.REJECTED,
    "ACCEPT": Verdict.ACCEPTED,
    REFUSE: Verdict.REJECTED,
}


def follow(
    observed: Mapping[Key, Value], table: str, chain: str, packet: Packet, own: frozenset[Address]
) -> Meeting | None:
    """Follow a packet through a chain; None if no rule decides."""
    for rule in _members(observed, table, chain):
        if not _matches(rule.words, packet, own):
            continue
        target = rule.words.rpartition("-j ")[2].split()[0]
        if target == "RETURN":
            return None
        verdict = _VERDICTS.get(target)
        if verdict is not None:
            return Meeting((rule,), verdict, rule)
        inner = follow(observed, table, target, packet, own) if target not in BUILT_IN else None
        if inner is not None:
            return Meeting((rule, *inner.passed), inner.verdict, inner.rule)
    return None


def _members(observed: Mapping[Key, Value], table: str, chain: str) -> Iterator[Rule]:
    """Yield the rules of a chain: the fixed ones, or those that are first and then the others."""
    fixed = observed.get(Chain(table, chain))
    if isinstance(fixed, tuple):
        yield from (Rule(table, chain, words) for words in fixed)
        return
    rules = [key for key in observed if isinstance(key, Rule) and (key.table, key.chain) == (table, chain)]
    yield from sorted(rules, key=lambda rule: not rule.first)


def _matches(words: str, packet: Packet, own: frozenset[Address]) -> bool:
    before, _, after = words.partition('--comment "')
    options = f"{before} {after.partition(chr(34))[2]}".split()
    facts: dict[str, Callable[[str], bool]] = {
        "-s": lambda text: packet.source in Prefix.parse(text),
        "-d": lambda text: packet.destination in Prefix.parse(text),
        "-p": lambda text: packet.protocol.label == text,
        "--dport": lambda text: packet.port == int(text),
        "--ctorigdstport": lambda text: packet.port == int(text),
        "-i": lambda text: packet.interface.startswith(text[:-1]) if text.endswith("+") else packet.interface == text,
        "--dst-type": lambda _: packet.to_node or packet.destination in own,
    }
    expected = True  # unless `!` stands before
    for name, value in pairwise(options):
        if name in facts and facts[name](value) is not expected:
            return False
        expected = name != "!"
    return True
