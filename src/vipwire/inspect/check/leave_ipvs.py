"""`vipwire check --leave-ipvs`: a table of the changes on a node that leaves kube-proxy's ipvs mode."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.config.modes import VIP_DEVICES
from vipwire.inspect.command.show import add_remedy, build_table, colour_word, format_count, join_words
from vipwire.inspect.status.document import Document
from vipwire.linux.netlink.ipvs import Scheduling, Timeouts, VirtualServer
from vipwire.model.net import Address, Family, Prefix, Protocol, family_of, format_address, format_endpoint
from vipwire.model.service import Service
from vipwire.modes.ipvs.objects.names import DEVICE
from vipwire.modes.registry import find_selected_mode
from vipwire.modes.spec import ModeSpec
from vipwire.proxy_daemon.handover.configured import Configured
from vipwire.terminal.columns import Column

_STAY: Final = "stay in ipvs mode (--proxy-mode=ipvs)"
_COUNT: Final = f"{_STAY}, or userspace mode with vipwire.io/algorithm: least-connections"
_ONE: Final = f"{_STAY}, or give these Services one endpoint"
_ANNOTATE: Final = "annotate these Services vipwire.io/algorithm: "

SCHEDULERS: Final = {
    "dh": ("otherwise", "by the VIP: always the same endpoint", _ONE),
    "fo": ("otherwise", "to the first of the heaviest", _ONE),
    "lblc": ("otherwise", "one endpoint for each VIP until it is overloaded", _ONE),
    "lblcr": ("otherwise", "some endpoints for each VIP, by load", _ONE),
    "lc": ("otherwise", "to the endpoint with the fewest connections", _COUNT),
    "mh": ("otherwise", "by a hash of the client, stable when endpoints change", f"{_ANNOTATE}maglev"),
    "nq": ("otherwise", "to an idle endpoint, else by connections", _COUNT),
    "ovf": ("otherwise", "to one endpoint until it overflows", _ONE),
    "rr": ("note", "in turn", f"{_ANNOTATE}round-robin"),
    "sed": ("otherwise", "to the shortest expected delay, by connections", _COUNT),
    "sh": ("otherwise", "by the client's address", f"{_ANNOTATE}source-hash"),
    "wlc": ("otherwise", "to the endpoint with the fewest connections, by weight", _COUNT),
    "wrr": ("note", "in turn, by weight (kube-proxy gives all the same)", f"{_ANNOTATE}round-robin"),
}
"""Each scheduler of the kernel: a level, its choice of endpoint, and how an operator can keep that choice."""

_CHECKS: Final = (
    """
mode | note | = | {another_mode}
    then: {left_of_ipvs}
ping | otherwise | the same | {cluster_ips} ping, on kube-ipvs0: {cluster_ips_listed}
    then: refused (ICMP port unreachable)
    todo: watch Services by their ports, not by ping (`vipwire explain`)
ping | otherwise | the same | {external} ping, on kube-ipvs0: {external_listed}
    then: the kernel routes the ping onwards
    todo: watch Services by their ports, not by ping (`vipwire explain`)
ARP | otherwise | - | the node answers ARP for {on_link} on every interface, because kube-ipvs0 has them
    then: the node answers ARP for none of them
    todo: announce them (MetalLB, kube-vip), route them to the node, or add them to an interface
ARP | note | - | {strict_arp}: each interface answers ARP for its own addresses only
    then: no interface has VIPs: the settings stay, but vipwire does not need them
    todo: sysctl -w net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0, unless another program needs them
node ports | otherwise | = | {lost_node_ports} at {node_addresses}
    then: they answer at {served}
    todo: --nodeport-addresses={node_prefixes}, or point clients at the node's address
node ports | same | = | {kept_node_ports} answer at {node_addresses}
    then: the same
"""
    + "\n".join(
        f"scheduler | {level} | - | {name} for {{{name}}}: {does}\n"
        f"    then: each new connection goes to a random endpoint\n    todo: {todo}"
        for name, (level, does, todo) in SCHEDULERS.items()
    )
    + """
