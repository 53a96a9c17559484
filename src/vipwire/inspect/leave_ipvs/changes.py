"""Says what will be otherwise on this node without kube-proxy's ipvs mode, from what is there now. Pure.

Each rule takes the whole situation and yields what it finds. A change that clients or operators can notice is
OTHERWISE; a NOTE is worth knowing; what goes on as it was is SAME.
"""

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vipwire.config.configuration import Config
from vipwire.inspect.command.show import plural
from vipwire.inspect.leave_ipvs.nearest import NEAREST, UNKNOWN
from vipwire.inspect.leave_ipvs.situation import Kernel, Server
from vipwire.model.net import Address, Family, Prefix, Protocol, family_of, format_address, format_endpoint
from vipwire.model.service import Service
from vipwire.modes.registry import selected
from vipwire.modes.spec import ModeSpec
from vipwire.proxy.handover.configured import Configured

_FEW: Final = 4
_DEVICE: Final = "kube-ipvs0"
_KERNEL_TIMEOUTS: Final = {"tcp": 900, "tcp_fin": 120, "udp": 300}
_ALGORITHM: Final = "vipwire.io/algorithm"


class Level(enum.Enum):
    """Whether anybody can notice; the value is what is printed."""

    SAME = "same"
    NOTE = "note"
    OTHERWISE = "otherwise"


class Difference(NamedTuple):
    """Something of ipvs mode: as it is now, as it will be, and what an operator can do about it."""

    area: str
    level: Level
    now: str
    then: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Everything that is judged. `config` is vipwire's; `node_ports` are the prefixes at which it will serve them."""

    config: Config
    kernel: Kernel = field(default_factory=Kernel)
    kube_proxy: Configured | None = None
    services: tuple[Service, ...] = ()
    node_ports: Mapping[Family, tuple[Prefix, ...]] = field(default_factory=dict)
    lacks: str = ""

    @property
    def target(self) -> ModeSpec:
        """The mode that vipwire will run."""
        return selected(self.config)

    @property
    def stays(self) -> bool:
        """Whether vipwire will run ipvs mode itself."""
        return _DEVICE in self.target.vip_devices

    def names(self, servers: Iterable[Server]) -> list[str]:
        """Name the Service ports of virtual servers; an address and port where no Service is known."""
        known = _ports(self.services)
        return sorted({_name(server, known) for server in servers})


def _ports(services: Iterable[Service]) -> dict[tuple[Address | None, int, int], tuple[Service, str]]:
    found: dict[tuple[Address | None, int, int], tuple[Service, str]] = {}
    for service in services:
        for port in service.ports:
            name = str(service.port_name(port))
            for address in (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips):
                found[address, port.protocol, port.port] = service, name
            if port.node_port:
                found[None, port.protocol, port.node_port] = service, name
    return found


def _name(server: Server, known: Mapping[tuple[Address | None, int, int], tuple[Service, str]]) -> str:
    key = server.key
    found = known.get((None if server.node_port else key.address, key.protocol, key.port))
    if found is not None:
        return found[1]
    return (
        f"FWM {key.mark}" if key.mark else f"{Protocol(key.protocol).label} {format_endpoint(key.address, key.port)}"
    )


def few(items: Iterable[str]) -> str:
    """Write the first of several, and how many more there are."""
    listed = list(items)
    more = f" and {len(listed) - _FEW} more" if len(listed) > _FEW else ""
    return ", ".join(listed[:_FEW]) + more


def addresses(found: Iterable[Address]) -> str:
    """Write addresses, the first of them."""
    return few(map(format_address, sorted(found, key=lambda address: (len(address), address))))


Rule = Callable[[Leaving], Iterator[Difference]]


def _mode(leaving: Leaving) -> Iterator[Difference]:
    if leaving.lacks:
        todo = "mend that first, or choose another mode (--proxy-mode)"
        name = f"{leaving.target.name} mode"
        then = leaving.lacks if leaving.lacks.startswith(name) else f"{name} cannot run here: {leaving.lacks}"
        yield Difference("mode", Level.OTHERWISE, "", then, todo)
    found = leaving.kube_proxy
    if found is not None and found.mode != "ipvs":
        now = f"kube-proxy runs {found.mode} mode ({found.where})"
        then = (
            "what is left of ipvs mode is no longer kept up" if leaving.kernel.traces else "nothing of ipvs to leave"
        )
        yield Difference("mode", Level.NOTE, now, then)


