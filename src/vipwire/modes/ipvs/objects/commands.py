"""Writes a difference as commands of ipset, iptables, ipvsadm and ip, in the order of a commit. Pure.

The output describes changes inside Pods' network namespaces in comments, because only the node knows their names.
"""

from collections.abc import Iterable, Iterator, Mapping

from vipwire.linux.netlink.ipset import MOST_ELEMENTS, IpsetSpec, SetType
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Family, Protocol, format_address, format_endpoint
from vipwire.modes.ipvs.objects.chains import TABLES, write_single_changes
from vipwire.modes.ipvs.objects.names import (
    BESIDE,
    DEVICE,
    ROUTE_TABLE,
    RULE_PRIORITY,
    TUNNELS,
    Object,
    ObjectKey,
    RangeRule,
    Receiver,
    Rules,
    SetEntry,
    Vip,
    VipRoute,
    describe_element,
)
from vipwire.modes.ipvs.objects.parts import partition_delta
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.reconcile.delta import Delta

_SERVICES = {Protocol.TCP: "-t", Protocol.UDP: "-u", Protocol.SCTP: "--sctp-service"}
_METHODS = {Method.MASQUERADE: "-m", Method.ROUTE: "-g", Method.TUNNEL: "-i"}
_FLAGS = {ServiceFlag.SCHEDULER_1: "flag-1", ServiceFlag.SCHEDULER_2: "flag-2", ServiceFlag.SCHEDULER_3: "flag-3"}


def list_commands(family: Family, delta: Delta[ObjectKey, Object]) -> Iterator[str]:
    writer, parts = _Writer(family), partition_delta(delta)
    yield from (writer.write_create(name.set, spec) for name, spec in parts.sets.added.items() if spec)
    for name, (old, spec) in parts.sets.changed.items():
        yield from writer.write_replace(name.set, old, spec) if spec else ()
    for entry, (_, mark) in parts.entries.changed.items():
        yield from (writer.write_entry("del", entry), writer.write_entry("add", entry, mark))
    yield from (writer.write_entry("add", entry, mark) for entry, mark in parts.entries.added.items())
    yield from writer.write_chains(parts.chains)
    yield from (writer.write_server("-A", key, how) for key, how in parts.servers.added.items())
    yield from (writer.write_server("-E", key, how) for key, (_, how) in parts.servers.changed.items())
    yield from (writer.write_real_server("-a", key, how) for key, how in parts.reals.added.items())
    yield from (writer.write_real_server("-e", key, how) for key, (_, how) in parts.reals.changed.items())
    yield from writer.write_range_rules(Delta(parts.rules.added, parts.rules.changed))
    yield from (writer.write_receiver("add", key, how) for key, how in parts.receivers.written.items())
    yield from writer.write_routes("replace", parts.routes.added)
    yield from writer.write_rules("add", [each.mark for each in parts.mark_rules.added])
    yield from writer.write_vips("add", parts.vips.added)
    yield from writer.write_vips("del", parts.vips.removed)
    yield from writer.write_rules("del", [each.mark for each in parts.mark_rules.removed])
    yield from writer.write_routes("del", parts.routes.removed)
    yield from (writer.write_receiver("del", key, how) for key, how in parts.receivers.removed.items())
    yield from writer.write_range_rules(Delta(removed=parts.rules.removed))
    gone = parts.servers.removed
    yield from (writer.write_real_server("-d", key) for key in parts.reals.removed if key.server not in gone)
    yield from (writer.write_server("-D", key) for key in gone)
    yield from writer.write_chain_removals(parts.chains.removed)
    yield from (writer.write_entry("del", entry) for entry in parts.entries.removed)
    yield from (f"ipset destroy {name.set}" for name in parts.sets.removed)


