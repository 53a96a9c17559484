"""Tries whether the iptables-nft of this machine reads what `NftAccess` writes.

The program's versions differ in what they write as expressions of nf_tables, and in what they understand. Rules that
it would show as something else are left to it.
"""

from contextlib import closing
from typing import Final

from vipwire.errors import CommitError
from vipwire.model.net import Address, Family, Protocol, format_address
from vipwire.modes.iptables.access.lock_wait import LockWait
from vipwire.modes.iptables.access.nft_access import NftAccess
from vipwire.modes.iptables.access.tool_access import ToolAccess
from vipwire.modes.iptables.apart import apart
from vipwire.modes.iptables.counts.nfacct import ensure_counters
from vipwire.modes.iptables.rules.bpf import hash_match
from vipwire.modes.iptables.rules.names import FILTER, INVALID_COUNTER, NAT, Rules
from vipwire.modes.iptables.rules.script import Run, TablePart
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.iptables.rules.words import chance, counted, masked, remember, seen
from vipwire.modes.xtables.binary.words import UnknownRuleError
from vipwire.modes.xtables.tool import Tool
from vipwire.modes.xtables.words import (
    LOCAL_DESTINATION,
    LOCAL_SOURCE,
    NEW,
    UNTRANSLATED,
    comment,
    host,
    refuse,
    served,
)

CHAIN: Final = "KUBE-PROXY-PROBE"
"""The chain that kernels are tried with."""


def unreadable(tool: Tool, settings: Settings) -> str:
    """Write rules of every kind, where nobody is; return what the program does not show so, or ""."""
    return apart(lambda: _tried(tool, settings))


def _tried(tool: Tool, settings: Settings) -> str:
    ensure_counters((INVALID_COUNTER,))
    with closing(NftAccess(tool.family, ToolAccess(tool, LockWait(), 0), 0)) as access:
        return _shown(tool, access, settings)


def _shown(tool: Tool, writer: NftAccess, settings: Settings) -> str:
    wanted = samples(tool.family, settings)
    try:
        writer.transact(Run({table: TablePart({CHAIN: rules}) for table, rules in wanted.items()}))
        try:
            shown = {table: tool.chain(table, CHAIN) for table in wanted}
        finally:
            writer.transact(Run({table: TablePart(gone=[CHAIN]) for table in wanted}))
    except (CommitError, OSError, UnknownRuleError) as error:
        return str(error)
    for table, rules in wanted.items():
        for rule in rules:
            if rule not in shown[table]:
                return f"{tool.name} does not show {rule!r}"
    return ""


def samples(family: Family, settings: Settings) -> dict[str, Rules]:
    """Write a rule of every kind, by table."""
    size = family.bits // 8
    address = Address(bytes([10, *bytes(size - 2), 1]))
    port = f"{format_address(address)}:80" if family is Family.IPV4 else f"[{format_address(address)}]:80"
    note = comment("a trial")
    nat = [
        f"{masked(family, 1, 3)} -j RETURN",
        f"! -s {host(address)} -i eth+ -j RETURN",
        *(served(each, 80, "a trial", address=address) + " -j RETURN" for each in Protocol),
        *(served(each, "80:90", "a trial", LOCAL_DESTINATION) + " -j RETURN" for each in Protocol),
        f"-p tcp {note} -m tcp -j DNAT --to-destination {port}",
        f"{LOCAL_SOURCE} -j MARK --set-xmark 0x4000/0x4000",
        f"{chance(2)} -j RETURN",
        "-m statistic --mode nth --every 3 --packet 0 -j RETURN",
        "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        f"-j MASQUERADE{' --random-fully' * settings.random_fully}",
    ]
    if settings.affinity:
        nat += [f"{seen(family, CHAIN, 10)} -j RETURN", f"{remember(family, CHAIN)} -j RETURN"]
    if settings.source_hash:
        nat.append(f"{hash_match(family, 2, 1)} -j RETURN")
    filtered = [f"{NEW} -j ACCEPT", f"{UNTRANSLATED} -j DROP", f"-p tcp {refuse(family, Protocol.TCP)}"]
    filtered.append(refuse(family, None))
    if settings.counters:
        filtered.append(f"{counted(INVALID_COUNTER)} -j DROP")
    return {NAT: tuple(nat), FILTER: tuple(filtered)}
