"""ipvs mode's effects on packets, on a real IPVS kernel. Run by test_ipvs_guest.py in the guest."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.values import ip, ips
from tests.proxy.kernel.ipvs.proxy import (
    BALANCER,
    EXTERNAL,
    FAMILIES,
    NODE,
    VIP,
    IpvsProxy,
    Line,
    addresses,
    annotated,
    fresh_port,
    in_turn,
    proxied,
    slices,
    web,
)

from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.host.settings import apply_sysctls
from vipwire.linux.netlink.ipvs import Timeouts, TrafficStats
from vipwire.model.net import Family, Prefix, Protocol
from vipwire.model.service import Service, ServicePort, TrafficPolicy
from vipwire.modes.ipvs.driver import ipvs_sysctls
from vipwire.modes.ipvs.objects.servers import IpvsServers
from vipwire.modes.ipvs.render import IpvsSettings
from vipwire.reconcile.delta import compute_delta
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import Outcome, ProbeResult, count_pods
from vipwire_lab.namespaces.topology import UNDERLAY

pytestmark = pytest.mark.kernel

TWO = ("pod-1a", "pod-2a")
ALL = ("pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b")
LOCAL = ("pod-1a", "pod-1b", "pod-1c")


def answered_by(results: list[ProbeResult]) -> set[str]:
    assert {result.outcome for result in results} == {Outcome.ANSWERED}, count_pods(results)
    return {result.pod for result in results}


@FAMILIES
def test_host_ports_are_kept_off_the_vips(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(), *slices(lab, "web", TWO))
    lab.start_echo_servers(NODE, [9000])
    try:
        assert answered_by(lab.probe("client", lab.address_of(NODE, family), 9000)) == {NODE}
        (result,) = lab.probe("client", VIP[family], 9000)
        assert result.outcome is Outcome.REFUSED
    finally:
        lab.stop_echo_servers(NODE)


def local_service(**fields: Any) -> Service:
    return web(
        external_policy=TrafficPolicy.LOCAL,
        external_ips=addresses(EXTERNAL),
        load_balancer_ips=addresses(BALANCER),
        ports=(ServicePort("", Protocol.TCP, 80, 30080),),
        **fields,
    )


@FAMILIES
def test_a_removed_endpoint_finishes_its_connections(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(), *slices(lab, "web", ("pod-1a",)))
    line = proxy.lines[family]
    with lab.connect("client", VIP[family], 80) as connection:
        proxy.put(web(), *slices(lab, "web", ("pod-2a",)))
        proxy.housekeep()
        gone = lab.address_of("pod-1a", family)
        assert any(gone in each and each.endswith("-w 0") for each in proxy.saved())
        assert connection.exchange(b"still here\n") == b"still here\n"
        assert answered_by(lab.probe("client", VIP[family], 80, count=4)) == {"pod-2a"}
        assert line.backend.housekeeping_due() is not None
    assert any(gone in each for each in proxy.saved()), "it is kept while its connections linger in TIME_WAIT"
    proxy.put(web(), *slices(lab, "web", TWO))
    assert answered_by(lab.probe("client", VIP[family], 80, count=8)) == set(TWO), "it may come back meanwhile"


@FAMILIES
def test_a_new_process_lets_go_on_what_an_earlier_one_has_begun_to_drain(
    lab: Lab, proxy: IpvsProxy, family: Family
) -> None:
    proxy.put(web(), *slices(lab, "web", ("pod-2a",)))
    gone = lab.address_of("pod-2a", family)
    with lab.connect("client", VIP[family], 80) as connection:
        proxy.put(web(), *slices(lab, "web", ("pod-1a",)))
        with proxy.restarted() as other:
            assert {report.added + report.changed + report.removed for report in other.sync().values()} == {0}
            other.housekeep()
            assert connection.exchange(b"still here\n") == b"still here\n"
            assert any(gone in each and each.endswith("-w 0") for each in other.saved())
            other.lines[family].backend.housekeep()
            assert other.lines[family].backend.housekeeping_due() is not None, "it looks at it until it is idle"
    assert answered_by(lab.probe("client", VIP[family], 80, count=4)) == {"pod-1a"}


@FAMILIES
def test_an_idle_endpoint_is_removed_at_once(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    of = web(ports=(fresh_port(),))
    proxy.put(of, *slices(lab, "web", TWO))
    proxy.put(of, *slices(lab, "web", ("pod-2a",)))
    proxy.housekeep()
    assert not any(lab.address_of("pod-1a", family) in each for each in proxy.saved())
    assert proxy.lines[family].backend.housekeeping_due() is None


@FAMILIES
def test_draining_ends_when_its_time_is_up(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    service = web(annotations=annotated(drain_seconds="30"))
    proxy.put(service, *slices(lab, "web", ("pod-1a",)))
    line, gone = proxy.lines[family], lab.address_of("pod-1a", family)
    with lab.connect("client", VIP[family], 80):
        proxy.put(service, *slices(lab, "web", ("pod-2a",)))
        line.clock.now += 29
        proxy.housekeep()
        assert any(gone in each for each in proxy.saved())
        line.clock.now += 2
        proxy.housekeep()
        assert not any(gone in each for each in proxy.saved())


def shares(lab: Lab, host: str, family: Family, count: int = 12, port: int = 80) -> Counter[str]:
    return count_pods(lab.probe(host, VIP[family], port, count=count, parallel=1))


def weighted(scheduler: str, **weights: int) -> tuple[tuple[str, str], ...]:
    text = "{" + ", ".join(f'"{address}": {weight}' for address, weight in weights.items()) + "}"
    return annotated(scheduler=scheduler) + ((("vipwire.io/weights", text),) if weights else ())


@in_turn("scheduler", "lc", "wlc", "sed", "nq")
def test_least_connections(lab: Lab, proxy: IpvsProxy, family: Family, scheduler: str) -> None:
    """Whoever has an open connection gets no further one while another is free."""
    port = fresh_port()
    proxy.put(web(ports=(port,), annotations=annotated(scheduler=scheduler)), *slices(lab, "web", TWO))
    place = VIP[family], port.port
    with lab.connect("client", *place) as first, lab.connect("client", *place) as second:
        assert {first.answer.pod, second.answer.pod} == set(TWO)
        first.close()
        for _ in range(3):
            with lab.connect("client", *place) as more:
                assert more.answer.pod == first.answer.pod


@in_turn("scheduler", "wlc", "sed", first=Family.IPV6)
def test_weighted_least_connections(lab: Lab, proxy: IpvsProxy, family: Family, scheduler: str) -> None:
    pairs, port = weighted(scheduler, **{lab.address_of("pod-1a", family): 3}), fresh_port()
    proxy.put(web(ports=(port,), annotations=pairs), *slices(lab, "web", TWO))
    opened = [lab.connect("client", VIP[family], port.port) for _ in range(8)]
    try:
        assert Counter(each.answer.pod for each in opened) == {"pod-1a": 6, "pod-2a": 2}
    finally:
        for each in opened:
            each.close()


@FAMILIES
def test_never_queue_prefers_an_idle_server_to_a_strong_one(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    pairs = weighted("nq", **{lab.address_of("pod-1a", family): 100})
    proxy.put(web(annotations=pairs), *slices(lab, "web", TWO))
    with lab.connect("client", VIP[family], 80) as first, lab.connect("client", VIP[family], 80) as second:
        assert {first.answer.pod, second.answer.pod} == set(TWO)
        with lab.connect("client", VIP[family], 80) as third:
            assert third.answer.pod == "pod-1a"


@FAMILIES
def test_source_hash_falls_back_when_its_server_drains(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(annotations=annotated(scheduler="sh")), *slices(lab, "web", ALL))
    with lab.connect("client", VIP[family], 80) as connection:
        gone = connection.answer.pod
        rest = [pod for pod in ALL if pod != gone]
        proxy.put(web(annotations=annotated(scheduler="sh")), *slices(lab, "web", rest))
        proxy.housekeep()
        assert any(lab.address_of(gone, family) in each and "-w 0" in each for each in proxy.saved())
        assert answered_by(lab.probe("client", VIP[family], 80, count=8)) <= set(rest)


@FAMILIES
def test_destination_hash(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(annotations=annotated(scheduler="dh")), *slices(lab, "web", ALL))
    assert len(shares(lab, "client", family) + shares(lab, "pod-1b", family)) == 1


@FAMILIES
def test_maglev_by_client(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    """Maglev moves a few clients of servers that stay: whether this one is such, the real servers alone decide."""
    port = fresh_port()
    of = web(ports=(port,), annotations=annotated(scheduler="mh", scheduler_flags="mh-fallback"))
    proxy.put(of, *slices(lab, "web", ALL))
    (before,) = shares(lab, "client", family, port=port.port)
    rest = [pod for pod in ALL if pod == before or pod in TWO]
    proxy.put(of, *slices(lab, "web", rest))
    proxy.housekeep()
    assert set(shares(lab, "client", family, port=port.port)) == {before}, "who keeps its server keeps its clients"


@FAMILIES
def test_maglev_by_client_and_port(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(annotations=annotated(scheduler="mh")), *slices(lab, "web", ALL))
    assert len(shares(lab, "client", family, 40)) > 2
    same = {lab.probe("client", VIP[family], 80, source_port=4040)[0].pod for _ in range(3)}
    assert len(same) == 1


@FAMILIES
def test_maglev_has_nobody_turned_away_by_a_draining_server(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(web(annotations=annotated(scheduler="mh")), *slices(lab, "web", ALL))
    opened = [lab.connect("client", VIP[family], 80) for _ in range(12)]
    try:
        proxy.put(web(annotations=annotated(scheduler="mh")), *slices(lab, "web", TWO))
        proxy.housekeep()
        assert answered_by(lab.probe("client", VIP[family], 80, count=40)) == set(TWO)
    finally:
        for each in opened:
            each.close()


@in_turn("scheduler", "lblc", "lblcr")
def test_locality(lab: Lab, proxy: IpvsProxy, family: Family, scheduler: str) -> None:
    """One destination stays with one server while that is not overloaded."""
    proxy.put(web(annotations=annotated(scheduler=scheduler)), *slices(lab, "web", ALL))
    assert len(shares(lab, "client", family) + shares(lab, "pod-1b", family)) == 1


@FAMILIES
def test_failover_takes_the_heaviest(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    pairs = weighted("fo", **{lab.address_of("pod-2a", family): 5})
    proxy.put(web(annotations=pairs), *slices(lab, "web", ALL))
    assert set(shares(lab, "client", family)) == {"pod-2a"}
    proxy.put(web(annotations=pairs), *slices(lab, "web", ("pod-1a",)))
    assert set(shares(lab, "client", family)) == {"pod-1a"}


@FAMILIES
def test_overflow_takes_the_next_when_the_heaviest_is_full(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    pairs, port = weighted("ovf", **{lab.address_of("pod-2a", family): 2}), fresh_port()
    proxy.put(web(ports=(port,), annotations=pairs), *slices(lab, "web", TWO))
    opened = [lab.connect("client", VIP[family], port.port) for _ in range(4)]
    try:  # a real server with more connections than its weight is full
        assert [each.answer.pod for each in opened] == ["pod-2a", "pod-2a", "pod-2a", "pod-1a"]
    finally:
        for each in opened:
            each.close()


def test_an_unknown_scheduler_holds_up_its_service_only(lab: Lab, proxy: IpvsProxy) -> None:
    proxy.put(web(annotations=annotated(scheduler="twos")), *slices(lab, "web", TWO))
    text = " ".join(str(each) for line in proxy.lines.values() for each in line.reconciler.isolated.values())
    assert "no IPVS scheduler 'twos'" in text
    assert "ip_vs_twos" in text
    proxy.put(web(), *slices(lab, "web", TWO))
    assert answered_by(lab.probe("client", VIP[Family.IPV4], 80, count=4)) == set(TWO)


def test_an_unknown_scheduler_of_the_node_is_found_at_start(lab: Lab) -> None:
    with pytest.raises(UnsupportedError, match="load the module ip_vs_nosuch"):
        IpvsProxy(lab, IpvsSettings("nosuch"))
    assert "198.51.100.0" not in lab.run(NODE, ["ipvsadm", "-Sn"]).stdout


def test_a_new_process_finds_nothing_to_do(lab: Lab, proxy: IpvsProxy) -> None:
    proxy.put(
        local_service(source_ranges=(Prefix.parse("192.0.2.0/24"), Prefix.parse("2001:db8:7::/64"))),
        *slices(lab, "web", ALL),
    )
    before = proxy.state()
    with proxy.restarted() as other:
        for family, report in other.sync().items():
            assert (report.added, report.changed, report.removed) == (0, 0, 0), family
            assert report.observed is not None
            assert report.observed > 30
    assert proxy.state() == before


def test_what_is_not_ours_is_never_touched(lab: Lab) -> None:
    foreign = "-A -t 192.168.0.1:7777 -s wlc"
    rule = "-A INPUT -p tcp -m tcp --dport 7777 -j ACCEPT"
    with proxied(lab) as proxy:
        proxy.ipvsadm(*foreign.split())
        proxy.ipvsadm("-A", "-f", "7", "-s", "rr")
        lab.run(NODE, ["iptables-legacy", *rule.split()])
        lab.run(NODE, ["ipset", "create", "theirs", "hash:ip"])
        proxy.put(local_service(), *slices(lab, "web", ALL))
        assert proxy.check() == dict.fromkeys(Family, False)
        proxy.clean()
        saved = proxy.state()
        assert foreign in saved
        assert "-A -f 7 -s rr" in saved
        assert rule in saved
        assert "create theirs" in saved
        assert "KUBE" not in saved
        assert "kube-ipvs0" not in saved
    lab.run(NODE, ["ipvsadm", "-C"])
    lab.run(NODE, ["iptables-legacy", "-F"])
    lab.run(NODE, ["ipset", "destroy", "theirs"])


def test_excluded_addresses_are_left_alone(lab: Lab) -> None:
    lab.run(NODE, ["ipvsadm", "-A", "-t", "10.96.0.10:80", "-s", "wlc"])
    settings = IpvsSettings(exclude=(Prefix.parse("10.96.0.0/16"),))
    with proxied(lab, settings) as proxy:
        proxy.put(web(external_ips=addresses(EXTERNAL)), *slices(lab, "web", TWO))
        assert "-A -t 10.96.0.10:80 -s wlc" in proxy.saved()
        assert not any("-a -t 10.96.0.10:80" in each for each in proxy.saved())
        assert answered_by(lab.probe("client", EXTERNAL[Family.IPV4], 80, count=4)) == set(TWO)
    assert "-A -t 10.96.0.10:80 -s wlc" in lab.run(NODE, ["ipvsadm", "-Sn"]).stdout
    lab.run(NODE, ["ipvsadm", "-C"])


def test_a_virtual_server_that_stands_where_a_service_needs_it_is_taken_over(lab: Lab, proxy: IpvsProxy) -> None:
    proxy.ipvsadm("-A", "-t", "10.96.0.10:80", "-s", "wlc")
    proxy.put(web(), *slices(lab, "web", TWO))
    assert "-A -t 10.96.0.10:80 -s rr" in proxy.saved()
    assert answered_by(lab.probe("client", VIP[Family.IPV4], 80, count=4)) == set(TWO)


def test_timeouts_are_set_and_zero_leaves_what_there_is(lab: Lab, shared: IpvsProxy) -> None:
    del shared
    with lab.enter_namespace(NODE):
        servers = IpvsServers(Family.IPV4)
    before = servers.read_timeouts()
    servers.set_timeouts(Timeouts(1234, 0, 56))
    assert servers.read_timeouts() == Timeouts(1234, before.tcp_fin, 56)
    servers.set_timeouts(before)
    assert servers.read_timeouts() == before
    servers.close()


@FAMILIES
def test_a_flow_is_forgotten_when_its_time_is_up(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    port = ServicePort("", Protocol.UDP, 80)
    proxy.put(web(ports=(port,)), *slices(lab, "web", TWO, 80, Protocol.UDP))
    with lab.enter_namespace(NODE):
        servers = IpvsServers(family)
    before = servers.read_timeouts()
    servers.set_timeouts(Timeouts(0, 0, 1))
    try:
        assert answered_by(lab.probe("client", VIP[family], 80, Protocol.UDP, count=4)) == set(TWO)
        for _ in range(400):
            if "UDP" not in proxy.ipvsadm("-Lnc"):
                return
            threading.Event().wait(0.05)
        pytest.fail("it is remembered as long as by default, five minutes")
    finally:
        servers.set_timeouts(before)
        servers.close()


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
def test_strict_arp_says_of_no_vip_that_it_is_here(lab: Lab, proxy: IpvsProxy, strict: bool) -> None:  # noqa: FBT001
    """The network between the nodes asks on node 1's link who has the VIP, instead of sending it to the node."""
    proxy.put(web(external_ips=addresses(EXTERNAL)), *slices(lab, "web", TWO))
    route = [VIP[Family.IPV4], "dev", NODE]
    with lab.enter_namespace(NODE):
        assert not apply_sysctls(ipvs_sysctls((6, 1), strict_arp=strict)).obstacles
    lab.run(UNDERLAY, ["ip", "route", "add", *route])
    lab.run(UNDERLAY, ["ip", "neighbour", "flush", "to", VIP[Family.IPV4]])  # entries of an earlier test
    try:
        (result,) = lab.probe("client", VIP[Family.IPV4], 80, timeout=15.0)
        assert result.outcome is (Outcome.UNREACHABLE if strict else Outcome.ANSWERED)
    finally:
        lab.run(UNDERLAY, ["ip", "route", "delete", *route])
        lab.run(NODE, ["sysctl", "-q", "net.ipv4.conf.all.arp_ignore=0", "net.ipv4.conf.all.arp_announce=0"])


