"""Finds the iptables variant of the host, and the matches of its kernel.

vipwire chooses the variant like the iptables-wrappers of Kubernetes images, so that kubelet, the network plugin and
vipwire use one engine: the engine with kubelet's chains, then with kube-proxy's, then with more rules, then that of
the plain name `iptables`. The kernel applies the rules of both engines, so vipwire reports rules in both.
"""

import ctypes
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from vipwire.errors import BusyError, CommitError, UnsupportedError
from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_dump import count_rules, list_chains
from vipwire.modes.iptables.nfacct import ensure_counters
from vipwire.modes.iptables.rules.choice import write_hash_match
from vipwire.modes.iptables.rules.names import FILTER, INVALID_COUNTER, LOCALHOST_COUNTER, NAT, TABLES
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.legacy import Census, LegacySocket
from vipwire.modes.xtables.ownership import KUBELETS
from vipwire.modes.xtables.tool import (
    IptablesTool,
    Variant,
    find_preferred_variant,
    find_versions,
    list_legacy_tables,
)

T = TypeVar("T")

_CLONE_NEWNET: Final = 0x40000000


def run_in_empty_namespace(work: Callable[[], T]) -> T:
    """Run `work` in an empty network namespace, without foreign rules and locks; return or raise its result.

    The namespace has the same modules and programs. If vipwire cannot create one, `work` runs in this namespace. A
    separate thread runs it, because a network namespace belongs to a thread (unshare(2)).
    """

    def run() -> T:
        ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


PURPOSE: Final = "iptables mode"
PROBE: Final = "KUBE-PROXY-PROBE"
_WAIT_SECONDS: Final = 2
_TRIES: Final = 20
UNTRIED: Final = "the matches and targets of this kernel were not tried"
_RECENT: Final = Path("/sys/module/xt_recent/parameters/ip_list_tot")


class Need(NamedTuple):
    """A match or target: its trial, its purpose, and `feature`, the setting that works without it."""

    name: str
    table: str
    rule: str
    purpose: str
    feature: str = ""
    instead: str = ""


_NEEDS: Final = (
    Need("comment", NAT, '-m comment --comment "a b" -j RETURN', "naming the Service of each rule"),
    Need("tcp", NAT, "-p tcp -m tcp --dport 1 -j RETURN", "TCP Services"),
    Need("udp", NAT, "-p udp -m udp --dport 1 -j RETURN", "UDP Services"),
    Need("mark", NAT, "-m mark --mark 0x4000/0x4000 -j RETURN", "masquerading"),
    Need("MARK", NAT, "-j MARK --set-xmark 0x4000/0x4000", "masquerading"),
    Need("MASQUERADE", NAT, "-j MASQUERADE", "masquerading"),
    Need("addrtype", NAT, "-m addrtype --dst-type LOCAL -j RETURN", "recognising this node's addresses: node ports"),
    Need("conntrack", FILTER, "-m conntrack --ctstate NEW -j RETURN", "recognising new connections"),
    Need("REJECT", FILTER, "-j REJECT", "refusing clients"),
    Need("statistic", NAT, "-m statistic --mode random --probability 0.5 -j RETURN", "choosing a random endpoint"),
    Need(
        "recent",
        NAT,
        f"-m recent --set --name {PROBE}",
        "session affinity",
        "affinity",
        "Services with session affinity are balanced without it",
    ),
    Need(
        "bpf",
        NAT,
        write_hash_match(Family.IPV4, 2, 1),
        "the algorithm source-hash",
        "source_hash",
        "Services with that algorithm are balanced at random",
    ),
    Need(
        "MASQUERADE --random-fully",
        NAT,
        "-j MASQUERADE --random-fully",
        "source ports that do not collide",
        "random_fully",
        "MASQUERADE is used without it",
    ),
    Need(
        "nfacct",
        FILTER,
        f"-m nfacct --nfacct-name {INVALID_COUNTER}",
        "two of kube-proxy's metrics",
        "counters",
        "these metrics are absent",
    ),
)