def _ping(leaving: Leaving) -> Iterator[Difference]:
    kernel = leaving.kernel
    for what, vips, then in (
        ("ClusterIP", kernel.vips & kernel.cluster_ips, "refused (ICMP port unreachable)"),
        (
            "external address",
            kernel.vips - kernel.cluster_ips,
            "passed on: whoever has the address answers, or nobody",
        ),
    ):
        if not vips:
            continue
        now = f"{plural(len(vips), what)} answer{'s' * (len(vips) == 1)} ping, on {_DEVICE}: {addresses(vips)}"
        if leaving.stays:
            yield Difference("ping", Level.SAME, now, "the same")
        else:
            todo = "watch Services by their ports, not by ping (`vipwire explain`)"
            yield Difference("ping", Level.OTHERWISE, now, then, todo)


def _arp(leaving: Leaving) -> Iterator[Difference]:
    kernel = leaving.kernel
    if leaving.stays:
        return
    outside = kernel.vips - kernel.cluster_ips
    on_link = {vip for vip in outside if any(vip in network for network in kernel.networks)}
    strict = kernel.sysctls.get("net/ipv4/conf/all/arp_ignore", 0) > 0
    if on_link and not strict:
        now = f"the node answers ARP for {addresses(on_link)} on every interface, as they are on {_DEVICE}"
        todo = "have them announced (MetalLB, kube-vip), routed to the node, or put on an interface"
        yield Difference("ARP", Level.OTHERWISE, now, "it answers for none of them", todo)
    elif strict:
        now = "strictARP: the node answers ARP only for what is on the asked interface"
        todo = "sysctl -w net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0, if nobody else needs them"
        yield Difference(
            "ARP", Level.NOTE, now, "VIPs are on no interface: the settings stay, and are not needed", todo
        )


def _node_ports(leaving: Leaving) -> Iterator[Difference]:
    servers = [each for each in leaving.kernel.servers if each.ours and each.node_port]
    here = {server.key.address for server in servers}
    served = {each for each in here if any(each in prefix for prefix in leaving.node_ports.get(family_of(each), ()))}
    gone = here - served
    if gone:
        names = leaving.names(servers)
        now = f"{plural(len(names), 'node port')} ({few(names)}) answer{'s' * (len(names) == 1)} at {addresses(here)}"
        then = f"they answer at {addresses(served)}" if served else "they answer at none of these"
        todo = f"--nodeport-addresses={','.join(_hosts(gone | served))}, or point clients at the node's address"
        yield Difference("node ports", Level.OTHERWISE, now, then, todo)
    elif here:
        yield Difference("node ports", Level.SAME, f"node ports answer at {addresses(here)}", "the same")


def _hosts(found: Iterable[Address]) -> list[str]:
    return [str(Prefix.host(each)) for each in sorted(found, key=lambda address: (len(address), address))]


def _schedulers(leaving: Leaving) -> Iterator[Difference]:
    if leaving.stays:
        return
    by_scheduler: dict[str, list[Server]] = defaultdict(list)
    known = _ports(leaving.services)
    for server in (each for each in leaving.kernel.servers if each.ours):
        place = (None if server.node_port else server.key.address, server.key.protocol, server.key.port)
        service = known[place][0] if place in known else None
        if service is None or _ALGORITHM not in dict(service.annotations):
            by_scheduler[server.how.scheduler].append(server)
    for scheduler, servers in sorted(by_scheduler.items()):
        near = NEAREST.get(scheduler, UNKNOWN)
        now = f"{scheduler} for {few(leaving.names(servers))}: {near.does}"
        todo = f"annotate these Services {_ALGORITHM}: {near.algorithm}" if near.algorithm else near.instead
        level = Level.NOTE if near.alike else Level.OTHERWISE
        yield Difference("scheduler", level, now, "each new connection goes to a random endpoint", todo)


def _affinity(leaving: Leaving) -> Iterator[Difference]:
    sticky = [each for each in leaving.kernel.servers if each.ours and each.how.persistence]
    if not sticky or leaving.stays:
        return
    seconds = sorted({each.how.persistence for each in sticky})
    now = (
        f"clients of {few(leaving.names(sticky))} are bound for {few(f'{each} s' for each in seconds)}, and until"
        " their last connection has gone, at each address by itself"
    )
    then = "bound for so long after their last new connection, at all addresses of the Service port together"
    yield Difference("affinity", Level.NOTE, now, then, "clients that are bound now may be sent elsewhere once")


def _foreign(leaving: Leaving) -> Iterator[Difference]:
    excluded = leaving.kube_proxy.config.ipvs.exclude_cidrs if leaving.kube_proxy else ()
    prefixes = [Prefix.parse(each) for each in excluded]
    foreign = [each for each in leaving.kernel.servers if not each.ours]
    inside = [each for each in foreign if any(each.key.address in prefix for prefix in prefixes)]
    others = [each for each in foreign if each not in inside]
    for what, found in ((f"in excludeCIDRs {few(excluded)}", inside), ("of nobody's ipset", others)):
        if found:
            names = few(leaving.names(found))
            now = f"{plural(len(found), 'virtual server')} {what}: {names}"
            yield Difference("foreign", Level.NOTE, now, "vipwire leaves them: they go on", "ipvsadm -Ln shows them")


