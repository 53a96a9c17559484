"""Who may finish what it carries when it leaves its pool."""

import pytest
from tests.fakes.values import endpoint, ip, ips, node_plan, port, service, slice_of

from vipwire.linux.netlink.ipvs import RealServer, VirtualServer
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.service import EndpointPort, TrafficPolicy
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.render import render_service
from vipwire.modes.ipvs.termination import TerminationPolicy
from vipwire.plan.frontends import plan_service

NODE = ips("192.168.0.2")
GOING, GONE = ip("10.0.0.1"), ip("10.0.0.9")


def noted(protocol: Protocol, *seconds: int | None) -> tuple[TerminationPolicy, list[VirtualServer]]:
    """A Service of that protocol, with an endpoint that serves while it terminates, and a pool of each kind.

    `seconds` is what its annotation says, one after the other; none if it has none.
    """
    going = endpoint("10.0.0.1", "node-1", ready=False, serving=True, terminating=True)
    slices = slice_of("web", going, endpoint("10.0.0.2"), ports=[EndpointPort("", protocol, 8080)])
    of = service(
        "web",
        "10.96.0.1",
        port(80, protocol=protocol),
        external_ips=ips("198.51.100.1"),
        external_policy=TrafficPolicy.LOCAL,
    )
    plan = plan_service(node_plan(addresses=NODE), of, [slices])
    own = render_service(Family.IPV4, "rr", Marks(0x4000), plan).own
    leaving = TerminationPolicy()
    for each in seconds or (None,):
        leaving.record_plan(plan, own, each)
    return leaving, [key for key in own if isinstance(key, VirtualServer)]


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [(Protocol.TCP, {GOING, GONE}), (Protocol.UDP, {GOING}), (Protocol.SCTP, set())],
)
def test_who_may_finish(protocol: Protocol, expected: set[Address]) -> None:
    leaving, servers = noted(protocol)
    assert any(server.mark for server in servers), "one is a mark's, which does not say its protocol"
    for server in servers:
        assert {each for each in (GOING, GONE) if leaving.may_finish(RealServer(server, each, 8080))} == expected


def test_for_how_long() -> None:
    for said in ((None,), (30,), (30, 60), (30, None)):
        leaving, (server, *_) = noted(Protocol.TCP, *said)
        assert leaving.seconds_for(RealServer(server, GONE, 8080)) == said[-1], "what was said last counts"


def test_virtual_servers_that_are_gone_are_forgotten() -> None:
    leaving, (gone, kept, *_) = noted(Protocol.UDP, 30)
    real = RealServer(gone, GOING, 8080)
    assert gone in leaving
    assert (leaving.may_finish(real), leaving.seconds_for(real)) == (True, 30)
    leaving.record_commit((), [gone, real])
    assert gone not in leaving
    assert (leaving.may_finish(real), leaving.seconds_for(real)) == (False, None)
    assert kept in leaving
    assert leaving.seconds_for(RealServer(kept, GOING, 8080)) == 30
    leaving.record_commit([gone], ())
    assert gone in leaving, "one that is there again is ours again, whoever was rendered when"
