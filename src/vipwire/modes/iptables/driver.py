"""The Driver of iptables mode: one variant for all families, with the settings that the machine supports."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import CommitError
from vipwire.logging import log
from vipwire.model.net import Address, Family, Protocol, format_address
from vipwire.model.sysctl import Sysctl
from vipwire.modes.iptables.access.nft_access import NftAccess
from vipwire.modes.iptables.access.tool_access import LockWait, RuleAccess, ToolAccess
from vipwire.modes.iptables.change_detector import build_change_detectors
from vipwire.modes.iptables.kernel import BATCH, IptablesBackend
from vipwire.modes.iptables.nfacct import ensure_counters, read_counter
from vipwire.modes.iptables.probe import (
    PROBE,
    PURPOSE,
    UNTRIED,
    SetupNote,
    choose_variant,
    choose_workable,
    find_affinity_limit,
    probe_matches,
    run_in_empty_namespace,
)
from vipwire.modes.iptables.rules.choice import write_hash_match
from vipwire.modes.iptables.rules.names import FILTER, INVALID_COUNTER, LOCALHOST_COUNTER, NAT, Rules
from vipwire.modes.iptables.rules.ownership import IptablesOwner
from vipwire.modes.iptables.rules.script import RestoreInput, TablePart
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.words import count_packets, match_chance, match_masked, match_seen, remember
from vipwire.modes.spec import Driver, Mode, NatPriorities
from vipwire.modes.xtables.binary.words import UnknownRuleError
from vipwire.modes.xtables.tool import IptablesTool, Variant, find_tools_with_tables
from vipwire.modes.xtables.words import (
    LOCAL_DESTINATION,
    LOCAL_SOURCE,
    NEW,
    UNTRANSLATED,
    format_host,
    match_comment,
    match_service_port,
    write_reject_target,
)


def find_unreadable_rules(tool: IptablesTool, settings: RuleSettings) -> str:
    """Return the rules of `NftAccess` that this machine's iptables-nft prints otherwise, "" if none.

    Versions of iptables-nft differ in the nf_tables expressions that they write and understand. vipwire leaves rules
    that read otherwise to the tool. The trial runs in an empty network namespace.
    """

    def attempt() -> str:
        ensure_counters((INVALID_COUNTER,))
        with closing(NftAccess(tool.family, ToolAccess(tool, LockWait(), 0), 0)) as access:
            return _print_rules(tool, access, settings)

    return run_in_empty_namespace(attempt)


def _print_rules(tool: IptablesTool, writer: NftAccess, settings: RuleSettings) -> str:
    wanted = build_sample_rules(tool.family, settings)
    try:
        writer.send_transaction(RestoreInput({table: TablePart({PROBE: rules}) for table, rules in wanted.items()}))
        try:
            shown = {table: tool.list_rules(table, PROBE) for table in wanted}
        finally:
            writer.send_transaction(RestoreInput({table: TablePart(gone=[PROBE]) for table in wanted}))
    except (CommitError, OSError, UnknownRuleError) as error:
        return str(error)
    for table, rules in wanted.items():
        for rule in rules:
            if rule not in shown[table]:
                return f"{tool.name} does not show {rule!r}"
    return ""


def build_sample_rules(family: Family, settings: RuleSettings) -> dict[str, Rules]:
    size = family.bits // 8
    address = Address(bytes([10, *bytes(size - 2), 1]))
    port = f"{format_address(address)}:80" if family is Family.IPV4 else f"[{format_address(address)}]:80"
    note = match_comment("a trial")
    nat = [
        f"{match_masked(family, 1, 3)} -j RETURN",
        f"! -s {format_host(address)} -i eth+ -j RETURN",
        *(match_service_port(each, 80, "a trial", address=address) + " -j RETURN" for each in Protocol),
        *(match_service_port(each, "80:90", "a trial", LOCAL_DESTINATION) + " -j RETURN" for each in Protocol),
        f"-p tcp {note} -m tcp -j DNAT --to-destination {port}",
        f"{LOCAL_SOURCE} -j MARK --set-xmark 0x4000/0x4000",
        f"{match_chance(2)} -j RETURN",
        "-m statistic --mode nth --every 3 --packet 0 -j RETURN",
        "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        f"-j MASQUERADE{' --random-fully' * settings.random_fully}",
    ]
    if settings.affinity:
        nat += [f"{match_seen(family, PROBE, 10)} -j RETURN", f"{remember(family, PROBE)} -j RETURN"]
    if settings.source_hash:
        nat.append(f"{write_hash_match(family, 2, 1)} -j RETURN")
    filtered = [f"{NEW} -j ACCEPT", f"{UNTRANSLATED} -j DROP", f"-p tcp {write_reject_target(family, Protocol.TCP)}"]
    filtered.append(write_reject_target(family, None))
    if settings.counters:
        filtered.append(f"{count_packets(INVALID_COUNTER)} -j DROP")
    return {NAT: tuple(nat), FILTER: tuple(filtered)}


DIRECT_BATCH: Final = 20_000
"""Limit of rules and chains in one transaction of vipwire, which lies in memory; its cost is linear."""

LOOPBACK_SYSCTLS: Final = (Sysctl("net/ipv4/conf/all/route_localnet", 1),)
"""Without this sysctl the kernel drops packets from node ports on 127.0.0.1 to other machines."""


def build_backends(
    families: Iterable[Family], settings: RuleSettings, *, prepare: bool
) -> tuple[dict[Family, IptablesBackend], list[SetupNote]]:
    """Build a backend for each family; return it with notes for the operator.

    With `prepare`, create counters, and try rules in a chain without jumps to it. Without it, write nothing and read
    the settings from the kernel. Raise UnsupportedError if this machine cannot run iptables mode.
    """
    families = tuple(families)
    choice = choose_variant(families)
    if prepare:
        choice = choose_workable(choice, families)
    notes = [SetupNote("variant", f"iptables-{choice.variant.value}: {choice.reason}", "")]
    if choice.both:
        other = Variant.LEGACY if choice.variant is Variant.NFT else Variant.NFT
        notes.append(
            SetupNote(
                "rules of both iptables-nft and iptables-legacy",
                "both are in force, one after the other",
                f"find the program with the other rules (iptables-{other.value}-save), and switch its variant",
            )
        )
    built: dict[Family, IptablesBackend] = {}
    detectors, lock_wait = build_change_detectors(families, choice.variant), LockWait()
    for family in families:
        tool = IptablesTool(family, choice.variant, PURPOSE)
        locked = any(note.what == UNTRIED for note in notes)
        if prepare and not locked:
            able, missing = probe_matches(tool, settings)
            notes += (note for note in missing if note not in notes)
        else:
            able = replace(settings, counters=settings.counters and read_counter(INVALID_COUNTER) is not None)
        writer = build_rule_access(tool, lock_wait, by_tools=able.by_tools)
        if prepare and isinstance(writer, NftAccess) and (reason := find_unreadable_rules(tool, able)):
            writer.direct = False
            notes.append(SetupNote("writing rules with the iptables tool", reason, ""))
        built[family] = IptablesBackend(tool, able, detectors[family], writer)
    if note := find_affinity_limit():
        notes.append(note)
    return built, notes


def build_rule_access(tool: IptablesTool, lock_wait: LockWait, *, by_tools: bool = False) -> RuleAccess:
    """Return the writer of a family's rules: the kernel's interface if possible, unless `by_tools`."""
    writer = ToolAccess(tool, lock_wait, BATCH[tool.variant])
    if tool.variant is Variant.NFT and not by_tools:
        return NftAccess(tool.family, writer, DIRECT_BATCH)
    return writer


def build_leftover_backends(families: Iterable[Family]) -> list[IptablesBackend]:
    """Build a backend for every family and installed variant, to remove all leftovers."""
    settings = RuleSettings()
    return [
        IptablesBackend(tool, settings) for family in families for tool in find_tools_with_tables(family, PURPOSE)
    ]


def _build_modes(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    """Build the backends; with `prepare`, log the notes for the operator."""
    wanted = RuleSettings(
        localhost_node_ports=config.iptables.localhost_node_ports,
        drop_invalid=not config.conntrack.tcp_be_liberal,
        tree=config.iptables.tree,
        by_tools=config.iptables.by_tools,
    )
    built, notes = build_backends(families, wanted, prepare=prepare)
    for note in notes if prepare else ():
        say = log.warning if note.remedy else log.info
        say("iptables", what=note.what, reason=note.reason, remedy=note.remedy)
    return built


DRIVER: Final = Driver(
    build=_build_modes,
    supposed=lambda config, families: _build_modes(config, families, prepare=False),
    attempt=lambda _config, _families: None,
    sysctls=lambda config: LOOPBACK_SYSCTLS if config.iptables.localhost_node_ports else (),
    priorities=NatPriorities(),
    kernel_counters={
        "iptables_ct_state_invalid_dropped_packets_total": lambda: read_counter(INVALID_COUNTER),
        "iptables_localhost_nodeports_accepted_packets_total": lambda: read_counter(LOCALHOST_COUNTER),
    },
    cleaners=lambda families, *, rules: [(each.family, each) for each in build_leftover_backends(families) if rules],
    owner=lambda _: IptablesOwner(),
    remains=lambda _family, _running: None,
    translates=lambda _: False,
    wrap_backend=lambda backend, _others: backend,
)
