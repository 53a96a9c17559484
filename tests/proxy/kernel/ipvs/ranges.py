"""Ranges of ports on a real IPVS kernel: a new process, damage, others' marks, the end. Run by test_ipvs_guest.py."""

from collections.abc import Iterator

import pytest
from tests.proxy.kernel.ipvs.proxy import (
    EXTERNAL,
    FAMILIES,
    NODE,
    VIP,
    IpvsProxy,
    addresses,
    annotated,
    in_turn,
    proxied,
    slices,
    web,
)

from vipwire.linux.netlink.ipvs import VirtualServer
from vipwire.model.net import Family, Protocol
from vipwire.model.service import ServicePort, TrafficPolicy
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import ProbeResult, count_pods

pytestmark = pytest.mark.kernel

FIRST, WITHIN = 10000, 10123
TWO = ("pod-1a", "pod-2a")
RTP = ServicePort("", Protocol.TCP, FIRST)


@pytest.fixture(autouse=True)
def _open_ports(lab: Lab) -> Iterator[None]:
    for pod in TWO:
        lab.start_echo_servers(pod, [FIRST, WITHIN])
    yield
    for pod in TWO:
        lab.stop_echo_servers(pod, [FIRST, WITHIN])


@pytest.fixture
def ranging(lab: Lab, proxy: IpvsProxy) -> IpvsProxy:
    """A proxy with a Service at a port range whose endpoints keep the client's port."""
    put_range(lab, proxy)
    return proxy


def put_range(lab: Lab, proxy: IpvsProxy) -> None:
    of = web(
        ports=(RTP,),
        external_ips=addresses(EXTERNAL),
        external_policy=TrafficPolicy.LOCAL,
        annotations=annotated(port_range="10000-20000"),
    )
    proxy.put(of, *slices(lab, "web", TWO, FIRST))


def asked(lab: Lab, address: str, port: int = WITHIN) -> list[ProbeResult]:
    return lab.probe("client", address, port, count=4, parallel=1)


@FAMILIES
def test_a_new_process_finds_a_range_as_it_was_left(lab: Lab, ranging: IpvsProxy, family: Family) -> None:
    before = ranging.state()
    with ranging.restarted() as other:
        assert {report.added + report.changed + report.removed for report in other.sync().values()} == {0}
        assert ranging.state() == before
        assert set(count_pods(asked(lab, VIP[family]))) == set(TWO)


HARMS = {
    "a rule that marks is removed": "{iptables} -t mangle -F KUBE-IPVS-RANGES",
    "a rule of somebody else": "{iptables} -t nat -I KUBE-IPVS-RANGES -p tcp -j ACCEPT",
    "a rule that does not lead": "{iptables} -t nat -D KUBE-IPVS-RANGES 1",
    "a rule twice": "{iptables} -t filter -I KUBE-IPVS-RANGES 1 -j KUBE-IPVS-REFUSE",
    "a virtual server of a mark is removed": "ipvsadm -D -f {mark}",
    "a real server has another port": "ipvsadm -a -f {mark} -r {other}:7 -m",
    "the register is emptied": "ipset flush {sets}RANGES",
    "every rule is gone": "{iptables} -t mangle -F",
}


@FAMILIES
def test_damage_to_a_range_is_found_and_repaired(lab: Lab, ranging: IpvsProxy, family: Family) -> None:
    before, line = ranging.state(), ranging.lines[family]
    with lab.enter_namespace(NODE):
        held = line.backend.observe()
    ipv4 = family is Family.IPV4
    pod = lab.address_of("pod-1b", family)
    mark = next(key.mark for key in held if isinstance(key, VirtualServer) and key.mark)
    words = {
        "iptables": "iptables-legacy" if ipv4 else "ip6tables-legacy",
        "sets": "KUBE-" if ipv4 else "KUBE-6-",
        "mark": str(mark) if ipv4 else f"{mark} -6",
        "other": pod if ipv4 else f"[{pod}]",
    }
    for harm, command in HARMS.items():
        lab.run(NODE, command.format(**words).split())
        with lab.enter_namespace(NODE):
            assert line.reconciler.verify(), harm
            assert line.reconciler.sync().repaired, harm
        line.backend.housekeep()
    ranging.check()
    assert sorted(ranging.state().splitlines()) == sorted(before.splitlines()), "the tools see it as it was"
    assert ranging.check() == dict.fromkeys(Family, False)
    assert set(count_pods(asked(lab, VIP[family]))) == set(TWO)


@FAMILIES
def test_marks_of_others_change_nothing_and_a_local_pool_is_that_of_clients_outside(
    lab: Lab, ranging: IpvsProxy, family: Family
) -> None:
    del ranging
    program = "iptables-legacy" if family is Family.IPV4 else "ip6tables-legacy"
    rule = f"PREROUTING -t mangle -p tcp --dport {WITHIN} -j MARK --set-mark 0xc000"
    lab.run(NODE, [program, "-I", *rule.split()])
    try:
        assert set(count_pods(asked(lab, VIP[family]))) == set(TWO)
        assert set(count_pods(asked(lab, EXTERNAL[family]))) == {"pod-1a"}
        (answer,) = {each.saw for each in asked(lab, EXTERNAL[family])}
        assert answer == lab.address_of("client", family), "with a Local policy the client's address is kept"
    finally:
        lab.run(NODE, [program, "-D", *rule.split()])


@FAMILIES
def test_open_connections_to_a_range_outlive_its_last_endpoint(lab: Lab, ranging: IpvsProxy, family: Family) -> None:
    (of,) = (service for service, _ in ranging.objects.values())
    with lab.connect("client", VIP[family], WITHIN) as connection:
        ranging.put(of)
        ranging.housekeep()
        assert connection.exchange(b"still here\n") == b"still here\n"
        (refused,) = lab.probe("client", VIP[family], WITHIN)
        assert not refused.answer


def test_cleaning_up_leaves_no_rule_and_no_virtual_server_of_a_range(lab: Lab) -> None:
    with proxied(lab) as proxy:
        put_range(lab, proxy)
        assert "-f" in proxy.ipvsadm("-Sn").split()
        assert "KUBE-IPVS-RANGES" in proxy.state()
        proxy.clean()
        assert "-f" not in proxy.ipvsadm("-Sn").split()
        assert "KUBE" not in proxy.state()


@in_turn("forwarding", "tunnel", "dsr")
def test_a_range_with_direct_return_is_answered_as_the_vip_at_every_port(
    lab: Lab, proxy: IpvsProxy, family: Family, forwarding: str
) -> None:
    here = ("pod-1a", "pod-1b")  # dsr reaches these
    lab.start_echo_servers("pod-1b", [FIRST, WITHIN])
    words = annotated(port_range="10000-20000", forwarding=forwarding)
    of = web(ports=(RTP,), external_ips=addresses(EXTERNAL), annotations=words)
    proxy.put(of, *slices(lab, "web", here, FIRST))
    for port in (FIRST, WITHIN):
        results = asked(lab, EXTERNAL[family], port)
        assert count_pods(results) == dict.fromkeys(here, 2), port
        assert {result.saw for result in results} == {lab.address_of("client", family)}
        local = {result.answer.local for result in results if result.answer}
        assert {(each.address, each.port) for each in local} == {(EXTERNAL[family], port)}
    assert count_pods(asked(lab, VIP[family])) == dict.fromkeys(here, 2)
    lab.stop_echo_servers("pod-1b", [FIRST, WITHIN])