class _Writer:
    """Writes the commands of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._six = family is Family.IPV6
        self._ip = "ip -6" if self._six else "ip"
        self._iptables = "ip6tables" if self._six else "iptables"

    def write_create(self, name: str, spec: IpsetSpec) -> str:
        kind = f"family {'inet6' if self._six else 'inet'} maxelem {MOST_ELEMENTS}"
        kind = "range 0-65535" if spec.type is SetType.PORT else kind
        return f"ipset create {name} {spec.type.value} {kind}{' skbinfo' if spec.marks else ''}"

    def write_replace(self, name: str, old: IpsetSpec | None, spec: IpsetSpec) -> Iterator[str]:
        if old is None:
            yield from (f"ipset destroy {name}", self.write_create(name, spec))
            return
        beside = BESIDE[self._family]
        yield self.write_create(beside, spec)
        marks, kept = ("(.*( skbmark [^ ]+))?", r"\3") if spec.marks else ("", "")
        elements = rf"s/^add {name} ([^ ]+){marks}.*/add {beside} \1{kept}/p"  # without timeouts and counters
        yield f"ipset save {name} | sed -nE '{elements}' | ipset restore"
        yield from (f"ipset swap {name} {beside}", f"ipset destroy {beside}")

    def write_entry(self, verb: str, entry: SetEntry, mark: int = 0) -> str:
        return f"ipset {verb} {entry.set} {describe_element(entry.element)}{f' skbmark {mark:#x}' if mark else ''}"

    def write_chains(self, delta: Delta[ChainName, Rules]) -> Iterator[str]:
        """Create all chains, then fill them, because rules jump between them."""
        new = delta.written
        ours = [key for key in new if key.chain not in BUILT_IN]
        yield from (self._write_table(key, "-N") for key in ours if key in delta.added)
        yield from (self._write_table(key, "-F") for key in ours if key in delta.changed)
        for key, (old, _) in delta.changed.items():
            if key.chain in BUILT_IN:
                yield from (self._write_table(key, "-D", rule) for rule in old)
        for key, rules in new.items():
            for number, rule in enumerate(rules, 1):
                built_in = key.chain in BUILT_IN
                yield (
                    self._write_table(key, "-I", f"{number} {rule}")
                    if built_in
                    else self._write_table(key, "-A", rule)
                )

    def write_chain_removals(self, chains: Mapping[ChainName, Rules]) -> Iterator[str]:
        """Empty all chains, then delete them, because rules jump between them."""
        ours = [key for key in chains if key.chain not in BUILT_IN]
        for key, rules in chains.items():
            if key.chain in BUILT_IN:
                yield from (self._write_table(key, "-D", rule) for rule in rules)
        yield from (self._write_table(key, "-F") for key in ours)
        yield from (self._write_table(key, "-X") for key in ours)

    def write_range_rules(self, delta: Delta[RangeRule, int]) -> Iterator[str]:
        for table in TABLES:
            lines = (line for line in write_single_changes(table, delta) if line.startswith("-"))
            yield from (f"{self._iptables} -t {table} {line}" for line in lines)

    def _write_table(self, key: ChainName, verb: str, rest: str = "") -> str:
        return f"{self._iptables} -t {key.table} {verb} {key.chain} {rest}".rstrip()

    def write_server(self, verb: str, server: VirtualServer, how: Scheduling | None = None) -> str:
        words = ["ipvsadm", verb, self._write_place(server)]
        if how is not None:
            words += ["-s", how.scheduler]
            words += ["-p", str(how.persistence)] if how.persistence else []
            words += ["-o"] if how.flags & ServiceFlag.ONE_PACKET else []
            flags = [name for flag, name in _FLAGS.items() if how.flags & flag]
            words += ["-b", ",".join(flags)] if flags else []
        return " ".join(words)

    def write_real_server(self, verb: str, real: RealServer, how: Forwarding | None = None) -> str:
        words = ["ipvsadm", verb, self._write_place(real.server), "-r", format_endpoint(real.address, real.port)]
        if how is not None:
            words += [_METHODS[how.method], "-w", str(how.weight)]
        return " ".join(words)

    def _write_place(self, server: VirtualServer) -> str:
        if server.mark:
            return f"-f {server.mark}{' -6' if self._six else ''}"
        return f"{_SERVICES[Protocol(server.protocol)]} {format_endpoint(server.address, server.port)}"

    def write_vips(self, verb: str, vips: Iterable[Vip]) -> Iterator[str]:
        """Add or delete addresses of kube-ipvs0; create the device if it is missing."""
        texts = [f"{format_address(vip.address)}/{self._family.bits}" for vip in vips]
        if texts and verb == "add":
            yield f"ip link show {DEVICE} >/dev/null 2>&1 || ip link add {DEVICE} type dummy"
        scope = "nodad preferred_lft 0" if self._six else "scope link"
        how = f" {scope}" if verb == "add" else ""
        yield from (f"{self._ip} address {verb} {text} dev {DEVICE}{how}" for text in texts)

    def write_rules(self, verb: str, marks: Iterable[int]) -> Iterator[str]:
        yield from (
            f"{self._ip} rule {verb} fwmark {mark:#x} lookup {ROUTE_TABLE} priority {RULE_PRIORITY}" for mark in marks
        )

    def write_routes(self, verb: str, routes: Iterable[VipRoute]) -> Iterator[str]:
        """Add or delete the local routes for marked packets, and the default route of earlier vipwires."""
        for address in (route.address for route in routes):
            place = format_address(address) if any(address) else "default"
            yield f"{self._ip} route {verb} local {place} dev lo table {ROUTE_TABLE}"

    def write_receiver(self, verb: str, key: Receiver, how: Method) -> str:
        """Describe in a comment the configuration that a Pod needs."""
        device = TUNNELS[self._family] if how is Method.TUNNEL else "lo"
        what = f"{self._ip} address {verb} {format_address(key.vip)}/{self._family.bits} dev {device}"
        return f"# in the network namespace of the Pod {format_address(key.pod)}: {what}"
