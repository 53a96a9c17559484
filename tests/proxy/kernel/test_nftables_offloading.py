"""Whether this kernel can carry connections past the rules is found by trying, and where it cannot the mode runs."""

import subprocess
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from tests.fakes.own_network import run
from tests.fakes.values import node_plan

from vipwire.config.configuration import Config
from vipwire.config.sections import NFTables
from vipwire.linux.host.route_watch import LinkWatch
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.driver import DRIVER
from vipwire.modes.nftables.explain.explainer import INSPECTION
from vipwire.modes.nftables.flowtable import find_flowtable
from vipwire.modes.nftables.probe import find_offloading_obstacle
from vipwire.modes.nftables.table import fastpath
from vipwire.reconcile.counts import AdoptsSettings
from vipwire.reconcile.delta import Delta

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("network")]
ASKED = replace(Config(), nftables=NFTables(offload_packet_threshold=20))


def nft_can() -> bool:
    """Ask nft itself; its flowtable goes with the namespace."""
    script = "table ip t { flowtable f { hook ingress priority 0; }; chain c { ct packets > 1 flow add @f; }; }"
    return (
        subprocess.run(["nft", "-f", "-"], input=script, text=True, capture_output=True, check=False).returncode == 0
    )


def test_what_is_missing_is_told_exactly_where_nft_fails_too() -> None:
    obstacle = find_offloading_obstacle(Family)
    assert bool(obstacle) is not nft_can()
    assert not obstacle or "CONFIG_NF_FLOW_TABLE_INET" in obstacle
    (first, *_) = INSPECTION.remarks(ASKED)
    assert first.bad is bool(obstacle)
    assert first.said in (obstacle.partition("; ")[0], "this kernel can offload connections")


def test_without_it_the_mode_runs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    can = not find_offloading_obstacle(Family)
    with ExitStack() as stack:
        modes = DRIVER.build(ASKED, Family, prepare=True)
        for mode in modes.values():
            stack.enter_context(closing(mode))
        warned = "not offloading connections" in caplog.text
        assert warned is not can
        mode = modes[Family.IPV4]
        objects = mode.render_node(node_plan())
        assert (fastpath.KEY in objects) is can
        mode.commit(Delta(added=dict(objects)))
        assert mode.observe() == objects
        with NetlinkSocket(NETLINK_NETFILTER) as sock:
            assert (find_flowtable(sock, Family.IPV4) is not None) is can


def test_what_looks_and_is_told_the_flag_sees_no_difference_either(caplog: pytest.LogCaptureFixture) -> None:
    with closing(DRIVER.build(ASKED, (Family.IPV4,), prepare=True)[Family.IPV4]) as mode:
        objects = dict(mode.render_node(node_plan()))
        mode.commit(Delta(added=objects))
    caplog.clear()
    with closing(DRIVER.build(ASKED, (Family.IPV4,), prepare=False)[Family.IPV4]) as looking:
        assert looking.render_node(node_plan()) == looking.observe() == objects
    assert not caplog.text, "the proxy has said it"


def test_what_looks_takes_the_threshold_from_the_kernel() -> None:
    with closing(DRIVER.build(ASKED, (Family.IPV4,), prepare=True)[Family.IPV4]) as mode:
        objects = dict(mode.render_node(node_plan()))
        mode.commit(Delta(added=objects))
    with closing(DRIVER.build(Config(), (Family.IPV4,), prepare=False)[Family.IPV4]) as looking:
        assert isinstance(looking, AdoptsSettings)
        looking.adopt_settings(frozenset())
        assert looking.render_node(node_plan()) == objects


def test_interfaces_that_come_are_noticed_and_none_that_was_there() -> None:
    with closing(LinkWatch()) as watch:
        before = watch.names()
        assert "lo" not in before
        assert not watch.more()
        run("ip link set lo down")
        run("ip link set lo up")
        assert not watch.more()
        for _ in range(2):
            run("ip link add some type veth peer name other")
            assert watch.more()
            assert watch.names() == before | {"some", "other"}
            run("ip link set some up")
            assert not watch.more()
            run("ip link delete some")
            watch.more()