class SetupNote(NamedTuple):
    """A note for the operator about this machine: fact, reason and remedy."""

    what: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variant of the host, the reason, and whether the other engine has rules, too.

    `works`: the engine has chains of Kubernetes, so the kernel can write its tables.
    """

    variant: Variant
    reason: str
    both: bool = False
    works: bool = False


def choose_variant(families: Iterable[Family]) -> VariantChoice:
    """Choose the variant of this host. Raise UnsupportedError if none is installed."""
    installed = find_versions()
    if not installed:
        raise UnsupportedError(
            "iptables mode needs the programs iptables, iptables-save and iptables-restore (version 1.8 or later): "
            "install the package iptables, or choose another --proxy-mode"
        )
    families = tuple(families)
    found = {variant: find_presence(variant, families) for variant in installed}
    if find_marked(found) is None:
        found = {variant: find_presence(variant, families, exact=True) for variant in installed}
    return decide_variant(found, find_preferred_variant())


class Presence(NamedTuple):
    """The contents of a variant: kubelet's chains, chains of Kubernetes, any rules."""

    kubelet: bool = False
    kubes: bool = False
    rules: int = 0


def find_presence(variant: Variant, families: Iterable[Family], *, exact: bool = False) -> Presence:
    """Examine every readable table of a variant.

    `exact` counts the rules of nf_tables; otherwise 1 stands for any number, because a table may have 100,000.
    """
    chains: set[str] = set()
    rules = 0
    for family in families:
        try:
            found = _count_nft_rules(family, exact=exact) if variant is Variant.NFT else _count_legacy_rules(family)
        except OSError:
            continue
        chains |= found.chains
        rules += found.rules
    return Presence(not chains.isdisjoint(KUBELETS), any(chain.startswith("KUBE-") for chain in chains), rules)


def _count_legacy_rules(family: Family) -> Census:
    """Count the contents of the existing tables; reading another table would create it."""
    chains: frozenset[str] = frozenset()
    rules = 0
    with closing(LegacySocket(family)) as opened:
        for table in list_legacy_tables(family):
            if table in TABLES:
                with suppress(OSError):
                    found = opened.count_rules(table)
                    chains, rules = chains | found.chains, rules + found.rules
    return Census(chains, rules)


def _count_nft_rules(family: Family, *, exact: bool) -> Census:
    """Count the contents of the tables; retry if a foreign commit interrupts."""
    for _ in range(_TRIES):
        with NetlinkSocket(NETLINK_NETFILTER) as sock, suppress(DumpInterruptedError):
            chains = list_chains(sock, family)
            rules = count_rules(sock, family, chains) if exact else any(_has_rules(family, table) for table in TABLES)
            return Census(frozenset[str]().union(*chains.values()), int(rules))
    raise OSError(errno.EINTR, "other programs change the tables too often")


def _has_rules(family: Family, table: str) -> bool:
    """Report whether a table of nf_tables has a rule, on a separate socket that need not be drained."""
    with NetlinkSocket(NETLINK_NETFILTER) as sock, suppress(NetlinkError):
        return next(sock.dump(MessageType.GETRULE, encode.list_objects(family, table)), None) is not None
    return False


def decide_variant(found: Mapping[Variant, Presence], plain: Variant | None) -> VariantChoice:
    """Choose among the installed variants by their contents. Pure."""
    variant, reason = _decide_by_rules(found, plain)
    return VariantChoice(
        variant,
        reason,
        any(there.rules for other, there in found.items() if other is not variant),
        found[variant].kubes,
    )


def find_marked(found: Mapping[Variant, Presence]) -> tuple[Variant, str] | None:
    """Return the only variant with kubelet's chains, or else with chains of Kubernetes, and a description of them."""
    marks: tuple[tuple[str, Callable[[Presence], bool]], ...] = (
        ("kubelet's chains are there", lambda there: there.kubelet),
        ("KUBE- chains are there", lambda there: there.kubes),
    )
    for reason, told in marks:
        having = [variant for variant, there in found.items() if told(there)]
        if len(having) == 1:
            return having[0], reason
    return None


def _decide_by_rules(found: Mapping[Variant, Presence], plain: Variant | None) -> tuple[Variant, str]:
    if chosen := find_marked(found):
        return chosen
    if len({there.rules for there in found.values()}) > 1:
        most = max(found, key=lambda variant: found[variant].rules)
        return most, f"{found[most].rules} rules are there"
    if plain is not None and plain in found:
        return plain, "the program iptables is of that kind"
    return next(iter(found)), "it is installed"


