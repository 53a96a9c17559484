"""`vipwire check`: judges the facts of `facts`, with a remedy for each problem."""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.config.modes import VIP_DEVICES
from vipwire.inspect.check.facts import Facts, ForeignTable
from vipwire.inspect.command.show import add_remedy, build_table, colour_word, format_count
from vipwire.inspect.earlier.effects import RuleEffect
from vipwire.inspect.status.document import Document, format_share
from vipwire.model.net import Family
from vipwire.modes.registry import find_spec, list_specs, load_driver
from vipwire.modes.xtables.ownership import TABLES
from vipwire.proxy_daemon.start.record import ProxyState
from vipwire.terminal.columns import Column

_OURS: Final = frozenset({"ip vipwire", "ip6 vipwire"})
_KUBELETS: Final = frozenset({"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-MARK-DROP"})
_RIGHTS: Final = "run as root, or give it the capability CAP_NET_ADMIN (in a container: NET_ADMIN)"
_FULL, _NEARLY_FULL = 0.95, 0.75


class Level(enum.Enum):
    """The severity of a finding; the value is the printed word."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


class Finding(NamedTuple):
    """One result of a check. `remedy` is empty if no action is needed."""

    area: str
    what: str
    level: Level
    said: str
    remedy: str = ""


Check = Callable[[Facts, str], Iterator[Finding]]


def _good_finding(area: str, what: str, said: str) -> Finding:
    return Finding(area, what, Level.OK, said)


def _check_kernel(facts: Facts, mode: str) -> Iterator[Finding]:
    del mode
    yield _good_finding("kernel", "release", f"Linux {facts.release}" if facts.release else "unknown")
    if "CAP_NET_ADMIN" in facts.capabilities:
        yield _good_finding("kernel", "rights", "CAP_NET_ADMIN is there")
    else:
        said = "without CAP_NET_ADMIN vipwire shows plans, but cannot program the kernel"
        yield Finding("kernel", "rights", Level.BAD, said, _RIGHTS)
    if not facts.ipv6:
        remedy = "for IPv6 Services, boot the node without ipv6.disable=1"
        yield Finding("kernel", "IPv6", Level.WARNING, "this machine has no IPv6: vipwire proxies IPv4 only", remedy)
    if facts.sctp:
        yield _good_finding("kernel", "SCTP", "the kernel opens SCTP sockets (vipwire proxies SCTP without them)")


def _check_modes(facts: Facts, mode: str) -> Iterator[Finding]:
    for each, lacks in facts.modes.items():
        chosen = " (chosen)" if each == mode else ""
        if not lacks:
            rights = "" if "CAP_NET_ADMIN" in facts.capabilities else ", with CAP_NET_ADMIN"
            yield _good_finding("mode", each + chosen, f"can run here{rights}")
        elif each == mode:
            yield Finding("mode", each + chosen, Level.BAD, *_split_remedy(lacks))
        else:
            yield Finding("mode", each, Level.NOTE, lacks)


def _split_remedy(text: str) -> tuple[str, str]:
    """Split an error into the failure and its remedy, with which vipwire's errors end."""
    said, mark, remedy = text.rpartition("; ")
    if not mark:
        said, mark, remedy = text.rpartition(": ")
    return (said, remedy) if mark else (text, "")


def _check_tools(facts: Facts, mode: str) -> Iterator[Finding]:
    purposes = {tool.name: tool.purpose for spec in list_specs() for tool in spec.tools} | _PURPOSES
    needed = [tool.name for tool in find_spec(mode).tools if tool.needed]
    for name, purpose in purposes.items():
        if name in facts.tools:
            yield _good_finding("tool", name, facts.tools[name])
        elif name in needed:
            yield Finding("tool", name, Level.BAD, f"not in PATH; {purpose}", f"install the package of {name}")
    missing = [name for name in purposes if name not in facts.tools and name not in needed]
    if missing:
        yield _good_finding("tool", "not there", f"{', '.join(missing)} (vipwire does not need them in {mode} mode)")


_PURPOSES: Final = {"conntrack": "shows connection tracking"}


def _check_sysctls(facts: Facts, mode: str) -> Iterator[Finding]:
    del mode
    for path, what in (("net/ipv4/ip_forward", "IPv4"), ("net/ipv6/conf/all/forwarding", "IPv6")):
        value = facts.sysctls.get(path)
        name = path.replace("/", ".")
        if value == 0 and _will_be_set(facts):
            yield Finding(
                "sysctl",
                name,
                Level.NOTE,
                f"the kernel does not forward {what} yet: `vipwire proxy` sets this to 1",
            )
        elif value == 0:
            said = f"the kernel does not forward {what}: Pods and clients on other machines are unreachable"
            yield Finding("sysctl", name, Level.BAD, said, f"sysctl -w {name}=1")
        elif value is not None:
            yield _good_finding("sysctl", name, str(value))
    if facts.sysctls.get("net/ipv4/conf/all/rp_filter") == 1:
        said = "strict: the kernel drops a packet unless its route back uses the same interface"
        remedy = "sysctl -w net.ipv4.conf.all.rp_filter=2, if the node has several default routes"
        yield Finding("sysctl", "net.ipv4.conf.all.rp_filter", Level.WARNING, said, remedy)
    if facts.sysctls.get("net/bridge/bridge-nf-call-iptables") == 0:
        said = (
            "rules do not see replies between Pods of one bridge: a Pod cannot reach a VIP with an endpoint "
            "on its bridge"
        )
        remedy = "sysctl -w net.bridge.bridge-nf-call-iptables=1, if the network plugin uses a bridge"
        yield Finding("sysctl", "net.bridge.bridge-nf-call-iptables", Level.WARNING, said, remedy)