def _connections(leaving: Leaving) -> Iterator[Difference]:
    if leaving.stays:
        return
    ours = [each for each in leaving.kernel.servers if each.ours]
    if count := sum(each.connections for each in ours):
        busy = [each for each in ours if each.connections]
        now = f"{count} connections are open in IPVS, to {few(leaving.names(busy))}"
        then = "they go on; each virtual server goes when its last one has ended"
        yield Difference("connections", Level.NOTE, now, then, "`vipwire cleanup` looks again, and says what stays")
    if draining := sum(each.draining for each in ours):
        now = f"{draining} endpoints with weight 0 finish their connections (graceful termination)"
        then = "connection tracking keeps connections of a removed endpoint, with nothing to see in a list"
        yield Difference("connections", Level.NOTE, now, then)


def _timeouts(leaving: Leaving) -> Iterator[Difference]:
    found = leaving.kernel.timeouts
    if found is None or leaving.stays:
        return
    chosen = {name: getattr(found, name) for name, usual in _KERNEL_TIMEOUTS.items() if getattr(found, name) != usual}
    tracked = leaving.kernel.sysctls.get("net/netfilter/nf_conntrack_tcp_timeout_established")
    now = f"an idle TCP connection is forgotten after {found.tcp} s (IPVS), UDP after {found.udp} s"
    then = f"after {tracked} s (connection tracking)" if tracked else "when connection tracking forgets it"
    level = Level.OTHERWISE if chosen else Level.NOTE
    todo = f"--conntrack-tcp-timeout-established={found.tcp}s keeps it" if chosen else ""
    yield Difference("timeouts", level, now, then, todo)


def _settings(leaving: Leaving) -> Iterator[Difference]:
    if leaving.stays:
        return
    left = {
        path: value for path, value in leaving.kernel.sysctls.items() if path.startswith("net/ipv4/vs/") and value
    }
    if left:
        written = ", ".join(f"{path.replace('/', '.')}={value}" for path, value in sorted(left.items()))
        todo = "unload ip_vs, or restart the node, and they are gone; they do nothing without virtual servers"
        yield Difference("settings", Level.NOTE, written, "stay as they are: nobody resets them", todo)


def _masquerading(leaving: Leaving) -> Iterator[Difference]:
    if leaving.kube_proxy is None:
        return
    before, after = leaving.kube_proxy.config.iptables, leaving.config.sync
    section = leaving.target.settings.masquerading
    for name, was, will in (
        ("masqueradeAll", before.masquerade_all, after.masquerade_all),
        ("masqueradeBit", before.masquerade_bit, after.masquerade_bit),
    ):
        if was != will:
            now = f"iptables.{name}: {_written(was)}, which ipvs mode reads"
            then = f"{leaving.target.name} mode reads {section}.{name}: {_written(will)}"
            yield Difference("masquerading", Level.OTHERWISE, now, then, f"write {section}.{name}: {_written(was)}")


def _written(value: object) -> str:
    return str(value).lower()


def _policies(leaving: Leaving) -> Iterator[Difference]:
    ours = [each for each in leaving.kernel.servers if each.ours and each.key.protocol == Protocol.SCTP]
    if ours and not leaving.stays:
        yield Difference(
            "SCTP",
            Level.NOTE,
            f"IPVS translates {few(leaving.names(ours))}",
            "connection tracking does: one address of each side for an association",
        )


def _left(leaving: Leaving) -> Iterator[Difference]:
    kernel = leaving.kernel
    if not kernel.traces:
        return
    ours = sum(each.ours for each in kernel.servers)
    now = (
        f"{plural(ours, 'virtual server')}, {plural(len(kernel.vips), 'address')} on {_DEVICE},"
        f" {plural(len(kernel.sets), 'ipset')}, {plural(kernel.chains, 'chain')} KUBE-…"
    )
    if leaving.stays:
        yield Difference("objects", Level.SAME, now, "vipwire takes them over, and changes only what differs")
    else:
        todo = "`ipvsadm -Ln` shows no Services then: use `vipwire status`, `vipwire top`, `vipwire explain`"
        yield Difference("objects", Level.OTHERWISE, now, "vipwire removes them after its first sync", todo)


RULES: Final[tuple[Rule, ...]] = (
    _mode,
    _ping,
    _arp,
    _node_ports,
    _schedulers,
    _affinity,
    _masquerading,
    _timeouts,
    _connections,
    _policies,
    _foreign,
    _settings,
    _left,
)


def judge(leaving: Leaving) -> list[Difference]:
    """Apply every rule."""
    return [change for rule in RULES for change in rule(leaving)]