scheduler | otherwise | - | {other_schedulers}: each scheduler's own choice
    then: each new connection goes to a random endpoint
    todo: stay in ipvs mode (--proxy-mode=ipvs)
affinity | note | - | clients of {sticky} keep their endpoint for {sticky_seconds}, {until_gone}
    then: kept for as long after the last new connection, at all addresses of the Service port
    todo: nothing, but a client may change its endpoint once
masquerading | otherwise | = | iptables.masqueradeAll: {old_masqueradeAll}, which ipvs mode reads
    then: {mode} mode reads {section}.masqueradeAll: {new_masqueradeAll}
    todo: write {section}.masqueradeAll: {old_masqueradeAll}
masquerading | otherwise | = | iptables.masqueradeBit: {old_masqueradeBit}, which ipvs mode reads
    then: {mode} mode reads {section}.masqueradeBit: {new_masqueradeBit}
    todo: write {section}.masqueradeBit: {old_masqueradeBit}
timeouts | otherwise | - | IPVS forgets an idle TCP connection after {chosen_tcp} s, UDP after {udp} s
    then: {tracked}
    todo: --conntrack-tcp-timeout-established={chosen_tcp}s keeps it
timeouts | note | - | IPVS forgets an idle TCP connection after {usual_tcp} s, UDP after {udp} s
    then: {tracked}
connections | note | - | {connections} connections are open in IPVS, to {busy}
    then: the connections stay open; vipwire removes each virtual server after its last connection
    todo: run `vipwire cleanup` later: it removes idle virtual servers and lists the others
connections | note | - | {draining} endpoints with weight 0 finish their connections (graceful termination)
    then: connection tracking keeps connections of a removed endpoint, but no list shows the endpoint
SCTP | note | - | IPVS translates {sctp}
    then: connection tracking translates it: one address of each side for an association
foreign | note | = | {excluded}
    then: vipwire leaves them alone
    todo: ipvsadm -Ln shows them
foreign | note | = | {foreign}
    then: vipwire leaves them alone
    todo: ipvsadm -Ln shows them
settings | note | - | {settings}
    then: the settings stay: no program resets them
    todo: unload ip_vs or reboot the node to reset them; without virtual servers they have no effect
objects | otherwise | vipwire takes them over, and changes only what differs | {objects}
    then: vipwire removes them after its first sync
    todo: `ipvsadm -Ln` shows no Services then: use `vipwire status`, `vipwire top`, `vipwire explain`
