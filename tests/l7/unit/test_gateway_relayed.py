"""Whom the relay of datagrams shares clients among, for any weights of backends and endpoints."""

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.relay.messages import NOWHERE, SocketAddress
from vipwire_l7.gateway.run.relayed import build_relay_listeners
from vipwire_l7.plan.policy import Policy
from vipwire_l7.plan.sites import DatagramFrontend, Pool, Server
from vipwire_l7.watch.objects import BackendEndpoint, BackendPort, Usability

PORT = BackendPort("dns", 53, udp=True)


def pool(name: str) -> Pool:
    return Pool(name, ObjectName("default", name), PORT, Policy())


def server(last: int, weight: int = 16, use: Usability = Usability.READY) -> Server:
    return Server(BackendEndpoint(Address(bytes((10, 0, 0, last))), use), 5353, weight)


def weights(found: Mapping[str, tuple[Server, ...]], shares: Mapping[str, int]) -> dict[SocketAddress, int]:
    frontend = DatagramFrontend("udp:53", "*", 53, tuple((pool(name), weight) for name, weight in shares.items()))
    made = build_relay_listeners([frontend], lambda of: found[of.service.name], ipv6=True)["udp:53"]
    return {each.place: each.weight for each in made.listener.shares}


@given(
    st.lists(st.tuples(st.integers(1, 1_000_000), st.lists(st.integers(1, 256), max_size=5)), min_size=1, max_size=5)
)
def test_each_service_gets_its_share_whatever_its_endpoints(services: list[tuple[int, list[int]]]) -> None:
    numbers = iter(range(1, 255))
    found = {str(at): tuple(server(next(numbers), each) for each in has) for at, (_, has) in enumerate(services)}
    made = weights(found, {str(at): weight for at, (weight, _) in enumerate(services)})
    whole, most = sum(made.values()), max(made.values())
    assert most <= 1000
    assert min(made.values()) >= 1
    for at, (weight, has) in enumerate(services):
        if has:
            places = {SocketAddress(bytes(each.endpoint.address), 5353) for each in found[str(at)]}
            share = Fraction(sum(made[place] for place in places), whole)
            wanted = Fraction(weight, sum(each for each, _ in services))
            # Rounding moves each place by one at most.
            assert abs(share - wanted) <= Fraction(2 * len(made), whole)


def test_small_whole_weights_stay_as_they_are() -> None:
    assert list(weights({"a": (server(1),), "b": (server(2),)}, {"a": 9, "b": 1}).values()) == [9, 1]
    assert list(weights({"a": (server(1), server(2)), "b": (server(3),)}, {"a": 1, "b": 1}).values()) == [1, 1, 2]


@pytest.mark.parametrize("endpoints", [(), (server(1, 0),)])
def test_a_service_without_endpoints_for_new_clients_drops_its_share(endpoints: tuple[Server, ...]) -> None:
    assert weights({"a": endpoints, "b": (server(9),)}, {"a": 3, "b": 1})[NOWHERE] == 3


def test_endpoints_that_are_going_keep_the_clients_that_they_have() -> None:
    found = (server(1), server(2, use=Usability.DRAINING))
    frontend = DatagramFrontend("udp:53", "192.0.2.1", 53, ((pool("a"), 1),))
    made = build_relay_listeners([frontend], lambda _: found, ipv6=True)["udp:53"].listener
    assert [each.place.address[3] for each in made.shares] == [1]
    assert [each.address[3] for each in made.serving] == [2]
    assert [each.address for each in made.binds] == [b"\xc0\0\x02\x01"]
