"""The possible effects of a rule on the first packet of a connection, and the targets of its jumps. Pure.

Compares the conditions that the packet's bytes decide and takes all others for possible. So a chain without effects
certainly lets the packet pass, and a chain with effects may decide about it.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple


class RuleEffect(enum.Enum):
    """A possible effect on a packet before vipwire's rules; the value is the word in JSON."""

    TRANSLATE = "translate"
    DROP = "drop"
    QUEUE = "queue"
    DIVERT = "divert"
    UNTRACK = "untrack"
    MARK = "mark"
    UNMARK = "unmark"
    OTHER = "other"


class RuleOutcome(NamedTuple):
    """A rule for one packet. `ends`: the packet certainly does not reach the next rule of this chain."""

    effects: frozenset[RuleEffect] = frozenset()
    chains: tuple[str, ...] = ()
    ends: bool = False


NOTHING: Final = RuleOutcome()
_NAMES: Final = {
    **dict.fromkeys(("DNAT", "SNAT", "REDIRECT", "MASQUERADE", "NETMAP", "DNPT", "SNPT"), RuleEffect.TRANSLATE),
    **dict.fromkeys(("DROP", "REJECT", "TARPIT"), RuleEffect.DROP),
    **dict.fromkeys(("QUEUE", "NFQUEUE"), RuleEffect.QUEUE),
    **dict.fromkeys(("TPROXY", "SYNPROXY"), RuleEffect.DIVERT),
    "NOTRACK": RuleEffect.UNTRACK,
}
_PHRASES: Final = {
    RuleEffect.MARK: "set vipwire's mark",
    RuleEffect.UNMARK: "clear vipwire's mark",
    RuleEffect.OTHER: "change",
}
_HARMLESS: Final = frozenset(
    (
        *("AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "ECN", "HL", "HMARK"),
        *("IDLETIMER", "LED", "LOG", "MARK", "NFLOG", "RATEEST", "SECMARK", "SET", "TCPMSS", "TCPOPTSTRIP", "TEE"),
        *("TOS", "TRACE", "TTL", "ULOG"),
    )
)


def find_target_effects(name: str) -> frozenset[RuleEffect]:
    """Return the effects of an xtables target; an unknown target may do anything."""
    if name in _HARMLESS:
        return frozenset()
    return frozenset({_NAMES.get(name, RuleEffect.OTHER)})


def find_mark_effects(value: int, mask: int, ours: int) -> frozenset[RuleEffect]:
    """Return the effects of a write to the packet's mark: clear the bits of `mask`, then xor `value`.

    `ours` is the bit that selects packets for vipwire's masquerading chain.
    """
    if mask & ours:
        return frozenset({RuleEffect.MARK if value & ours else RuleEffect.UNMARK})
    return frozenset({RuleEffect.MARK, RuleEffect.UNMARK} if value & ours else ())


def effects_of(
    start: str,
    rules: Callable[[str], Sequence[RuleOutcome]],
    *,
    drops: bool,
    ours: Callable[[str], bool],
    ends_at_ours: bool,
) -> frozenset[RuleEffect]:
    """Collect the effects of a base chain and of all chains that it jumps to. `drops`: its policy is drop.

    Skips the chains for which `ours` is true. With `ends_at_ours`, rules after a jump to them do not count.
    """
    found: set[RuleEffect] = set()
    seen, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        for rule in rules(name):
            found |= rule.effects
            led = [chain for chain in rule.chains if not ours(chain)]
            waiting += [chain for chain in led if chain not in seen]
            seen.update(led)
            if rule.ends or (ends_at_ours and len(led) < len(rule.chains)):
                break
        else:
            if drops and name == start:
                found.add(RuleEffect.DROP)
    return frozenset(found)


def describe_effects(effects: Iterable[RuleEffect]) -> str:
    names = [_PHRASES.get(each, each.value) for each in RuleEffect if each in effects]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