def test_an_external_ip_that_the_node_has_itself_stays_where_it_is(lab: Lab, proxy: IpvsProxy) -> None:
    own = lab.address_of(NODE)
    proxy.put(web(external_ips=ips(own)), *slices(lab, "web", TWO))
    assert answered_by(lab.probe("client", own, 80, count=4)) == set(TWO)
    lab.start_echo_servers(NODE, [9000])
    try:
        assert answered_by(lab.probe("client", own, 9000)) == {NODE}, "its other ports are its own"
    finally:
        lab.stop_echo_servers(NODE)
    assert own not in lab.run(NODE, ["ip", "address", "show", "dev", "kube-ipvs0"]).stdout


@FAMILIES
def test_an_external_ip_of_the_node_with_policy_local_goes_before_a_node_port_of_the_same_number(
    lab: Lab, proxy: IpvsProxy, family: Family
) -> None:
    """Who answers at the Pods' port 8080 came to the external IP, at 80 to the node port."""
    own, other = (each for each in lab.find_host(NODE).addresses if (":" in each) is (family is Family.IPV6))
    ports = (ServicePort("e", Protocol.TCP, 30080), ServicePort("n", Protocol.TCP, 81, 30080))
    behind = (*slices(lab, "web", TWO, 8080, name="e"), *slices(lab, "web", TWO, 80, name="n"))
    proxy.put(web(ports=ports, external_ips=(ip(own),), external_policy=TrafficPolicy.LOCAL), *behind)

    def met(host: str, address: str) -> tuple[set[tuple[str, int]], set[str]]:
        results = lab.probe(host, address, 30080, count=6, parallel=1)
        assert all(each.answer for each in results), f"{host} {address}: {results[0]}\n{proxy.state()}"
        return {(r.pod, r.answer.local.port) for r in results if r.answer}, {r.saw for r in results}

    assert met("client", own) == ({("pod-1a", 8080)}, {lab.address_of("client", family)})
    assert met("pod-1b", own) == ({(pod, 8080) for pod in TWO}, {lab.address_of("pod-1b", family)})
    assert met(NODE, own) == ({(pod, 8080) for pod in TWO}, {own})
    assert met("client", other)[0] == {("pod-1a", 80)}
    with proxy.restarted() as restarted:
        assert {report.added + report.changed + report.removed for report in restarted.sync().values()} == {0}


