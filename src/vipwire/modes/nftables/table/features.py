"""Lists the parts of nf_tables that the table is made of, each with objects to try on a kernel. Pure.

The table is one transaction of hundreds of operations. Where a kernel refuses it, `probe` tries these one by one and
so names what is missing. `since` is the first release that has the part, `module` what provides it: both are for the
person who reads the error, and decide nothing.
"""

import errno
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from vipwire.config.sections import CounterLevel
from vipwire.model.net import Family
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.counts import CONNECTIONS, connection_chains, counting_sets
from vipwire.modes.nftables.table.names import (
    CHAIN,
    DSTNAT,
    FLOWTABLE,
    SET,
    SRCNAT,
    Chain,
    Flowtable,
    Hook,
    IntervalElement,
    Object,
    ObjectKey,
    Space,
    Verdict,
)
from vipwire.modes.nftables.table.skeleton import RANGES, Words, memory_set, sets

Objects: TypeAlias = Mapping[ObjectKey, Object]
_Tried: TypeAlias = Callable[[Words, Family], Objects]


LACKING: Final = frozenset({errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""What a kernel says of what it does not have. Anything else is for the first sync to say: it may pass."""


class Feature(NamedTuple):
    """A part of nf_tables: what of vipwire asks for it, and what is tried.

    Without one that is not `needed` the mode runs, and the kernel refuses only Services that ask for it. `word` is
    in their rules.
    """

    name: str
    needed_by: str
    since: str
    module: str
    tried: _Tried
    needed: bool = True
    word: str = ""

    def objects(self, family: Family) -> Objects:
        """Write what is tried, for a family."""
        return self.tried(Words(family), family)


def _chain(name: str, *rules: str, hook: Hook | None = None) -> Objects:
    return {(CHAIN, f"tried-{name}".encode()): Chain(rules, hook)}


def _filtering(_words: Words, _family: Family) -> Objects:
    return _chain("filter", "return", hook=Hook("filter", "prerouting", -110))


def _translating(words: Words, family: Family) -> Objects:
    vip = "192.0.2.1" if family is Family.IPV4 else "2001:db8::1"
    return _chain("dnat", f"dnat {words.ip} to {vip}", hook=Hook("nat", "prerouting", DSTNAT))


def _at_input(_words: Words, _family: Family) -> Objects:
    return _chain("input", "return", hook=Hook("nat", "input", SRCNAT))


def _masquerading(_words: Words, _family: Family) -> Objects:
    return _chain("masquerade", "masquerade fully-random", hook=Hook("nat", "postrouting", SRCNAT))


def _rejecting(_words: Words, _family: Family) -> Objects:
    rules = ("meta l4proto tcp reject with tcp reset", "reject")
    return _chain("reject", *rules, hook=Hook("filter", "input", 0))


def _state(_words: Words, _family: Family) -> Objects:
    return _chain("state", "ct state new ct status dnat return")


def _addresses(words: Words, _family: Family) -> Objects:
    del words
    return _chain("fib", "fib saddr type local return", "fib daddr type local return")


def _concatenation(words: Words, _family: Family) -> Objects:
    frontends = SetSpec("tried-frontends", words.frontend[Space.SERVICE], ("meta priority",))
    rule = f"meta priority set {words.key(Space.SERVICE)} map @tried-frontends accept"
    return {(SET, b"tried-frontends"): frontends, **_chain("concatenation", rule)}


def _verdict_map(_words: Words, _family: Family) -> Objects:
    elements: Objects = {("tried-verdicts", bytes(4)): Verdict("tried-there")}
    verdicts = SetSpec("tried-verdicts", ("meta priority",), "verdict")
    chains = {**_chain("there"), **_chain("verdict", "meta priority vmap @tried-verdicts")}
    return {(SET, b"tried-verdicts"): verdicts, **chains, **elements}


def _intervals(words: Words, family: Family) -> Objects:
    declared = next(spec for spec in sets(family) if spec.name == RANGES)
    rule = f"{words.key(Space.SERVICE)} . {words.ip} saddr != @{RANGES} drop"
    size = family.bits // 8
    first, last = bytes(2 * size + 8), bytes(size + 8) + b"\xff" * size
    elements: Objects = {(RANGES, first): IntervalElement(last, "")}
    return {(SET, RANGES.encode()): declared, **_chain("interval", rule), **elements}


def _choosing(_words: Words, _family: Family) -> Objects:
    return _chain("numgen", *(f"meta priority set numgen {how} mod 2 offset 1" for how in ("random", "inc")))


def _hashing(words: Words, _family: Family) -> Objects:
    return _chain("jhash", f"meta priority set jhash {words.ip} saddr mod 2 seed 0x1 offset 1")


def _remembering(words: Words, family: Family) -> Objects:
    changes = (("update", " timeout 10s"), ("delete", ""))
    client = f"{words.ip} saddr"
    rules = (f"{verb} @tried-memory {{ {client}{life} : meta priority }}" for verb, life in changes)
    return {(SET, b"tried-memory"): memory_set(family, "tried-memory"), **_chain("memory", *rules)}


def _counting(_words: Words, family: Family) -> Objects:
    declared = next(spec for spec in counting_sets(family) if spec.name == CONNECTIONS)
    (name, chain), *_ = connection_chains(family, CounterLevel.CONNECTIONS)
    return {(SET, CONNECTIONS.encode()): declared, (CHAIN, name.encode()): chain}


def _offloading(_words: Words, _family: Family) -> Objects:
    rule = "ct packets > 20 flow add @tried-flowtable"
    return {
        (FLOWTABLE, b"tried-flowtable"): Flowtable(),
        **_chain("offload", rule, hook=Hook("filter", "forward", 0)),
    }


FEATURES: Final = (
    Feature("tables of this family", "everything", "3.13", "CONFIG_NF_TABLES_{family}", _filtering),
    Feature("translation (nat chains, dnat)", "everything", "3.13", "nft_chain_nat and nft_nat", _translating),
    Feature("nat chains at input", "counting", "3.13", "nft_chain_nat", _at_input),
    Feature("masquerade fully-random", "masquerading, hairpins", "3.18", "nft_masq", _masquerading),
    Feature("reject, with a TCP reset", "refusals", "3.14", "nft_reject_ipv4, nft_reject_ipv6", _rejecting),
    Feature("ct state, ct status", "refusals, source ranges", "3.13", "nft_ct", _state),
    Feature("fib", "node ports, the policy Local", "4.10", "nft_fib_ipv4, nft_fib_ipv6", _addresses),
    Feature("maps whose keys are concatenations", "every frontend", "4.1", "CONFIG_NF_TABLES", _concatenation),
    Feature("verdict maps", "choosing an endpoint", "3.13", "CONFIG_NF_TABLES", _verdict_map),
    Feature("intervals in concatenations", "source ranges, port ranges", "5.6", "CONFIG_NF_TABLES", _intervals),
    Feature("numgen", "random, round-robin", "4.9", "nft_numgen", _choosing),
    Feature("jhash", "source-hash, maglev", "4.9", "nft_hash", _hashing, needed=False, word="jhash"),
    Feature("update and delete in maps from rules", "session affinity", "5.4", "CONFIG_NF_TABLES", _remembering),
    Feature("elements with counters, ct original", "counting", "5.7", "nft_ct and nft_counter", _counting),
)
"""The parts, what others build on first."""

OFFLOADING: Final = Feature(
    "flowtables",
    "--offload-packet-threshold",
    "5.8",
    "nf_flow_table_inet and nft_flow_offload (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)",
    _offloading,
    needed=False,
)
"""What the fast path is made of; asked for by a flag, and by no Service."""


def advice(words: str) -> str:
    """Explain what the kernel lacks for what one Service asks for; "" if that is unknown."""
    for each in FEATURES:
        if each.word and each.word in words:
            return (
                f"this kernel has no {each.name} ({each.needed_by}): load {each.module}, or use a kernel that has it"
            )
    return ""