def _will_be_set(facts: Facts) -> bool:
    """Report whether a starting proxy can change kernel settings; a running one has already changed them."""
    able = "CAP_NET_ADMIN" in facts.capabilities and facts.settings_writable
    return able and facts.proxy[0] is not ProxyState.RUNNING


def _check_proxy(facts: Facts, mode: str) -> Iterator[Finding]:
    state, record = facts.proxy
    if record is None:
        yield _good_finding("proxy", "state", "none runs here")
        return
    who = f"pid {record.pid}, vipwire {record.version}"
    if state is ProxyState.RUNNING:
        yield _good_finding("proxy", "state", f"a proxy runs in {record.mode} mode ({who})")
        if record.mode != mode:
            said = f"the proxy runs in {record.mode} mode; this check is for {mode} mode"
            yield Finding("proxy", "mode", Level.NOTE, said)
    else:
        word = "ended" if state is ProxyState.ENDED else "was killed or crashed"
        yield Finding(
            "proxy", "state", Level.WARNING, f"the last proxy {word} ({who})", "start it again: vipwire proxy"
        )
    for source, error in record.failing.items():
        yield Finding(
            "proxy", source, Level.WARNING, error, "the kernel's rules stay until the proxy can read this source"
        )
    for problem in record.problems:
        yield Finding("proxy", "node", Level.WARNING, problem, "give the Node's name with --hostname-override")


def _check_conntrack(facts: Facts, mode: str) -> Iterator[Finding]:
    del mode
    if facts.conntrack:
        yield Finding("conntrack", "netlink", Level.BAD, *_split_remedy(facts.conntrack))
    else:
        yield _good_finding("conntrack", "netlink", "can be read")
    count = facts.sysctls.get("net/netfilter/nf_conntrack_count")
    most = facts.sysctls.get("net/netfilter/nf_conntrack_max")
    if count is not None and most:
        yield _check_table_fill(count, most)
    if facts.sysctls.get("net/netfilter/nf_conntrack_events") == 0:
        said = (
            "the kernel sends no connection events: vipwire ejects no endpoint, `vipwire trace` and `top` "
            "show nothing"
        )
        yield Finding("conntrack", "events", Level.WARNING, said, "sysctl -w net.netfilter.nf_conntrack_events=1")
    yield from _check_losses(facts)


def _check_table_fill(count: int, most: int) -> Finding:
    share = count / most
    said = f"{count} of {most} connections tracked ({format_share(share)})"
    if share < _NEARLY_FULL:
        return _good_finding("conntrack", "fill", said)
    level = Level.BAD if share >= _FULL else Level.WARNING
    remedy = f"raise --conntrack-min above {most}, or find the clients that open so many (`vipwire top`)"
    return Finding(
        "conntrack", "fill", level, f"{said}; when the table is full, the kernel drops new connections", remedy
    )


def _check_losses(facts: Facts) -> Iterator[Finding]:
    meanings = {
        "insert_failed": (
            "found no free source port or lost a race in address translation",
            "give clients more source addresses",
        ),
        "drop": ("were dropped because the table was full", "raise --conntrack-min"),
        "early_drop": ("were evicted for new connections", "raise --conntrack-min"),
    }
    for name, (meaning, remedy) in meanings.items():
        if count := facts.conntrack_losses.get(name, 0):
            yield Finding("conntrack", name, Level.WARNING, f"{count} connections {meaning} since boot", remedy)


def _check_others(facts: Facts, mode: str) -> Iterator[Finding]:
    if facts.tables is None:
        yield Finding("others", "nftables", Level.WARNING, "vipwire cannot read other programs' tables", _RIGHTS)
    tables = facts.tables or ()
    yield from _check_kube_proxy_tables(tables, mode)
    yield from _check_kube_proxy_chains("iptables (legacy)", facts.legacy, mode)
    foreign = [each for each in tables if each.name not in _OURS and not _is_kube_proxy(each)]
    if foreign:
        names = ", ".join(each.name for each in foreign[:8])
        yield _good_finding("others", "nftables", f"tables of other programs, which vipwire leaves alone: {names}")
    iptables_nft = any(
        each.name.split(" ")[1] in ("nat", "filter", "mangle", "raw") and each.chains for each in tables
    )
    if facts.legacy and iptables_nft:
        said = "both the legacy and the nft variant of iptables have rules: each shows its own only"
        remedy = "choose one with update-alternatives, and empty the other (iptables-legacy -F; -t nat -F)"
        yield Finding("others", "iptables", Level.WARNING, said, remedy)
    yield from _check_ipvs(facts, mode)