def test_a_refused_commit_leaves_everything_as_it_was(lab: Lab, proxy: IpvsProxy) -> None:
    proxy.put(web(), *slices(lab, "web", TWO))
    before = proxy.state()
    line = proxy.lines[Family.IPV4]
    service = web(external_ips=addresses(EXTERNAL), annotations=annotated(scheduler="twos"))
    proxy.objects[service.name] = service, slices(lab, "web", ALL)
    for change in line.planner.update([service.name], proxy.view).values():
        assert change.new is not None
        rendered = line.backend.render(change.new)
        with lab.enter_namespace(NODE):
            held = line.backend.observe()
            delta = compute_delta({key: held[key] for key in rendered.own if key in held}, rendered.own)
            with pytest.raises(CommitError, match="twos"):
                line.backend.commit(delta)
    assert proxy.state() == before


def direct(forwarding: str) -> Service:
    return web(external_ips=addresses(EXTERNAL), annotations=annotated(forwarding=forwarding))


@contextlib.contextmanager
def flat_network(lab: Lab, family: Family) -> Iterator[None]:
    """Add a link from the node to a Pod of the other node, as on a flat network. The Pod returns another way."""
    far, pod, space = "02:00:00:00:78:02", lab.address_of("pod-2a", family), lab.namespace_of("pod-2a").name
    lab.run(NODE, f"ip link add flat type veth peer name flat address {far} netns {space}".split())
    try:
        lab.run("pod-2a", ["ip", "link", "set", "flat", "up"])
        lab.run(NODE, ["ip", "link", "set", "flat", "up"])
        lab.run(NODE, f"ip route add {pod}/{family.bits} dev flat".split())
        lab.run(NODE, f"ip neighbour replace {pod} lladdr {far} dev flat".split())
        yield
    finally:
        lab.run(NODE, ["ip", "link", "delete", "flat"])


