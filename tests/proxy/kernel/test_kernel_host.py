import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.own_network import enter, own_network, run

from vipwire.inspect.explain.routes import find_obstacle_towards
from vipwire.linux.host.addresses import AddressWatch, LocalAddress, read_addresses
from vipwire.linux.host.kernel import require_nftables
from vipwire.linux.host.local_networks import LocalRouteWatch, read_local_networks
from vipwire.linux.host.settings import apply_sysctls, list_router_sysctls
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Family, Prefix, parse_address
from vipwire.model.sysctl import Sysctl
from vipwire.proxy_daemon.start.machine import list_forwarding_sysctls

pytestmark = pytest.mark.kernel

LOOPBACK = LocalAddress(parse_address("127.0.0.1"), 8, 254, "lo")
LOOPBACK6 = LocalAddress(parse_address("::1"), 128, 254, "lo")
FORWARDING = (Path("/proc/sys/net/ipv4/ip_forward"), Path("/proc/sys/net/ipv6/conf/all/forwarding"))


@pytest.fixture
def watch(network: int) -> Iterator[AddressWatch]:
    assert network  # it is opened in the namespace of the test
    with AddressWatch() as opened:
        yield opened


def wait_for_change(watch: AddressWatch) -> bool:
    return bool(select.select([watch], [], [], 60)[0]) and watch.refresh()


def test_the_addresses_are_those_that_ip_shows(network: int) -> None:
    assert network
    run("ip link add e0 type veth peer name e1")
    run("ip address add 10.0.0.1/24 dev e0")
    run("ip address add 10.0.0.2 peer 10.0.0.3/32 dev e1")
    run("ip address add fd00::1/64 dev e1 nodad")
    assert set(read_addresses()) == {
        LOOPBACK,
        LOOPBACK6,
        LocalAddress(parse_address("10.0.0.1"), 24, 0, "e0"),
        LocalAddress(parse_address("10.0.0.2"), 32, 0, "e1"),
        LocalAddress(parse_address("fd00::1"), 64, 0, "e1"),
    }


@pytest.mark.parametrize("prefix", [Prefix.parse("10.0.0.7/32"), Prefix.parse("fd00::7/128")], ids=str)
def test_a_watch_hears_of_an_address_that_comes_and_goes(watch: AddressWatch, prefix: Prefix) -> None:
    assert watch.addresses == (LOOPBACK6, LOOPBACK)
    assert not watch.refresh()
    run(f"ip address add {prefix} dev lo")
    assert wait_for_change(watch)
    assert prefix.network in {item.address for item in watch.addresses}
    run(f"ip address del {prefix} dev lo")
    assert wait_for_change(watch)
    assert watch.addresses == (LOOPBACK6, LOOPBACK)


def test_a_notification_that_changes_nothing_is_no_change(watch: AddressWatch) -> None:
    run("ip address add 10.0.0.7/32 dev lo valid_lft 1000 preferred_lft 1000")
    assert wait_for_change(watch)
    run("ip address change 10.0.0.7/32 dev lo valid_lft 2000 preferred_lft 2000")
    assert select.select([watch], [], [], 60)[0]
    assert not watch.refresh()


@pytest.mark.parametrize("range_", [Prefix.parse("10.9.0.0/24"), Prefix.parse("fd09::/64")], ids=str)
def test_a_local_route_is_heard_and_others_are_not(network: int, range_: Prefix) -> None:
    assert network
    with LocalRouteWatch() as routes:
        assert not routes.changed()
        run(f"ip route add unreachable {range_}")
        assert select.select([routes], [], [], 60)[0]
        assert not routes.changed()
        run(f"ip route add local {range_} dev lo")
        assert select.select([routes], [], [], 60)[0]
        assert routes.changed()
        assert range_ in read_local_networks()


def test_what_happens_on_an_ignored_interface_has_nothing_read(network: int) -> None:
    assert network
    run("ip link add vips type veth peer name e0")
    run("ip address add 10.96.0.1/32 dev vips")
    with AddressWatch(frozenset({"vips"})) as watch:
        before = watch.addresses
        assert before == (LOOPBACK6, LOOPBACK)
        for command in ("add 10.96.0.2/32", "del 10.96.0.1/32"):
            run(f"ip address {command} dev vips")
            assert select.select([watch], [], [], 60)[0]
            assert not watch.refresh()
        assert watch.addresses is before, "it was not read again"
        run("ip address add 10.0.0.7/32 dev e0")
        assert wait_for_change(watch)
        assert {item.interface for item in watch.addresses} == {"lo", "e0"}
        run("ip address add 10.96.0.3/32 dev vips")
        run("ip link del vips")
        assert wait_for_change(watch), "the other end goes with it"
        assert watch.addresses == before


