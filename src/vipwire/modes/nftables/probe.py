"""Tries whether this kernel supports the table of nftables mode, without creating the table.

Kernels can lack families, NAT or maps, and release numbers do not tell. So vipwire sends one transaction whose last
step must fail: the kernel executes all steps, reports its lack, and rolls back before another process sees the table.
The transaction has the constant objects and one of each part that Services need, for all families, because a rollback
takes ten milliseconds. If it fails, vipwire tries each family and part alone to name the missing ones.

`since` (release) and `module` of a part only inform the reader of the error.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from vipwire.config.sections import CounterLevel
from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.counts import CONNECTIONS, build_connection_chains, list_counting_sets
from vipwire.modes.nftables.table.names import (
    CHAIN,
    DSTNAT,
    FLOWTABLE,
    SET,
    SRCNAT,
    Chain,
    FlowtableSpec,
    Goto,
    Hook,
    IntervalElement,
    Object,
    ObjectKey,
    Space,
)
from vipwire.modes.nftables.table.pools import build_affinity_set
from vipwire.modes.nftables.table.script import DescribedOperation, build_operations
from vipwire.modes.nftables.table.skeleton import RANGES, Words, build_node_objects, declare_sets
from vipwire.plan.node import NodePlan
from vipwire.reconcile.delta import Delta

Objects: TypeAlias = Mapping[ObjectKey, Object]


LACKING: Final = frozenset({errno.EOPNOTSUPP, errno.ENOENT, errno.EINVAL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""The errno values of a missing kernel feature. Any other error may be temporary, so the first sync reports it."""


class Feature(NamedTuple):
    """A part of nf_tables, with its use in vipwire and the objects of its trial.

    Without a part that is not `needed` the mode runs, and the kernel refuses only the Services whose rules contain
    `word`.
    """

    name: str
    needed_by: str
    since: str
    module: str
    objects: Callable[[Family], Objects]
    needed: bool = True
    word: str = ""


def _build_chain_objects(name: str, *rules: str, hook: Hook | None = None) -> Objects:
    return {(CHAIN, f"tried-{name}".encode()): Chain(rules, hook)}


def _build_rules_trial(name: str, *rules: str, hook: Hook | None = None) -> Callable[[Family], Objects]:
    """Make the trial of rules in one chain; they have the family's `{ip}` and `{vip}`."""

    def objects(family: Family) -> Objects:
        vip = "192.0.2.1" if family is Family.IPV4 else "2001:db8::1"
        return _build_chain_objects(name, *(rule.format(ip=Words(family).ip, vip=vip) for rule in rules), hook=hook)

    return objects


def _build_concatenation(family: Family) -> Objects:
    words = Words(family)
    frontends = SetSpec("tried-frontends", words.frontend[Space.SERVICE], ("meta priority",))
    rule = f"meta priority set {words.key(Space.SERVICE)} map @tried-frontends accept"
    return {(SET, b"tried-frontends"): frontends, **_build_chain_objects("concatenation", rule)}


def _build_verdict_map(_family: Family) -> Objects:
    elements: Objects = {("tried-verdicts", bytes(4)): Goto("tried-there")}
    verdicts = SetSpec("tried-verdicts", ("meta priority",), "verdict")
    chains = {
        **_build_chain_objects("there"),
        **_build_chain_objects("verdict", "meta priority vmap @tried-verdicts"),
    }
    return {(SET, b"tried-verdicts"): verdicts, **chains, **elements}


def _build_intervals(family: Family) -> Objects:
    words, size = Words(family), family.bits // 8
    declared = next(spec for spec in declare_sets(family) if spec.name == RANGES)
    rule = f"{words.key(Space.SERVICE)} . {words.ip} saddr != @{RANGES} drop"
    first, last = bytes(2 * size + 8), bytes(size + 8) + b"\xff" * size
    elements: Objects = {(RANGES, first): IntervalElement(last, "")}
    return {(SET, RANGES.encode()): declared, **_build_chain_objects("interval", rule), **elements}


def _build_memory(family: Family) -> Objects:
    client = f"{Words(family).ip} saddr"
    changes = (("update", " timeout 10s"), ("delete", ""))
    rules = (f"{verb} @tried-memory {{ {client}{life} : meta priority }}" for verb, life in changes)
    return {
        (SET, b"tried-memory"): build_affinity_set(family, "tried-memory"),
        **_build_chain_objects("memory", *rules),
    }


