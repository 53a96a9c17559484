"""Slow start, counters and the repair of every kind of damage, on a real IPVS kernel. Run by test_ipvs_guest.py."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from tests.fakes.values import ip
from tests.proxy.kernel.ipvs.proxy import (
    FAMILIES,
    NODE,
    VIP,
    IpvsProxy,
    annotated,
    fresh_port,
    slices,
    web,
)

from vipwire.linux.netlink.ipvs import Command, Forwarding, RealServer, Scheduling, VirtualServer
from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.servers import IpvsServers, ServerCommand
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counts import Counts, EndpointName, Measure
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import count_pods

pytestmark = pytest.mark.kernel

OLD, NEW = "pod-1a", "pod-2a"
TWO = (OLD, NEW)


@FAMILIES
def test_a_new_endpoint_is_not_flooded_by_a_scheduler_that_counts_connections(
    lab: Lab, proxy: IpvsProxy, family: Family
) -> None:
    """With `lc` everybody would be sent to the newcomer until it has as many connections as the others."""
    port = fresh_port()
    of = web(ports=(port,), annotations=annotated(scheduler="lc", slow_start="30s"))
    proxy.put(of, *slices(lab, "web", (OLD,)))
    held = [lab.connect("client", VIP[family], port.port) for _ in range(10)]
    try:
        proxy.put(of, *slices(lab, "web", TWO))
        new = ip(lab.address_of(NEW, family))
        before = active(lab, family)
        held += [lab.connect("client", VIP[family], port.port) for _ in range(4)]
        after = active(lab, family)
        assert after[new] - before[new] <= 2, (before, after)
    finally:
        for connection in held:
            connection.close()


def active(lab: Lab, family: Family) -> dict[bytes, int]:
    """Return the open connections of each real server, other tests' included."""
    with lab.enter_namespace(NODE), closing(IpvsServers(family)) as servers:
        return {row.real.address: row.active for row in servers.read_rows(servers.read_services())}


def wait_for_quiet(lab: Lab, family: Family) -> None:
    """Wait until connections of an earlier test have ended: a returning real server has its old ones."""
    for _ in range(600):
        if not any(active(lab, family).values()):
            return
        threading.Event().wait(0.02)
    pytest.fail(f"connections never end: {active(lab, family)}")


def counted(lab: Lab, proxy: IpvsProxy, family: Family, is_there: Callable[[Counts], bool]) -> Counts:
    """Read the counters until they satisfy `is_there`: the kernel adds them up every two seconds."""
    line = proxy.lines[family]
    counts = Counts()
    for _ in range(600):
        with lab.enter_namespace(NODE):
            counts = line.backend.read_counts(plans(proxy, family))
        if is_there(counts):
            return counts
        threading.Event().wait(0.02)
    pytest.fail(f"after many looks: {counts}")


def plans(proxy: IpvsProxy, family: Family) -> list[ServicePlan]:
    return list(proxy.lines[family].planner.plans.values())


@FAMILIES
def test_open_connections_are_counted_by_endpoint(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(), *slices(lab, "web", (OLD,)))
    (plan,) = plans(proxy, family)
    name = EndpointName(plan.frontends[0].port_name, ip(lab.address_of(OLD, family)), 80)
    wait_for_quiet(lab, family)
    with lab.connect("client", VIP[family], 80), lab.connect("client", VIP[family], 80):
        during = counted(lab, proxy, family, lambda each: name in each.get(Measure.ACTIVE, {}))
        assert during[Measure.ACTIVE][name] == 2
    after = counted(lab, proxy, family, lambda each: each.get(Measure.ACTIVE, {}).get(name) == 0)
    assert after[Measure.INACTIVE][name] >= during[Measure.INACTIVE][name], "they are not forgotten yet"