def test_lost_notifications_do_not_lose_an_address(watch: AddressWatch) -> None:
    with socket.socket(fileno=socket.dup(watch.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least the kernel allows, a few messages
    batch = "".join(f"address add 10.7.{high}.{low}/32 dev lo\n" for high in range(2) for low in range(1, 251))
    run("ip -batch -", batch)
    assert wait_for_change(watch)
    assert len(watch.addresses) == 502


def test_an_address_without_a_route_is_told_with_its_reason(network: int) -> None:
    assert network
    run("ip link add e0 type veth peer name e1")
    run("ip link set e0 up")
    run("ip link set e1 up")
    run("ip address add 10.0.0.1/24 dev e0")
    reasons = {
        "blackhole": "a route drops it",
        "unreachable": "host is unreachable",
        "prohibit": "a route prohibits it",
        "throw": "network is unreachable",
    }
    for number, (kind, reason) in enumerate(reasons.items()):
        run(f"ip route add {kind} 198.18.{number}.0/24")
        assert find_obstacle_towards(parse_address(f"198.18.{number}.1")) == reason
    for address in ("10.0.0.9", "127.0.0.1", "::1"):
        assert find_obstacle_towards(parse_address(address)) == ""


def test_forwarding_is_switched_on_and_told(network: int) -> None:
    assert network
    for file in FORWARDING:
        file.write_text("0\n")
    report = apply_sysctls(list_forwarding_sysctls(Family))
    assert [change.new for change in report.changed] == [1, 1]
    assert report.obstacles == ()
    assert [file.read_text() for file in FORWARDING] == ["1\n", "1\n"]
    assert apply_sysctls(list_forwarding_sysctls(Family)) == ((), ())


def test_the_size_of_the_table_belongs_to_the_first_network_namespace(network: int) -> None:
    assert network
    require_nftables()
    present = int(Path("/proc/sys/net/netfilter/nf_conntrack_max").read_text())
    report = apply_sysctls([Sysctl("net/netfilter/nf_conntrack_max", present + 1)])
    assert report.changed == ()
    (obstacle,) = report.obstacles
    assert "hostNetwork" in obstacle.remedy
    assert f"net.netfilter.nf_conntrack_max = {present + 1}" in obstacle.remedy


def test_a_read_only_proc_is_an_obstacle_with_a_remedy() -> None:
    program = """
from vipwire.linux.host.settings import apply_sysctls
from vipwire.model.sysctl import Sysctl
old = int(open("/proc/sys/net/ipv4/ip_forward").read())
report = apply_sysctls([Sysctl("net/ipv4/ip_forward", 1 - old)])
print(len(report.changed), *report.obstacles)
"""
    mounts = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && "
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", mounts + 'exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("0 net.ipv4.ip_forward: cannot be changed from ")
    assert "mount the node's /proc/sys/net at /run/host/proc/sys/net" in done.stdout


def bring_up(namespace: int, interface: str) -> None:
    """Set an interface up and wait until it has the link-local address by which routers are talked to."""
    enter(namespace)
    with AddressWatch() as watch:
        run(f"ip link set {interface} up")
        while all(item.scope != 253 for item in watch.addresses):
            assert select.select([watch], [], [], 60)[0], f"{interface} has no link-local address"
            watch.refresh()


def learned_routes() -> list[str]:
    return run("ip -6 route show default proto ra").splitlines()


def advertise(router: int, node: int) -> None:
    """Send a router advertisement from the namespace `router`, and wait in `node` until it has been taken in."""
    with NetlinkSocket(NETLINK_ROUTE) as events:
        events.join(11)  # RTNLGRP_IPV6_ROUTE
        enter(router)
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as icmp:
            icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
            advertisement = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
            icmp.sendto(advertisement, ("ff02::1", 0, 0, socket.if_nametoindex("r0")))
        enter(node)
        while not learned_routes():
            assert select.select([events], [], [], 60)[0], "no route was learned"
            list(events.read_pending_messages())


@pytest.mark.parametrize("with_care", [True, False])
def test_a_node_keeps_its_learned_default_route_when_it_starts_to_forward_only_with_care(*, with_care: bool) -> None:
    with own_network() as router:
        Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0\n")
        with own_network() as node:
            Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0\n")
            FORWARDING[1].write_text("0\n")
            run(f"ip link add n0 type veth peer name r0 netns /proc/{os.getpid()}/fd/{router}")
            enter(router)
            run("ip link set r0 up")  # n0 has a carrier only when both are up
            bring_up(node, "n0")
            bring_up(router, "r0")
            advertise(router, node)
            wanted = list_router_sysctls()
            assert [sysctl.path for sysctl in wanted] == ["net/ipv6/conf/n0/accept_ra"]
            apply_sysctls((*(wanted if with_care else ()), *list_forwarding_sysctls([Family.IPV6])))
            assert FORWARDING[1].read_text() == "1\n"
            assert len(learned_routes()) == with_care
            assert list_router_sysctls() == ()