def _build_counting(family: Family) -> Objects:
    declared = next(spec for spec in list_counting_sets(family) if spec.name == CONNECTIONS)
    (name, chain), *_ = build_connection_chains(family, CounterLevel.CONNECTIONS)
    return {(SET, CONNECTIONS.encode()): declared, (CHAIN, name.encode()): chain}


def _build_offloading(_family: Family) -> Objects:
    rule, hook = "ct packets > 20 flow add @tried-flowtable", Hook("filter", "forward", 0)
    return {(FLOWTABLE, b"tried-flowtable"): FlowtableSpec(), **_build_chain_objects("offload", rule, hook=hook)}


_AT_DSTNAT, _AT_SRCNAT = Hook("nat", "prerouting", DSTNAT), Hook("nat", "postrouting", SRCNAT)
# fmt: off
FEATURES: Final = (
    Feature("tables of this family", "everything", "3.13", "CONFIG_NF_TABLES_{family}",
            _build_rules_trial("filter", "return", hook=Hook("filter", "prerouting", -110))),
    Feature("translation (nat chains, dnat)", "everything", "3.13", "nft_chain_nat and nft_nat",
            _build_rules_trial("dnat", "dnat {ip} to {vip}", hook=_AT_DSTNAT)),
    Feature("nat chains at input", "counting", "3.13", "nft_chain_nat",
            _build_rules_trial("input", "return", hook=Hook("nat", "input", SRCNAT))),
    Feature("masquerade fully-random", "masquerading, hairpins", "3.18", "nft_masq",
            _build_rules_trial("masquerade", "masquerade fully-random", hook=_AT_SRCNAT)),
    Feature("reject, with a TCP reset", "refusals", "3.14", "nft_reject_ipv4, nft_reject_ipv6",
            _build_rules_trial(
                "reject", "meta l4proto tcp reject with tcp reset", "reject", hook=Hook("filter", "input", 0))),
    Feature("ct state, ct status", "refusals, source ranges", "3.13", "nft_ct",
            _build_rules_trial("state", "ct state new ct status dnat return")),
    Feature("fib", "node ports, the policy Local", "4.10", "nft_fib_ipv4, nft_fib_ipv6",
            _build_rules_trial("fib", "fib saddr type local return", "fib daddr type local return")),
    Feature("maps whose keys are concatenations", "every frontend", "4.1", "CONFIG_NF_TABLES", _build_concatenation),
    Feature("verdict maps", "choosing an endpoint", "3.13", "CONFIG_NF_TABLES", _build_verdict_map),
    Feature("intervals in concatenations", "source ranges, port ranges", "5.6", "CONFIG_NF_TABLES", _build_intervals),
    Feature("numgen", "random, round-robin", "4.9", "nft_numgen",
            _build_rules_trial(
                "numgen", *(f"meta priority set numgen {how} mod 2 offset 1" for how in ("random", "inc")))),
    Feature("jhash", "source-hash, maglev", "4.9", "nft_hash",
            _build_rules_trial("jhash", "meta priority set jhash {ip} saddr mod 2 seed 0x1 offset 1"),
            needed=False, word="jhash"),
    Feature("update and delete in maps from rules", "session affinity", "5.4", "CONFIG_NF_TABLES", _build_memory),
    Feature("elements with counters, ct original", "counting", "5.7", "nft_ct and nft_counter", _build_counting),
)
"""The parts, in the order in which they build on each other."""

OFFLOADING: Final = Feature(
    "flowtables", "--offload-packet-threshold", "5.8",
    "nf_flow_table_inet and nft_flow_offload (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)",
    _build_offloading, needed=False)
"""The part for the fast path, which a flag and no Service asks for."""
# fmt: on


def describe_advice(words: str) -> str:
    """Explain the kernel's lack for one Service's rules; "" if unknown."""
    for each in FEATURES:
        if each.word and each.word in words:
            return (
                f"this kernel has no {each.name} ({each.needed_by}): load {each.module}, or use a kernel that has it"
            )
    return ""


_NOWHERE: Final = "vipwire-trial"
"""No table has this name, so deleting it fails."""
_NEEDED: Final = tuple(each for each in FEATURES if each.needed)

