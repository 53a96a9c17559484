"""The real proxy and a real kernel that refuses, or that others meddle with."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Scene, leads_to, prepare, reached, scene, service_of, slice_for, stage
from tests.fakes.own_network import run
from tests.fakes.waiting import until
from tests.proxy.kernel.nft_transactions import commit, nft

from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.netlink.message import NLM_F_CREATE, encode_string, encode_u32be
from vipwire.linux.netlink.nftables import encode, wire
from vipwire.linux.netlink.socket import NetlinkSocket
from vipwire.model.net import Family, format_address

pytestmark = pytest.mark.kernel
REPAIRED = "repaired changes of other programs in the kernel"
RESTLESS = "another program changes vipwire's rules again and again; the next repairs take up to a sync period"
FAILED = "sync failed; the old rules stay"
NETLINK_NETFILTER = 12
OWNER = 2  # NFT_TABLE_F_OWNER: only the socket that made the table may change it, and with the socket it goes
FORBIDDEN = "table ip vipwire: add table: EPERM"


@contextlib.asynccontextmanager
async def playing(*flags: str) -> AsyncIterator[Scene]:
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", "10.96.0.1"))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    server.store.put("services", service_of("other", "10.96.0.2"))
    server.store.put("endpointslices", slice_for("other", "10.244.0.2"))
    with stage():
        async with scene(server, *flags) as it:
            await it.synced()
            await it.daemon.heard("synced", ip_family="IPv6")
            yield it


@contextmanager
def owned_by_another() -> Iterator[None]:
    """Replace our table by one that belongs to somebody else."""
    body = encode_string(wire.TABLE_NAME, "vipwire") + encode_u32be(wire.TABLE_FLAGS, OWNER)
    theirs = encode.Operation(
        wire.MessageType.NEWTABLE, NLM_F_CREATE, wire.encode_header(wire.NFPROTO[Family.IPV4]) + body
    )
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        commit(netlink, [encode.delete_table(Family.IPV4, "vipwire"), theirs])
        yield


async def test_a_kernel_that_refuses_everything_is_reported_tried_ever_more_rarely_and_done_when_it_gives_way() -> (
    None
):
    async with playing() as it:
        with owned_by_another():
            it.server.store.put("endpointslices", slice_for("web", "10.244.0.3"))
            record = await it.daemon.heard(FAILED, ip_family="IPv4")
            assert FORBIDDEN in record["error"]
            assert record["transaction"].startswith("add table ip vipwire\n")
            (event,) = await it.posted("SyncFailed", "node-0")
            assert FORBIDDEN in event["message"]
            # IPv6 goes on meanwhile.
            value = service_of("six", "fd00:96::1")
            await it.daemon.again(lambda: it.server.store.put("services", value), "synced", ip_family="IPv6")
            assert not it.daemon.said(REPAIRED, ip_family="IPv4")
            failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
            assert await it.metric(failures, ip_family="IPv4") >= 1
        await it.daemon.heard(REPAIRED, ip_family="IPv4")
        assert await reached("10.96.0.1") == "10.244.0.3"
        assert await reached("10.96.0.2") == "10.244.0.2"
        assert len(it.daemon.said(FAILED)) == 1
        await it.posted("KernelStateRepaired", "node-0")


async def test_an_element_that_somebody_put_in_our_way_is_replaced() -> None:
    async with playing() as it:
        nft("add element ip vipwire service-ips { 10.96.0.9 . tcp . 80 : 7:7 }")
        value = service_of("new", "10.96.0.9")
        it.server.store.put("endpointslices", slice_for("new", "10.244.0.9"))
        record = await it.daemon.again(lambda: it.server.store.put("services", value), REPAIRED)
        assert "10.96.0.9" in record["examples"]
        await it.posted("KernelStateRepaired")
        assert await reached("10.96.0.9") == "10.244.0.9"
        assert await reached("10.96.0.1") == "10.244.0.1"
        assert not it.daemon.said(FAILED)


async def test_a_chain_that_cannot_go_because_of_a_foreign_rule_goes_with_the_rule() -> None:
    async with playing() as it:
        nft("add chain ip vipwire foreign; add rule ip vipwire foreign jump service-pick-1")
        it.server.store.put("endpointslices", slice_for("web", "10.244.0.3", "10.244.0.4"))
        it.server.store.put("endpointslices", slice_for("other", "10.244.0.5", "10.244.0.6"))
        record = await it.daemon.heard(REPAIRED)
        assert "foreign" in record["examples"]
        await leads_to("10.96.0.1", "10.244.0.4")
        await leads_to("10.96.0.2", "10.244.0.6")
        assert {await reached("10.96.0.1") for _ in range(20)} == {"10.244.0.3", "10.244.0.4"}
        assert {await reached("10.96.0.2") for _ in range(20)} == {"10.244.0.5", "10.244.0.6"}
        assert "foreign" not in nft("list table ip vipwire")


async def test_a_proxy_that_cannot_sync_for_long_is_unhealthy_until_it_can() -> None:
    async with playing("--iptables-sync-period=1s", "--iptables-min-sync-period=0s") as it:
        with owned_by_another():
            it.server.store.put("endpointslices", slice_for("web", "10.244.0.3"))
            await it.daemon.heard(FAILED)
            async with asyncio.timeout(60):
                while (await it.page("/healthz"))[0] == 200:  # noqa: ASYNC110 - a page is all there is to ask
                    await asyncio.sleep(0.05)
        await it.daemon.heard(REPAIRED)
        assert (await it.page("/healthz"))[0] == 200
        assert (await it.page("/livez"))[0] == 200


async def flushed(it: Scene) -> None:
    """Flush all rules and wait for the repair: from then on the proxy listens."""
    nft("flush ruleset")
    await it.daemon.until(lambda: len(it.daemon.said("synced", observed=0)) == 4)


async def test_a_flush_is_repaired_long_before_the_next_check_with_the_name_of_its_program() -> None:
    async with playing("--iptables-sync-period=1h") as it:
        await flushed(it)
        for family in ("IPv4", "IPv6"):
            record = await it.daemon.again(lambda: nft("flush ruleset"), REPAIRED, ip_family=family)
            assert re.fullmatch(r"nft \(pid \d+\)", record["by"])
        await leads_to("10.96.0.1", "10.244.0.1")
        messages = [event["message"] for event in await it.posted("KernelStateRepaired", count=2)]
        assert any("nft (pid " in message for message in messages)


async def test_a_connection_that_began_while_the_rules_were_gone_is_answered_after_the_repair() -> None:
    async with playing("--iptables-sync-period=1h") as it:
        await it.daemon.heard("found no rules of other modes")
        run("ip neighbour add 10.96.0.1 lladdr 02:00:00:00:00:99 dev node nud permanent")
        assert it.daemon.process is not None
        it.daemon.process.send_signal(signal.SIGSTOP)
        # The kernel tracks connections of a namespace while a rule there asks for it.
        nft("flush ruleset; add table ip t; add chain ip t o { type filter hook output priority 0; }")
        nft("add rule ip t o ct state new")
        early = asyncio.ensure_future(reached("10.96.0.1"))
        await asyncio.to_thread(until, lambda: has_flow("10.96.0.1"))
        it.daemon.process.send_signal(signal.SIGCONT)
        assert await early == "10.244.0.1"


def has_flow(destination: str) -> bool:
    with FlowTable() as table:
        return any(format_address(flow.destination) == destination for flow in table.list_flows(Family.IPV4))


async def test_commits_elsewhere_and_our_own_are_no_reason_to_read_the_rules() -> None:
    async with playing("--iptables-sync-period=1h", "--iptables-min-sync-period=0s") as it:
        await flushed(it)
        before = len(it.daemon.records)
        for number in range(5):
            nft(f"add table ip theirs{number}")
            it.server.store.put("endpointslices", slice_for("web", f"10.244.0.{number + 3}"))
            await leads_to("10.96.0.1", f"10.244.0.{number + 3}")
        assert not [record for record in it.daemon.records[before:] if "observed" in record]


async def test_a_program_that_flushes_all_the_time_is_told_once_and_does_not_keep_the_proxy_busy() -> None:
    async with playing("--iptables-sync-period=10s", "--iptables-min-sync-period=0s") as it:
        flushes = 0
        async with asyncio.timeout(60):
            while not it.daemon.said(RESTLESS, ip_family="IPv4"):
                nft("flush ruleset")
                flushes += 1
                await asyncio.sleep(0.05)
        # After each repair the pause doubles from 0.1 s.
        assert len(it.daemon.said(REPAIRED, ip_family="IPv4")) < flushes / 2
        assert len(it.daemon.said(RESTLESS, ip_family="IPv4")) == 1
        await leads_to("10.96.0.1", "10.244.0.1")