def _report_earlier_chains(facts: Facts, mode: str) -> Iterator[Finding]:
    """Report other programs' chains that decide before the mode's: those that translate take over connections."""
    del mode
    for each in facts.earlier:
        level = Level.WARNING if RuleEffect.TRANSLATE in each.effects else Level.NOTE
        remedy = "if `vipwire explain` shows this chain for a Service, give the chain a later priority"
        yield Finding("earlier", f"{each.table} {each.chain}", level, str(each), remedy)


def _check_kube_proxy_tables(tables: tuple[ForeignTable, ...], mode: str) -> Iterator[Finding]:
    for each in tables:
        if _is_kube_proxy(each):
            said = f"kube-proxy's nftables mode has a table {each.name}: two proxies translate the same VIPs"
            remedy = f"stop kube-proxy on this node, then `kube-proxy --cleanup` or `nft delete table {each.name}`"
            yield Finding("others", "kube-proxy", Level.BAD, said, remedy)
        else:
            yield from _check_kube_proxy_chains(each.name, each.chains, mode)


def _is_kube_proxy(table: ForeignTable) -> bool:
    return table.name.partition(" ")[2] == "kube-proxy"


def _check_kube_proxy_chains(where: str, chains: Sequence[str], own_mode: str) -> Iterator[Finding]:
    """Separate the mode's own chains from those of other service proxies."""
    kube = [chain for chain in chains if chain.startswith("KUBE-") and chain not in _KUBELETS]
    owner = load_driver(find_spec(own_mode)).owner(Family.IPV4)
    ours = [chain for chain in kube if owner and any(owner.owns_chain(table, chain) for table in TABLES)]
    if ours:
        said = _list_chains(where, [chain for chain in kube if chain in ours])
        yield _good_finding("others", "iptables", f"{said}; vipwire's {own_mode} mode has these names, too")
    if foreign := [chain for chain in kube if chain not in ours]:
        remedy = (
            "stop kube-proxy on this node, then `kube-proxy --cleanup`; the chains of kubelet and the "
            "network plugin stay"
        )
        said = f"{_list_chains(where, foreign)}: they translate the same VIPs"
        yield Finding("others", "kube-proxy", Level.BAD, said, remedy)


def _list_chains(where: str, chains: Sequence[str]) -> str:
    return f"{len(chains)} chains of a service proxy in {where}: {', '.join(chains[:3])}{', …' * (len(chains) > 3)}"


def _check_ipvs(facts: Facts, mode: str) -> Iterator[Finding]:
    if mode in VIP_DEVICES.values():
        return
    if facts.ipvs_services:
        said = (
            f"IPVS has {facts.ipvs_services} virtual servers, of a stopped proxy in ipvs mode or of another program"
        )
        remedy = "if kube-proxy made them, stop kube-proxy, then `kube-proxy --cleanup`; `ipvsadm -Ln` lists them"
        yield Finding("others", "IPVS", Level.WARNING, said, remedy)
    if "kube-ipvs0" in facts.interfaces:
        said = (
            "the interface kube-ipvs0 exists: the kernel takes each VIP on this interface for an address of the node"
        )
        yield Finding("others", "kube-ipvs0", Level.BAD, said, "stop kube-proxy, then `ip link delete kube-ipvs0`")


def _check_remarks(facts: Facts, mode: str) -> Iterator[Finding]:
    for each in facts.remarks:
        level = Level.BAD if each.bad else Level.WARNING if each.remedy else Level.OK
        yield Finding(f"{mode} mode", each.what, level, each.said, each.remedy)


CHECKS: Final[tuple[Check, ...]] = (
    _check_kernel,
    _check_modes,
    _check_tools,
    _check_proxy,
    _check_sysctls,
    _check_remarks,
    _check_conntrack,
    _check_others,
    _report_earlier_chains,
)


def list_findings(facts: Facts, mode: str) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(facts, mode)]


def check_document(findings: list[Finding], mode: str) -> Document:
    return {
        "kind": "Check",
        "mode": mode,
        "bad": sum(finding.level is Level.BAD for finding in findings),
        "warnings": sum(finding.level is Level.WARNING for finding in findings),
        "findings": [finding._asdict() | {"level": finding.level.value} for finding in findings],
    }


def check_view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out findings: problems with their remedies; `wide` shows the others, too."""
    rows = [
        [each["area"], each["what"], colour_word(each["level"]), add_remedy(each["said"], each["remedy"])]
        for each in document["findings"]
        if wide or each["level"] != "ok" or each["area"] in ("kernel", "mode", "proxy", "conntrack")
    ]
    bad, warnings = document["bad"], format_count(document["warnings"], "warning")
    if bad:
        verdict = Text(f"{document['mode']} mode will not work well here: {bad} bad, {warnings}", style="bold red")
    else:
        verdict = Text(f"{document['mode']} mode can work here ({warnings})", style="green")
    return Group(
        build_table([Column("area", rank=1), "what", "state", Column("found", prose=True)], rows), Text(), verdict
    )