Send: TypeAlias = Callable[[list[Operation]], tuple[int, list[Acknowledgement]]]
"""Sends a transaction; returns its first sequence number and the kernel's answers."""


class KernelRefusal(NamedTuple):
    """The operation that the kernel refuses, in words, and its errno."""

    words: str
    code: int

    def __str__(self) -> str:
        return f"`{self.words}` ({errno.errorcode.get(self.code, self.code)})"


def probe_kernel(families: Iterable[Family]) -> None:
    """Raise UnsupportedError if the kernel cannot hold the table, with the missing features and the remedy."""
    with _open_socket() as send:
        try_tables(tuple(families), send)


def find_offloading_obstacle(families: Iterable[Family]) -> str:
    """Return the kernel's lack for offloading and the remedy; "" if it supports offloading.

    Raise OSError if the kernel does not answer.
    """
    with _open_socket() as send:
        return next(filter(None, (try_offloading(family, send) for family in families)), "")


@contextmanager
def _open_socket() -> Iterator[Send]:
    with NetlinkSocket(NETLINK_NETFILTER) as sock:

        def send(operations: list[Operation]) -> tuple[int, list[Acknowledgement]]:
            first = sock.reserve_sequence_numbers(len(operations) + 2)
            sock.send(*encode.encode_transaction(operations, first))
            return first, sock.read_acknowledgements()

        yield send


def try_tables(families: Sequence[Family], send: Send) -> None:
    """Try the tables of all families at once; if the kernel refuses, try each alone."""
    if families and _try_objects({family: _build_whole_table(family) for family in families}, send) is not None:
        for family in families:
            try_table(family, send)


def try_table(family: Family, send: Send) -> None:
    """Try all parts at once; if the kernel refuses, raise UnsupportedError with the missing parts."""
    refusal = _try_objects({family: _build_whole_table(family)}, send)
    if refusal is not None:
        missing = [each for each in _NEEDED if _try_objects({family: each.objects(family)}, send)]
        raise _unsupported_error(family, refusal, missing)


def _build_whole_table(family: Family) -> Mapping[ObjectKey, Object]:
    whole = dict(build_node_objects(NodePlan(family)))
    for feature in _NEEDED:
        whole.update(feature.objects(family))
    return whole


def try_offloading(family: Family, send: Send) -> str:
    """Try a flowtable; return the missing features and the remedy, "" if it works."""
    refusal = _try_objects({family: OFFLOADING.objects(family)}, send)
    if refusal is None:
        return ""
    return (
        f"this kernel cannot offload connections of {family.value}: it refuses {refusal}; load or build in "
        f"{OFFLOADING.module}, in Linux {OFFLOADING.since} or newer"
    )


def _try_objects(objects: Mapping[Family, Mapping[ObjectKey, Object]], send: Send) -> KernelRefusal | None:
    """Send a table of these objects in each family, with a rollback; return the refusal, None if it works."""
    tried: list[DescribedOperation] = []
    for family, wanted in objects.items():
        tried += build_operations(family, Delta(added=dict(wanted)), recreate=True)
    tried.append(DescribedOperation(encode.delete_table(next(iter(objects)), _NOWHERE), "delete no table"))
    first, answers = send([step.operation for step in tried])
    for answer in answers:
        step = encode.find_refused(tried, first, answer.sequence)
        if answer.errno in LACKING and step is not tried[-1]:
            return KernelRefusal(step.words if step else "a transaction", answer.errno)
    return None


def _unsupported_error(family: Family, refusal: KernelRefusal, missing: list[Feature]) -> UnsupportedError:
    name = family.value
    said = f"nftables mode cannot run here: the kernel has nf_tables, but refuses {refusal} for {name}"
    if not missing:  # no part alone fails: report the kernel's own error
        return UnsupportedError(f"{said}: use another mode (--proxy-mode)")
    parts = "; ".join(f"{each.name} (in Linux since {each.since})" for each in missing)
    modules = ", ".join(dict.fromkeys(each.module for each in missing)).format(family=name.upper())
    return UnsupportedError(
        f"{said}; it lacks {parts}: load or build in {modules}, use a newer kernel, or another mode (--proxy-mode)"
    )
