"""LoadBalancer addresses: given, kept, refused, taken back."""

import ipaddress
from typing import Any

from tests.up.unit.cluster_here import SERVICES, Here, service
from tests.up.unit.controllers_here import allocating, items

from vipwire_up.announcing.announce import build_arp_frame, read_arp_request, solicited_node_group
from vipwire_up.announcing.balanced import CLASS
from vipwire_up.api.objects.errors import internal_error
from vipwire_up.api.registry import Registry, Result
from vipwire_up.controllers.balancers import Balancers

POOL = (ipaddress.ip_network("192.0.2.0/31"),)
EVENTS = "/api/v1/namespaces/default/events"


async def given(here: Here) -> dict[str, list[str]]:
    listed = await items(here, SERVICES)
    found: dict[str, list[str]] = {}
    for value in listed:
        entries = value["status"]["loadBalancer"].get("ingress", [])
        found[value["metadata"]["name"]] = [entry["ip"] for entry in entries]
    return found


def balanced(name: str, **spec: Any) -> dict[str, Any]:
    return service(name, type="LoadBalancer", ipFamilies=["IPv4"], **spec)


@allocating()
async def test_addresses_are_given_kept_and_taken_back(here: Here) -> None:
    balancers = Balancers(here.registry, POOL)
    await here.post(SERVICES, balanced("a"))
    await here.post(SERVICES, balanced("b", loadBalancerIP="192.0.2.0"))
    await here.post(SERVICES, balanced("c", loadBalancerClass="example.com/other"))
    await balancers.step()
    assert await given(here) == {"a": ["192.0.2.0"], "b": [], "c": []}
    (event,) = await items(here, EVENTS)
    assert event["message"] == "another Service has spec.loadBalancerIP 192.0.2.0"
    await here.send("DELETE", f"{SERVICES}/a")
    await balancers.step()
    assert await given(here) == {"b": ["192.0.2.0"], "c": []}
    await Balancers(here.registry, POOL).step()
    assert (await given(here))["b"] == ["192.0.2.0"]
    change = {"spec": {"type": "ClusterIP"}}
    await here.send("PATCH", f"{SERVICES}/b", change, patch="merge-patch+json")
    await balancers.step()
    assert (await given(here))["b"] == []


@allocating()
async def test_an_address_that_is_asked_for_later_takes_the_place_of_another(here: Here) -> None:
    balancers = Balancers(here.registry, POOL)
    await here.post(SERVICES, balanced("a"))
    await balancers.step()
    assert await given(here) == {"a": ["192.0.2.0"]}
    change = {"spec": {"loadBalancerIP": "192.0.2.1"}}
    await here.send("PATCH", f"{SERVICES}/a", change, patch="merge-patch+json")
    await balancers.step()
    assert await given(here) == {"a": ["192.0.2.1"]}


@allocating()
async def test_none_left_and_none_of_ours(here: Here) -> None:
    balancers = Balancers(here.registry, POOL)
    for name in ("a", "b", "c"):
        await here.post(SERVICES, balanced(name, loadBalancerClass=CLASS))
    await here.post(SERVICES, balanced("d", loadBalancerIP="198.51.100.1"))
    await balancers.step()
    assert [len(each) for each in (await given(here)).values()] == [1, 1, 0, 0]
    assert {event["message"] for event in await items(here, EVENTS)} == {
        "no free address for IPv4",
        "spec.loadBalancerIP 198.51.100.1 is outside of the ranges 192.0.2.0/31",
    }
    before = here.store.revision
    await balancers.step()
    assert here.store.revision == before


class Full(Registry):
    """A registry whose store takes no status while it is full."""

    full = True

    async def replace(self, *arguments: Any, **options: Any) -> Result:
        if self.full:
            raise internal_error("no space left: the store did not make the change")
        return await super().replace(*arguments, **options)


@allocating()
async def test_what_a_full_disk_refuses_is_given_later(here: Here) -> None:
    registry = Full(here.store, here.clock)
    balancers = Balancers(registry, POOL)
    await here.post(SERVICES, balanced("a", loadBalancerIP="192.0.2.1"))
    for _ in range(2):
        assert await balancers.step()
        assert await given(here) == {"a": []}
    registry.full = False
    await balancers.step()
    assert await given(here) == {"a": ["192.0.2.1"]}
    assert await items(here, EVENTS) == []
    while await balancers.step():
        pass


@allocating()
async def test_an_address_that_two_have_is_free_when_both_have_gone(here: Here) -> None:
    balancers = Balancers(here.registry, POOL[:1])
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.0"}]}}}
    for name in ("a", "b"):
        await here.post(SERVICES, balanced(name))
        await here.send("PATCH", f"{SERVICES}/{name}/status", status, patch="merge-patch+json")
    await here.post(SERVICES, balanced("c", loadBalancerIP="192.0.2.0"))
    expected = {"a": ["192.0.2.0"], "b": ["192.0.2.0"], "c": []}
    for name in ("a", "b"):
        await balancers.step()
        assert await given(here) == expected
        await here.send("DELETE", f"{SERVICES}/{name}")
        del expected[name]
    await balancers.step()
    assert await given(here) == {"c": ["192.0.2.0"]}


def test_arp_is_written_as_it_is_read() -> None:
    ours, theirs, address, asker = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", bytes([192, 0, 2, 1]), bytes([192, 0, 2, 9])
    frame = build_arp_frame(1, theirs, asker, b"\xff" * 6, address)
    assert len(frame) == 42
    assert read_arp_request(frame) == (theirs, asker, address)
    assert read_arp_request(build_arp_frame(2, ours, address, theirs, asker)) is None
    assert read_arp_request(frame[:41]) is None


def test_the_group_of_a_solicitation_is_made_of_the_last_three_bytes() -> None:
    address = ipaddress.ip_address("2001:db8::1234:5678").packed
    assert ipaddress.ip_address(solicited_node_group(address)) == ipaddress.ip_address("ff02::1:ff34:5678")


@allocating()
async def test_without_a_range_an_event_says_so_and_the_status_of_others_stays(here: Here) -> None:
    balancers = Balancers(here.registry, ())
    await here.post(SERVICES, balanced("a"))
    await here.post(SERVICES, balanced("b"))
    ingress = {"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.9"}]}}}
    await here.send("PATCH", f"{SERVICES}/b/status", ingress, patch="merge-patch+json")
    await balancers.step()
    (event,) = await items(here, EVENTS)
    assert event["involvedObject"]["name"] == "a"
    assert event["message"] == "no address: this server was started without --load-balancer-range"
    assert await given(here) == {"a": [], "b": ["198.51.100.9"]}
