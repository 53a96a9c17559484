"""Services `kubernetes` and `kube-dns`: their addresses, where they lead, and that they stay so."""

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, service
from tests.up.unit.controllers_here import ENDPOINTS, SLICES, allocating, items

from vipwire_up.controllers.own_services import DNS_SERVICE, OwnServices, build_api_service, build_dns_service
from vipwire_up.dns.settings import Settings, drop_own_servers
from vipwire_up.dns.upstream.exchange import UpstreamServer
from vipwire_up.supervision.own_addresses import ReachableAddress, find_reachable_address

API = build_api_service(("192.0.2.1",), 6443, "node-1")
DNS = build_dns_service(("192.0.2.1", "2001:db8::1"), 53, "node-1")
SYSTEM = SERVICES.replace("default", "kube-system")


async def addresses(here: Here, path: str = SERVICES) -> dict[str, str]:
    return {each["metadata"]["name"]: each["spec"]["clusterIP"] for each in await items(here, path)}


async def prepared(here: Here) -> OwnServices:
    await here.post("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
    return OwnServices(here.registry)


@allocating()
async def test_they_have_the_first_and_the_tenth_address_and_lead_here(here: Here) -> None:
    own = await prepared(here)
    await own.add_service(API)
    await own.add_service(DNS)
    assert await addresses(here) == {"kubernetes": "10.96.0.1"}
    assert await addresses(here, SYSTEM) == {"kube-dns": "10.96.0.10"}
    (found,) = await items(here, ENDPOINTS)
    assert found["subsets"] == [
        {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]}
    ]
    (slice_of_dns,) = await items(here, SLICES.replace("default", "kube-system"))
    assert slice_of_dns["metadata"]["labels"]["kubernetes.io/service-name"] == "kube-dns"
    assert [each["addresses"] for each in slice_of_dns["endpoints"]] == [["192.0.2.1"]]
    assert {(port["port"], port["protocol"]) for port in slice_of_dns["ports"]} == {(53, "UDP"), (53, "TCP")}


@allocating()
async def test_they_come_back_and_are_not_written_without_need(here: Here) -> None:
    own = await prepared(here)
    await own.add_service(API)
    await own.step()
    revision = here.store.revision
    await own.step()
    again = OwnServices(here.registry)
    await again.add_service(API)
    assert here.store.revision == revision
    await here.send("DELETE", f"{SERVICES}/kubernetes")
    change = {"endpoints": [{"addresses": ["192.0.2.66"]}]}
    await here.send("PATCH", f"{SLICES}/kubernetes", change, patch="merge-patch+json")
    await own.step()
    assert await addresses(here) == {"kubernetes": "10.96.0.1"}
    (found,) = await items(here, SLICES)
    assert [each["addresses"] for each in found["endpoints"]] == [["192.0.2.1"]]


@allocating("10.96.0.0/29")
async def test_an_address_that_is_taken_or_a_small_range_costs_only_the_address(here: Here) -> None:
    own = await prepared(here)
    await here.post(SERVICES, service("early", clusterIP="10.96.0.1", ipFamilies=["IPv4"]))
    await own.add_service(API)
    await own.add_service(DNS)
    found = await addresses(here)
    assert (found["early"], found["kubernetes"].startswith("10.96.0.")) == ("10.96.0.1", True)
    assert (await addresses(here, SYSTEM))["kube-dns"].startswith("10.96.0.")


@allocating()
async def test_a_service_of_others_is_left_alone_and_ours_goes_when_it_is_not_wanted(here: Here) -> None:
    own = await prepared(here)
    await here.post(SYSTEM, service("kube-dns", ipFamilies=["IPv4"], selector={"k8s-app": "mine"}))
    await own.add_service(DNS)
    await own.delete_service(DNS_SERVICE)
    (found,) = await items(here, SYSTEM)
    assert found["spec"]["selector"] == {"k8s-app": "mine"}
    await here.send("DELETE", f"{SYSTEM}/kube-dns")
    await own.add_service(DNS)
    assert await addresses(here, SYSTEM) == {"kube-dns": "10.96.0.10"}
    await own.delete_service(DNS_SERVICE)
    assert await items(here, SYSTEM) == []


@pytest.mark.parametrize(
    ("bound", "version", "expected"),
    [
        (("127.0.0.1",), 4, ReachableAddress("192.0.2.1", inner=True)),
        (("127.0.0.1",), 6, ReachableAddress("2001:db8::1", inner=True)),
        (("0.0.0.0",), 4, ReachableAddress("192.0.2.1", inner=False)),
        (("10.0.0.5",), 4, ReachableAddress("10.0.0.5", inner=False)),
        (("127.0.0.1", "10.0.0.5"), 4, ReachableAddress("10.0.0.5", inner=False)),
        (("169.254.20.10",), 4, ReachableAddress("192.0.2.1", inner=True)),
    ],
)
def test_where_others_reach_what_listens(bound: tuple[str, ...], version: int, expected: ReachableAddress) -> None:
    assert find_reachable_address(bound, ("192.0.2.1", "2001:db8::1"), version) == expected


def test_a_machine_without_an_address_is_reached_nowhere() -> None:
    assert find_reachable_address(("127.0.0.1",), (), 4) is None
    assert find_reachable_address(("10.0.0.5",), (), 4) == ReachableAddress("10.0.0.5", inner=False)


def test_dns_does_not_ask_itself_where_resolv_conf_names_its_service() -> None:
    other, elsewhere = UpstreamServer("192.0.2.53", 53), UpstreamServer("192.0.2.1", 5353)
    ours = (UpstreamServer("10.96.0.10", 53), UpstreamServer("192.0.2.1", 53))
    settings = Settings(inner=("192.0.2.1",), service="10.96.0.10")
    assert drop_own_servers(settings, (other, *ours, elsewhere)) == (other, elsewhere)