HARMS = {
    "a removed virtual server": ("ipvsadm -D -t {vip}:80",),
    "another scheduler": ("ipvsadm -E -t {vip}:80 -s wlc",),
    "an element removed": ("ipset del {sets}CLUSTER-IP {address},tcp:80",),
    "an element too many": ("ipset add {sets}CLUSTER-IP {spare},tcp:80",),
    "a rule too many": ("{iptables} -t filter -I KUBE-IPVS-FILTER -j DROP",),
    "a removed server": ("ipvsadm -d -t {vip}:80 -r {old}:80",),
    "a changed weight": ("ipvsadm -e -t {vip}:80 -r {old}:80 -m -w 7",),
    "a weight of 0": ("ipvsadm -e -t {vip}:80 -r {old}:80 -m -w 0",),
    "another way to forward": ("ipvsadm -e -t {vip}:80 -r {old}:80 -g -w 1",),
    "a foreign destination": ("ipvsadm -a -t {vip}:80 -r {other}:80 -m",),
    "persistence that nobody asked for": ("ipvsadm -E -t {vip}:80 -s rr -p 30",),
    "an emptied set": ("ipset flush {sets}CLUSTER-IP",),
    "every set emptied": ("ipset flush",),
    "a flushed chain": ("{iptables} -t nat -F KUBE-SERVICES",),
    "all jumps gone": (
        "{iptables} -t nat -F PREROUTING",
        "{iptables} -t filter -F INPUT",
        "{iptables} -t mangle -F OUTPUT",
    ),
    "an address removed": ("ip address del {address}/{bits} dev kube-ipvs0",),
    "an address too many": ("ip address add {spare}/{bits} dev kube-ipvs0",),
    "everything at once": ("ipvsadm -C", "ipset flush", "{iptables} -F KUBE-IPVS-FILTER", "ip link del kube-ipvs0"),
}


@FAMILIES
def test_damage_is_found_and_repaired_by_the_next_check(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(), *slices(lab, "web", TWO))
    line = proxy.lines[family]
    before = proxy.state()
    ipv4 = family is Family.IPV4
    words = {
        "address": VIP[family],
        "vip": written(VIP[family]),
        "old": written(lab.address_of(OLD, family)),
        "other": written(lab.address_of("pod-1b", family)),
        "sets": "KUBE-" if ipv4 else "KUBE-6-",
        "iptables": "iptables-legacy" if ipv4 else "ip6tables-legacy",
        "bits": family.bits,
        "spare": "10.96.0.77" if ipv4 else "fd00:10:96::77",
    }
    for harm, commands in HARMS.items():
        for command in commands:
            lab.run(NODE, command.format(**words).split())
        with lab.enter_namespace(NODE):
            assert line.reconciler.verify(), harm
            assert line.reconciler.sync().repaired, harm
        line.backend.housekeep()
    proxy.check()  # some damage was done to both families
    assert proxy.state() == before, "the tools see it as it was"
    assert proxy.check() == dict.fromkeys(Family, False)
    assert set(count_pods(lab.probe("client", VIP[family], 80, count=4, parallel=1))) == set(TWO)


@contextmanager
def crowded(lab: Lab, host: str, family: Family) -> Iterator[list[RealServer]]:
    """Have many virtual servers in a host's network namespace, each with one real server, for the block."""
    place = ip("203.0.113.99" if family is Family.IPV4 else "2001:db8:113::99")
    reals = [RealServer(VirtualServer(17, place, port), place, 80) for port in range(7000, 7100)]
    with lab.enter_namespace(host), closing(IpvsServers(family)) as servers:
        try:
            servers.apply(ServerCommand(Command.NEW_SERVICE, real.server, Scheduling("rr")) for real in reals)
            servers.apply(ServerCommand(Command.NEW_DEST, real, Forwarding(1)) for real in reals)
            yield reals
        finally:
            servers.apply(ServerCommand(Command.DEL_SERVICE, real.server, Scheduling("rr")) for real in reals)


@FAMILIES
def test_all_is_read_though_other_network_namespaces_have_virtual_servers(lab: Lab, family: Family) -> None:
    """The kernel's file leaves out some of its later pages then; see `table`."""
    with ExitStack() as stack:
        for host in ("client", NODE):
            reals = stack.enter_context(crowded(lab, host, family))
        with closing(IpvsServers(family)) as servers:  # the last host is the inner one
            found = {row.real for row in servers.read_rows({real.server for real in reals})}
    assert found == set(reals)


def written(address: str) -> str:
    return f"[{address}]" if ":" in address else address