@FAMILIES
@pytest.mark.parametrize("forwarding", ["dsr", "tunnel"])
def test_packets_lead_to_pods_that_answer_past_the_director(
    lab: Lab, proxy: IpvsProxy, family: Family, forwarding: str
) -> None:
    """The Pod on the other node answers the client directly: the director sees its packets in one direction only."""
    other = Line(lab, family, IpvsSettings(), "node-2")
    with contextlib.ExitStack() as stack:
        stack.callback(other.backend.close)
        stack.callback(lambda: clear(lab, other))
        if forwarding == "dsr":
            stack.enter_context(flat_network(lab, family))
        proxy.put(direct(forwarding), *slices(lab, "web", TWO))
        for change in other.planner.update([web().name], proxy.view).values():
            other.reconciler.desire(web().name, change.new)
        with lab.enter_namespace("node-2"):
            other.reconciler.sync()
        results = lab.probe("client", EXTERNAL[family], 80, count=6, parallel=1)
        assert answered_by(results) == set(TWO)
        assert {result.saw for result in results} == {lab.address_of("client", family)}
        assert {result.answer.local.address for result in results if result.answer} == {EXTERNAL[family]}
        remote = counters(lab, family, lab.address_of("pod-2a", family), 3)
        assert remote.packets_in > 3
        assert remote.packets_out == 0, "no answer came back this way"
        assert answered_by(lab.probe("client", VIP[family], 80, count=4)) == set(TWO)