def choose_workable(choice: VariantChoice, families: Iterable[Family]) -> VariantChoice:
    """Choose the other variant if the kernel refuses every table of this one: a kernel may support half of nf_tables.

    Raise UnsupportedError with both refusals if neither works.
    """
    if choice.works:
        return choice
    family = next(iter(families))
    reasons: list[str] = []
    for variant in sorted(find_versions(family), key=lambda each: each is not choice.variant):
        tool = IptablesTool(family, variant, PURPOSE)
        try:
            reason = _find_refusal(tool, ())
        except BusyError:
            return choice
        if not reason:
            _remove_probe_chains(tool)
            return choice if variant is choice.variant else VariantChoice(variant, f"the other fails: {reasons[0]}")
        reasons.append(reason)
    raise UnsupportedError(
        f"{PURPOSE} cannot run here, because the kernel refuses every chain: {'; '.join(reasons)}; "
        "load ip_tables and iptable_nat, or nf_tables and nft_compat, or choose another --proxy-mode"
    )


def probe_matches(tool: IptablesTool, settings: RuleSettings) -> tuple[RuleSettings, list[SetupNote]]:
    """Try the rules' needs; return the settings that this machine supports, and notes about the others.

    Raise UnsupportedError if an indispensable need is missing. While another program holds the xtables lock, try
    nothing and assume that all works.
    """
    notes: list[SetupNote] = []
    if settings.counters and (obstacle := ensure_counters((INVALID_COUNTER, LOCALHOST_COUNTER))):
        settings = replace(settings, counters=False)
        notes.append(SetupNote("nfacct", obstacle, "kube-proxy's two metrics of such counters are absent"))
    needs = [need for need in _NEEDS if not need.feature or getattr(settings, need.feature)]
    try:
        refused = run_in_empty_namespace(lambda: _try_needs(tool, needs))
    except BusyError as error:
        return settings, [SetupNote(UNTRIED, str(error), "refused rules will show missing parts")]
    for need, reason in refused.items():
        if not reason:
            continue
        if not need.feature:
            raise UnsupportedError(
                f"{tool.name} cannot do {need.name!r}, which is for {need.purpose}: {reason}; "
                f"load the kernel module (modprobe xt_{need.name}) or choose another --proxy-mode"
            )
        settings = replace(settings, **{need.feature: False})
        notes.append(SetupNote(need.name, f"it is for {need.purpose}: {reason}", need.instead))
    return settings, notes


def _try_needs(tool: IptablesTool, needs: Sequence[Need]) -> dict[Need, str]:
    ensure_counters((INVALID_COUNTER, LOCALHOST_COUNTER))
    refused = {} if not _find_refusal(tool, needs) else {need: _find_refusal(tool, [need]) for need in needs}
    _remove_probe_chains(tool)
    return refused


def find_affinity_limit(clients: Path = _RECENT) -> SetupNote | None:
    """Return a note if `-m recent` remembers only the kernel's small default of clients for each endpoint."""
    try:
        limit = int(clients.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if limit >= 1000:
        return None
    return SetupNote(
        "session affinity",
        f"the kernel remembers {limit} clients for each endpoint, and drops the oldest",
        "load its module with more: modprobe xt_recent ip_list_tot=10000 ip_list_hash_size=1024, or add "
        "xt_recent.ip_list_tot=10000 to the kernel's command line",
    )


def _find_refusal(tool: IptablesTool, needs: Iterable[Need]) -> str:
    """Write rules into a chain without jumps to it; return the kernel's refusal, "" if accepted."""
    lines: list[str] = []
    for table in (FILTER, NAT):
        rules = [f"-A {PROBE} {need.rule}" for need in needs if need.table == table]
        lines += [f"*{table}", f":{PROBE} - [0:0]", *rules, "COMMIT"]
    try:
        tool.restore("\n".join([*lines, ""]), _WAIT_SECONDS)
    except BusyError:
        raise
    except CommitError as error:
        return str(error)
    return ""


def _remove_probe_chains(tool: IptablesTool) -> None:
    lines = (f"*{table}\n:{PROBE} - [0:0]\n-X {PROBE}\nCOMMIT\n" for table in (FILTER, NAT))
    tool.restore("".join(lines), _WAIT_SECONDS)
