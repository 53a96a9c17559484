"""Ending, starting and cleaning up: what stays, what is caught up with, what goes."""

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import EXTERNAL_IP, NODE_PORT
from tests.proxy.conformance.test_changes_udp import (
    FIRST,
    SECOND,
    UDP,
    all_hear,
    answers_from,
    ask,
    flows,
    is_cut_off,
)

from vipwire.model.net import Family
from vipwire.plan.plan import FrontendKind

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")


@sentence("S110")
def test_after_sigterm_the_rules_stay(restless: Cluster, family: Family) -> None:
    service = restless.service("staying", restless.pods(*PODS))
    with restless.connect(OUTSIDE, service.at(NODE_PORT, family)) as connection:
        assert restless.proxy.stop() == 0
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        for caller in (POD, NODE, OUTSIDE):
            for kind in FrontendKind:
                restless.answered(caller, service.at(kind, family), PODS)
        restless.proxy.start()
        assert connection.exchange(b"still there?\n") == b"still there?\n"


@sentence("S111")
def test_a_restart_writes_nothing_and_no_connection_fails(restless: Cluster, family: Family) -> None:
    target = restless.service("staying", restless.pods(*PODS)).vip(family)
    with (
        restless.connect(POD, target) as connection,
        restless.lab.connect_continuously(OUTSIDE.host, target.address, target.port, interval=0.002) as stream,
    ):
        stream.wait_for(10)
        rules = {each: restless.proxy.rules(each, handles=True) for each in Family}
        restless.proxy.stop()
        since = len(restless.proxy.log)
        restless.proxy.start()
        stream.wait_for(10)
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        assert {each: restless.proxy.rules(each, handles=True) for each in Family} == rules
    assert stream.report.failures == ()
    for each in Family:
        line = restless.proxy.said(since, "msg=synced", f"ip_family={each.value}")
        assert all(f"{word}=0 " in line for word in ("added", "changed", "removed")), line


@sentence("S112")
def test_what_changed_meanwhile_counts_after_a_start(restless: Cluster, family: Family) -> None:
    changed, gone = f"changed-{family.value}".lower(), f"gone-{family.value}".lower()
    new = f"new-{family.value}".lower()
    service = restless.service(changed, restless.pods("pod-1a"))
    left = restless.service(gone, restless.pods("pod-1a"))
    restless.proxy.stop()
    restless.service(changed, restless.pods("pod-2a"))
    restless.put(gone, [])
    added = restless.service(new, restless.pods("pod-2b"))
    restless.answered(OUTSIDE, service.vip(family), ["pod-1a"])
    restless.proxy.start()
    restless.answered(OUTSIDE, service.vip(family), ["pod-2a"])
    restless.answered(OUTSIDE, added.vip(family), ["pod-2b"])
    restless.dropped(OUTSIDE, left.vip(family))
    restless.passed_on(OUTSIDE, left.at(EXTERNAL_IP, family))
    restless.put(new, [])


@sentence("S112")
def test_udp_clients_are_freed_of_what_went_meanwhile(restless: Cluster, family: Family) -> None:
    name = f"udp-freed-{family.value}".lower()
    service = restless.service(name, restless.pods(FIRST), UDP)
    with flows(restless, service, family) as connections:
        all_hear(connections, FIRST)
        restless.proxy.stop()
        restless.service(name, restless.pods(SECOND), UDP)
        assert {ask(connection, 15.0) for connection in connections.values()} == {FIRST}
        restless.proxy.start()
        all_hear(connections, SECOND)


@sentence("S112", "S105")
def test_udp_clients_of_a_service_that_went_meanwhile_are_cut_off(restless: Cluster, family: Family) -> None:
    name = f"udp-gone-{family.value}".lower()
    service = restless.service(name, restless.pods("pod-1a"), UDP)
    with restless.connect(OUTSIDE, service.vip(family), 19002) as connection:
        assert ask(connection) == "pod-1a"
        restless.proxy.stop()
        restless.put(name, [])
        restless.proxy.start()
        until(lambda: is_cut_off(connection), "nobody answers")


@sentence("S107")
def test_a_restart_leaves_udp_clients_where_they_are(restless: Cluster, family: Family) -> None:
    pods = ("pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b")
    service = restless.service("udp-staying", restless.pods(*pods), UDP)
    with flows(restless, service, family) as connections:
        before = {words: ask(connection) for words, connection in connections.items()}
        assert set(before.values()) <= set(pods)
        restless.proxy.stop()
        restless.proxy.start()
        restless.write()
        assert {words: ask(connection) for words, connection in connections.items()} == before


@sentence("S113")
def test_ready_means_that_everything_is_in_the_kernel(restless: Cluster, family: Family) -> None:
    """The kernel holds nothing when the proxy starts, and it may not say that it is ready until it does."""
    service = restless.service("staying", restless.pods(*PODS))
    restless.proxy.stop()
    restless.proxy.vipwire("cleanup")
    restless.proxy.launch()
    until(lambda: restless.proxy.page("/readyz").status == 200, "/readyz is 200")
    for caller in (POD, OUTSIDE):
        restless.answered(caller, service.vip(family), PODS)


@sentence("S113")
def test_ready_is_not_said_before_the_kernel_takes_the_rules(restless: Cluster, family: Family) -> None:
    """A set that somebody else has under a name of ours is in the way of the first transaction."""
    service = restless.service("staying", restless.pods(*PODS))
    restless.proxy.stop()
    restless.proxy.vipwire("cleanup")
    with restless.proxy.obstructed():
        since = len(restless.proxy.log)
        restless.proxy.launch()
        restless.proxy.said(since, "level=error", "sync failed")
        assert restless.proxy.page("/readyz").status == 503
        assert restless.proxy.page("/livez").status == 200
    until(lambda: restless.proxy.page("/readyz").status == 200, "/readyz is 200 once the way is free")
    restless.answered(OUTSIDE, service.vip(family), PODS)


@sentence("S114", "S115")
def test_cleanup_removes_all_of_ours_and_only_that(restless: Cluster, family: Family) -> None:
    service = restless.service("staying", restless.pods(*PODS))
    restless.answered(OUTSIDE, service.vip(family), PODS)
    restless.proxy.stop()
    with restless.proxy.others() as listing:
        before = listing()
        said = restless.proxy.vipwire("cleanup")
        assert all(f"ip_family={each.value}" in said for each in Family), said
        assert listing() == before
        assert [restless.proxy.rules(each) for each in Family] == [[], []]
        for kind in (FrontendKind.CLUSTER_IP, FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER):
            restless.passed_on(OUTSIDE, service.at(kind, family))
        restless.refused(OUTSIDE, service.at(NODE_PORT, family))
        assert "msg=removed" not in restless.proxy.vipwire("cleanup")


@sentence("S112")
def test_a_client_that_came_while_there_was_no_proxy_is_answered_later(restless: Cluster, family: Family) -> None:
    name = f"late-{family.value}".lower()
    restless.proxy.stop()
    restless.proxy.vipwire("cleanup")
    service = restless.named(name, UDP)
    with pytest.raises(OSError, match=r"unreachable|No route|not answer"):
        restless.connect(OUTSIDE, service.vip(family), 19003, timeout=0.3)
    restless.service(name, restless.pods(SECOND), UDP)
    restless.proxy.start()
    until(lambda: answers_from(restless, OUTSIDE, service.vip(family), 19003), "it is answered")
    restless.put(name, [])