def clear(lab: Lab, line: Line) -> None:
    with lab.enter_namespace("node-2"):
        line.backend.delete()


@FAMILIES
def test_direct_return_by_route(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(direct("dsr"), *slices(lab, "web", ("pod-1a", "pod-1b")))
    for host in ("client", "pod-1c", NODE):
        results = lab.probe(host, EXTERNAL[family], 80, count=4, parallel=1)
        assert answered_by(results) == {"pod-1a", "pod-1b"}, host
        assert {result.saw for result in results} == {lab.address_of(host, family)}
        assert {result.answer.local.address for result in results if result.answer} == {EXTERNAL[family]}


@in_turn("forwarding", "dsr", "tunnel")
def test_direct_return_leaves_nothing_in_pods_and_a_new_process_nothing_to_do(
    lab: Lab, proxy: IpvsProxy, family: Family, forwarding: str
) -> None:
    proxy.put(direct(forwarding), *slices(lab, "web", ("pod-1a",)))
    assert EXTERNAL[family] in lab.run("pod-1a", ["ip", "address"]).stdout
    with proxy.restarted() as other:
        assert {report.added + report.changed + report.removed for report in other.sync().values()} == {0}
    proxy.drop("web")
    left = lab.run("pod-1a", ["ip", "address"]).stdout
    assert EXTERNAL[family] not in left
    assert "vipwire-tunnel" not in left
    rules = lab.run(NODE, ["ip", "-6" if family is Family.IPV6 else "-4", "rule"]).stdout
    assert "lookup 78" not in rules


def test_the_segments_of_direct_answers_fit_the_tunnel(lab: Lab, proxy: IpvsProxy) -> None:
    proxy.put(direct("tunnel"), *slices(lab, "web", ("pod-1a",)))
    with lab.connect("client", EXTERNAL[Family.IPV4], 80) as connection:
        assert "mss:1428" in lab.run("client", ["ss", "-tinH", "dst", EXTERNAL[Family.IPV4]]).stdout
        data = b"0123456789abcdef" * 4000
        assert connection.exchange(data) == data


def counters(lab: Lab, family: Family, address: str, connections: int) -> TrafficStats:
    """Read the statistics of that real server behind EXTERNAL, once they show so many connections.

    The kernel adds up its counters every two seconds, and a returning real server has its old ones.
    """
    with lab.enter_namespace(NODE):
        servers = IpvsServers(family)
    try:
        for _ in range(400):
            (direct_return,) = [key for key in servers.read_services() if key.address == ip(EXTERNAL[family])]
            (found,) = [
                each.counters for each in servers.read_real_servers(direct_return) if each.address == ip(address)
            ]
            if found.connections >= connections:
                return found
            threading.Event().wait(0.02)
    finally:
        servers.close()
    pytest.fail(f"{found}, expected {connections} connections")