"""
)
"""Each check: area, level, `then` if vipwire stays in ipvs mode (`=`: the same difference; `-`: none), and ipvs mode
today. A check applies if every word in braces has a value.
"""
_CHECK: Final = re.compile(r"^(\S.*?) \| (\w+) \| (.*?) \| (.*)\n    then: (.*)(?:\n    todo: (.*))?", re.MULTILINE)
_SHOWN: Final = 4
_ALGORITHM: Final = "vipwire.io/algorithm"
_USUAL_TIMEOUTS: Final = (900, 120, 300)
_ESTABLISHED: Final = "net/netfilter/nf_conntrack_tcp_timeout_established"
_SAME, _OTHERWISE, _UNKNOWN = "same", "otherwise", 2


class Consequence(NamedTuple):
    """One behaviour of ipvs mode: today, in vipwire, and the operator's remedy.

    `level` says whether clients or operators can notice: same, note, otherwise.
    """

    area: str
    level: str
    now: str
    then: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class IpvsServer:
    """A virtual server. `ours`: an ipset of kube-proxy's or vipwire's ipvs mode has it; `node_port`: as a node port.

    `draining` counts its endpoints of weight 0, `connections` its open ones.
    """

    key: VirtualServer
    how: Scheduling
    ours: bool
    node_port: bool = False
    connections: int = 0
    draining: int = 0


@dataclass(frozen=True, slots=True)
class IpvsState:
    """The kernel's objects of ipvs mode. `vips` are the addresses of kube-ipvs0, `cluster_ips` the ClusterIPs.

    `networks` are those of the node's other interfaces. `obstacle` says what could not be read.
    """

    servers: tuple[IpvsServer, ...] = ()
    vips: frozenset[Address] = frozenset()
    cluster_ips: frozenset[Address] = frozenset()
    networks: tuple[Prefix, ...] = ()
    sets: tuple[str, ...] = ()
    chains: int = 0
    sysctls: Mapping[str, int] = field(default_factory=dict)
    timeouts: Timeouts | None = None
    obstacle: str = ""

    @property
    def traces(self) -> bool:
        return bool(self.vips or self.sets or any(server.ours for server in self.servers))


@dataclass(frozen=True)
class Leaving:
    """All facts. `config` is vipwire's; `node_ports` are the address prefixes of its node ports."""

    config: Config
    kernel: IpvsState = field(default_factory=IpvsState)
    kube_proxy: Configured | None = None
    services: tuple[Service, ...] = ()
    node_ports: Mapping[Family, tuple[Prefix, ...]] = field(default_factory=dict)
    lacks: str = ""

    @property
    def target(self) -> ModeSpec:
        return find_selected_mode(self.config)

    @cached_property
    def _ports(self) -> dict[tuple[Address | None, int, int], tuple[Service, str]]:
        """Service ports by address, protocol and number; node ports have no address."""
        found: dict[tuple[Address | None, int, int], tuple[Service, str]] = {}
        for service in self.services:
            for port in service.ports:
                named = service, str(service.port_name(port))
                for address in (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips):
                    found[address, port.protocol, port.port] = named
                if port.node_port:
                    found[None, port.protocol, port.node_port] = named
        return found

    def name_server(self, server: IpvsServer) -> tuple[str, Service | None]:
        """Return Service port and Service; without a Service, mark or place, and None."""
        mark, address = server.key.mark, server.key.address
        place = (None if server.node_port else address, server.key.protocol, server.key.port)
        if place in self._ports:
            service, name = self._ports[place]
            return name, service
        label = Protocol(server.key.protocol).label
        return f"FWM {mark}" if mark else f"{label} {format_endpoint(address, server.key.port)}", None

    def name_servers(self, servers: Iterable[IpvsServer]) -> list[str]:
        return sorted({self.name_server(server)[0] for server in servers})


def judge_leaving(leaving: Leaving) -> list[Consequence]:
    found: list[Consequence] = []
    mode, lacks = f"{leaving.target.name} mode", leaving.lacks
    if lacks:
        then = lacks if lacks.startswith(mode) else f"{mode} cannot run here: {lacks}"
        found.append(
            Consequence("mode", _OTHERWISE, "", then, "repair this first, or choose another mode (--proxy-mode)")
        )
    stays = VIP_DEVICES[DEVICE] == leaving.target.name
    words = (
        _describe_kernel_changes(leaving.kernel)
        | _describe_server_changes(leaving)
        | _describe_proxy_changes(leaving)
        | _describe_node_port_changes(leaving)
    )
    for area, level, staying, *texts in _CHECK.findall(_CHECKS):
        if not all(words.get(word) for text in texts for _, word, _, _ in Formatter().parse(text) if word):
            continue
        now, then, todo = (text.format_map(words) for text in texts)
        if not stays or staying == "=":
            found.append(Consequence(area, level, now, then, todo))
        elif staying != "-":
            found.append(Consequence(area, _SAME, now, staying))
    return found


def _shorten_list(items: Sequence[str]) -> str:
    return join_words(items, _SHOWN)


def _sort_addresses(found: Iterable[Address]) -> list[Address]:
    return sorted(found, key=lambda address: (len(address), address))


def _join_addresses(found: Iterable[Address]) -> str:
    return _shorten_list([format_address(each) for each in _sort_addresses(found)])


