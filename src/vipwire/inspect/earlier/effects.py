"""What a rule may do to the first packet of a connection, and where it leads, whoever wrote it. Pure.

A rule has effects only if its conditions can hold for the packet: those that the packet's bytes decide are compared,
all others may hold. So a chain without effects lets the packet pass, and one with effects may decide about it.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple


class RuleEffect(enum.Enum):
    """What decides about a packet before vipwire does; the value is what JSON has."""

    TRANSLATE = "translate"
    DROP = "drop"
    QUEUE = "queue"
    DIVERT = "divert"
    UNTRACK = "untrack"
    MARK = "mark"
    UNMARK = "unmark"
    OTHER = "other"


class RuleOutcome(NamedTuple):
    """A rule for one packet. `ends`: the packet certainly goes no further in this chain."""

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


def of_target(name: str) -> frozenset[RuleEffect]:
    """Return what a target of xtables does; a target that is not known may do anything."""
    if name in _HARMLESS:
        return frozenset()
    return frozenset({_NAMES.get(name, RuleEffect.OTHER)})


def of_mark(value: int, mask: int, ours: int) -> frozenset[RuleEffect]:
    """Return what writing a packet's mark does to the bit `ours`: the bits of `mask` are cleared, then `value` xored.

    With that bit vipwire tells its masquerading chain which packets to masquerade.
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
    """Collect what a base chain and all chains that it leads to may do. `drops`: its policy is drop.

    The chains `ours` are passed over. With `ends_at_ours` vipwire decides there, so that nothing behind counts.
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


def words(effects: Iterable[RuleEffect]) -> str:
    """Write effects for a person: `translate or drop`."""
    names = [_PHRASES.get(each, each.value) for each in RuleEffect if each in effects]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
