"""Puts the backends of one host together: the same variant for every family, the settings that it can do."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.iptables.access.lock_wait import LockWait
from vipwire.modes.iptables.access.nft_access import NftAccess
from vipwire.modes.iptables.access.tool_access import RuleAccess, ToolAccess
from vipwire.modes.iptables.change_detector import change_detectors
from vipwire.modes.iptables.counts.nfacct import read_counter
from vipwire.modes.iptables.kernel import BATCH, IptablesBackend
from vipwire.modes.iptables.probe import (
    PURPOSE,
    UNTRIED,
    Note,
    affinity_note,
    choose_variant,
    probe,
    workable,
)
from vipwire.modes.iptables.rules.names import INVALID_COUNTER
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.iptables.trial import unreadable
from vipwire.modes.xtables.tool import Tool, with_tables
from vipwire.modes.xtables.variant import Variant

DIRECT_BATCH: Final = 20_000
"""Rules and chains in one transaction of our own: its cost grows with its size only, but it has to lie in memory."""

LOOPBACK_SYSCTLS: Final = (Sysctl("net/ipv4/conf/all/route_localnet", 1),)
"""Without it the kernel drops what node ports on 127.0.0.1 send to another machine."""


def build(
    families: Iterable[Family], settings: Settings, *, prepare: bool
) -> tuple[dict[Family, IptablesBackend], list[Note]]:
    """Build a backend for each family, and say what an operator should know.

    With `prepare` the machine is made ready and tried: counters are made, and rules that nobody reaches are written
    and removed. Without it nothing is written, and the settings are taken from what is there.
    Raise UnsupportedError if this machine cannot run iptables mode.
    """
    families = tuple(families)
    choice = choose_variant(families)
    if prepare:
        choice = workable(choice, families)
    notes = [Note("variant", f"iptables-{choice.variant.value}: {choice.reason}", "")]
    if choice.both:
        notes.append(
            Note(
                "rules of both iptables-nft and iptables-legacy",
                "both are in force, one after the other",
                f"find out who writes the other ones (iptables-{_other(choice.variant).value}-save) and move him",
            )
        )
    built: dict[Family, IptablesBackend] = {}
    detectors, lock_wait = change_detectors(families, choice.variant), LockWait()
    for family in families:
        tool = Tool(family, choice.variant, PURPOSE)
        locked = any(note.what == UNTRIED for note in notes)  # then it is for all families
        able, missing = probe(tool, settings) if prepare and not locked else (_as_found(settings), [])
        notes += (note for note in missing if note not in notes)
        writer = rule_access(tool, lock_wait, by_tools=able.by_tools)
        if prepare and isinstance(writer, NftAccess) and (reason := unreadable(tool, able)):
            writer.direct = False
            notes.append(Note("rules go through the tool", reason, ""))
        built[family] = IptablesBackend(tool, able, detectors[family], writer)
    if note := affinity_note():
        notes.append(note)
    return built, notes


def rule_access(tool: Tool, lock_wait: LockWait, *, by_tools: bool = False) -> RuleAccess:
    """Build what writes the rules of a family: the kernel directly where that is known, unless `by_tools`."""
    writer = ToolAccess(tool, lock_wait, BATCH[tool.variant])
    if tool.variant is Variant.NFT and not by_tools:
        return NftAccess(tool.family, writer, DIRECT_BATCH)
    return writer


def leftovers(families: Iterable[Family]) -> list[IptablesBackend]:
    """Build a backend for every family and variant that is installed: to remove what any of them has left."""
    settings = Settings()
    return [IptablesBackend(tool, settings) for family in families for tool in with_tables(family, PURPOSE)]


def _other(variant: Variant) -> Variant:
    return Variant.LEGACY if variant is Variant.NFT else Variant.NFT


def _as_found(settings: Settings) -> Settings:
    return replace(settings, counters=settings.counters and read_counter(INVALID_COUNTER) is not None)