def _count_answering(number: int, noun: str, names: str = "") -> str:
    return f"{format_count(number, noun)}{names} answer{'s' * (number == 1)}" if number else ""


def _describe_kernel_changes(kernel: IpvsState) -> dict[str, str]:
    cluster_ips, external = kernel.vips & kernel.cluster_ips, kernel.vips - kernel.cluster_ips
    strict = kernel.sysctls.get("net/ipv4/conf/all/arp_ignore", 0) > 0
    on_link = [vip for vip in external if not strict and any(vip in network for network in kernel.networks)]
    left = {path: value for path, value in sorted(kernel.sysctls.items()) if "/ipv4/vs/" in path and value}
    seconds = kernel.sysctls.get(_ESTABLISHED)
    usual = kernel.timeouts is None or tuple(kernel.timeouts) == _USUAL_TIMEOUTS
    tcp, udp = (kernel.timeouts.tcp, kernel.timeouts.udp) if kernel.timeouts else ("", "")
    objects = (
        format_count(sum(each.ours for each in kernel.servers), "virtual server"),
        f"{format_count(len(kernel.vips), 'address')} on {DEVICE}",
        format_count(len(kernel.sets), "ipset"),
        f"{format_count(kernel.chains, 'chain')} KUBE-…",
    )
    return {
        "cluster_ips": _count_answering(len(cluster_ips), "ClusterIP"),
        "cluster_ips_listed": _join_addresses(cluster_ips),
        "external": _count_answering(len(external), "external address"),
        "external_listed": _join_addresses(external),
        "on_link": _join_addresses(on_link),
        "strict_arp": "strictARP" if strict else "",
        "usual_tcp": f"{tcp}" if usual else "",
        "chosen_tcp": "" if usual else f"{tcp}",
        "udp": f"{udp}",
        "tracked": f"after {seconds} s (connection tracking)" if seconds else "at connection tracking's timeout",
        "settings": ", ".join(f"{path.replace('/', '.')}={value}" for path, value in left.items()),
        "objects": ", ".join(objects) if kernel.traces else "",
    }


def _describe_server_changes(leaving: Leaving) -> dict[str, str]:
    ours = [each for each in leaving.kernel.servers if each.ours]
    scheduled: defaultdict[str, list[IpvsServer]] = defaultdict(list)
    for each in ours:
        _, service = leaving.name_server(each)
        if service is None or _ALGORITHM not in dict(service.annotations):
            scheduled[each.how.scheduler].append(each)
    schedulers = {name: _shorten_list(leaving.name_servers(servers)) for name, servers in sorted(scheduled.items())}
    others = [f"{name} for {ports}" for name, ports in schedulers.items() if name not in SCHEDULERS]
    sticky = [each for each in ours if each.how.persistence]
    return {
        **schedulers,
        "other_schedulers": _shorten_list(others),
        "sticky": _shorten_list(leaving.name_servers(sticky)),
        "until_gone": "and until their last connection closes, at each address separately",
        "sticky_seconds": _shorten_list([f"{each} s" for each in sorted({each.how.persistence for each in sticky})]),
        "connections": str(sum(each.connections for each in ours) or ""),
        "busy": _shorten_list(leaving.name_servers(each for each in ours if each.connections)),
        "draining": str(sum(each.draining for each in ours) or ""),
        "sctp": _shorten_list(leaving.name_servers(each for each in ours if each.key.protocol == Protocol.SCTP)),
    }


def _describe_proxy_changes(leaving: Leaving) -> dict[str, str]:
    proxy, others = leaving.kube_proxy, [each for each in leaving.kernel.servers if not each.ours]
    excluded = proxy.config.ipvs.exclude_cidrs if proxy else ()
    prefixes = [Prefix.parse(each) for each in excluded]
    inside = [each for each in others if any(each.key.address in prefix for prefix in prefixes)]
    words = {"mode": leaving.target.name, "section": leaving.target.settings.masquerading}
    for word, where, servers in (
        ("excluded", f"in excludeCIDRs {_shorten_list(excluded)}", inside),
        ("foreign", "in no ipset of kube-proxy", [each for each in others if each not in inside]),
    ):
        named = (
            f"{format_count(len(servers), 'virtual server')} {where}: {_shorten_list(leaving.name_servers(servers))}"
        )
        words[word] = named if servers else ""
    if proxy is None:
        return words
    before, after = proxy.config.iptables, leaving.config.sync
    for name, old, new in (
        ("masqueradeAll", before.masquerade_all, after.masquerade_all),
        ("masqueradeBit", before.masquerade_bit, after.masquerade_bit),
    ):
        words |= {f"old_{name}": str(old).lower(), f"new_{name}": str(new).lower() if old != new else ""}
    words["another_mode"] = "" if proxy.mode == "ipvs" else f"kube-proxy runs {proxy.mode} mode ({proxy.where})"
    left = "kube-proxy no longer updates its objects of ipvs mode"
    words["left_of_ipvs"] = left if leaving.kernel.traces else "there are no objects of ipvs mode"
    return words


def _describe_node_port_changes(leaving: Leaving) -> dict[str, str]:
    servers = [each for each in leaving.kernel.servers if each.ours and each.node_port]
    here = {each.key.address for each in servers}
    served = {each for each in here if any(each in prefix for prefix in leaving.node_ports.get(family_of(each), ()))}
    names = leaving.name_servers(servers)
    return {
        "node_addresses": _join_addresses(here),
        "node_prefixes": ",".join(str(Prefix.host(each)) for each in _sort_addresses(here)),
        "served": _join_addresses(served) or "none of these",
        "kept_node_ports": "node ports" if here == served else "",
        "lost_node_ports": ""
        if here == served
        else _count_answering(len(names), "node port", f" ({_shorten_list(names)})"),
    }


def leave_document(leaving: Leaving, changes: Sequence[Consequence], obstacles: Sequence[str]) -> Document:
    found = leaving.kube_proxy
    return {
        "kind": "LeavingIpvs",
        "mode": leaving.target.name,
        "kubeProxy": None if found is None else {"mode": found.mode, "where": found.where},
        "ipvs": leaving.kernel.traces,
        "seen": not leaving.kernel.obstacle,
        "otherwise": sum(change.level == _OTHERWISE for change in changes),
        "obstacles": list(obstacles),
        "changes": [change._asdict() for change in changes],
    }


def leave_exit(document: Document) -> int:
    """Return 0 if nothing changes, 1 if anything does, 2 if the kernel could not be read."""
    return 1 if document["otherwise"] else 0 if document["seen"] else _UNKNOWN


def leave_view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out the changes and remedies; `wide` shows unchanged behaviour, too."""
    rows = [
        [each["area"], colour_word(each["level"]), each["now"], add_remedy(each["then"], each["todo"])]
        for each in document["changes"]
        if wide or each["level"] != _SAME
    ]
    columns: list[str | Column] = ["area", "", Column("now", prose=True)]
    columns.append(Column(f"in {document['mode']} mode", prose=True))
    found, otherwise = document["kubeProxy"], document["otherwise"]
    heading = "vipwire found no configuration of kube-proxy, and compares with the kernel's objects."
    if found is not None:
        heading = f"kube-proxy is configured for {found['mode']} mode ({found['where']})."
    if otherwise:
        verdict = Text(f"{format_count(otherwise, 'thing')} will change", style="bold yellow")
    elif not document["seen"]:
        verdict = Text("unknown: see above", style="yellow")
    else:
        same = "nothing will change" if document["ipvs"] else "the kernel has no objects of ipvs mode"
        verdict = Text(same, style="green")
    obstacles = [Text(f"not examined: {each}", style="yellow") for each in document["obstacles"]]
    changes: list[RenderableType] = [build_table(columns, rows), Text()] if rows else []
    return Group(Text(heading), Text(), *changes, *obstacles, verdict)
