"""ServiceCIDRs that stay while they are used, and IPAddresses that say what Services have."""

from typing import Any

from tests.up.unit.cluster_here import SERVICES, Here, service
from tests.up.unit.controllers_here import CIDRS, IPS, allocating, items, listed_names

from vipwire_up.controllers.allocation.cidrs import FINALIZER, ServiceCidrs
from vipwire_up.controllers.allocation.repair import AddressRepair

EVENTS = "/api/v1/namespaces/default/events"


async def ready(here: Here, name: str) -> tuple[str, str]:
    _, found = await here.send("GET", f"{CIDRS}/{name}")
    (condition,) = found["status"]["conditions"]
    return condition["status"], condition["reason"]


async def reasons(here: Here) -> list[str]:
    return [f"{event['reason']} {event['involvedObject']['name']}" for event in await items(here, EVENTS)]


def one(name: str, address: str = "", **spec: Any) -> dict[str, Any]:
    return service(name, ipFamilies=["IPv4"], **({"clusterIP": address} if address else {}), **spec)


@allocating()
async def test_a_cidr_is_ready_and_goes_when_none_of_its_addresses_is_used(here: Here) -> None:
    cidrs = ServiceCidrs(here.registry)
    await here.post(CIDRS, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})
    await here.post(SERVICES, one("used", "10.97.0.9"))
    await cidrs.step()
    assert await ready(here, "more") == ("True", "")
    code, going = await here.send("DELETE", f"{CIDRS}/more")
    assert (code, going["metadata"]["finalizers"]) == (200, [FINALIZER])
    await cidrs.step()
    assert await ready(here, "more") == ("False", "Terminating")
    code, refusal = await here.send("POST", SERVICES, one("late", "10.97.0.10"))
    assert (code, "is not in the valid range" in refusal["message"]) == (422, True)
    await here.send("DELETE", f"{SERVICES}/used")
    await cidrs.step()
    assert await listed_names(here, CIDRS) == ["kubernetes"]


@allocating()
async def test_a_cidr_goes_at_once_if_another_one_has_its_addresses_too(here: Here) -> None:
    cidrs = ServiceCidrs(here.registry)
    await here.post(CIDRS, {"metadata": {"name": "wider"}, "spec": {"cidrs": ["10.96.0.0/16"]}})
    await here.post(SERVICES, one("used", "10.96.0.9"))
    await cidrs.step()
    await here.send("DELETE", f"{CIDRS}/kubernetes")
    await cidrs.step()
    assert await listed_names(here, CIDRS) == ["wider"]


@allocating()
async def test_without_a_cidr_services_are_refused_and_those_that_are_there_can_be_changed(here: Here) -> None:
    cidrs = ServiceCidrs(here.registry)
    await here.post(SERVICES, one("old"))
    await cidrs.step()
    await here.send("DELETE", f"{CIDRS}/kubernetes")
    await cidrs.step()
    assert await ready(here, "kubernetes") == ("False", "Terminating")
    code, refusal = await here.send("POST", SERVICES, one("new"))
    assert (code, refusal["message"]) == (
        500,
        "Internal error occurred: failed to allocate a serviceIP: there is no ServiceCIDR that is ready",
    )
    code, _ = await here.send(
        "PATCH", f"{SERVICES}/old", {"spec": {"selector": {"a": "b"}}}, patch="merge-patch+json"
    )
    assert code == 200
    assert await listed_names(here, SERVICES) == ["old"]


@allocating()
async def test_an_address_that_is_deleted_is_noted_again(here: Here) -> None:
    repair = AddressRepair(here.registry)
    await here.post(SERVICES, one("web", "10.96.0.9"))
    await repair.step()
    assert await reasons(here) == []
    await here.send("DELETE", f"{IPS}/10.96.0.9")
    await repair.step()
    _, note = await here.send("GET", f"{IPS}/10.96.0.9")
    assert note["spec"]["parentRef"]["name"] == "web"
    assert await reasons(here) == ["ClusterIPNotAllocated web"]
    code, _ = await here.send("POST", SERVICES, one("other", "10.96.0.9"))
    assert code == 422


def note(address: str, owner: str, managed_by: str = "ipallocator.k8s.io") -> dict[str, Any]:
    labels = {"ipaddress.kubernetes.io/managed-by": managed_by}
    parent = {"group": "", "resource": "services", "namespace": "default", "name": owner}
    return {"metadata": {"name": address, "labels": labels}, "spec": {"parentRef": parent}}


@allocating()
async def test_an_address_of_nobody_is_freed_unless_others_manage_it(here: Here) -> None:
    await here.post(IPS, note("10.96.0.20", "nobody"))
    await here.post(IPS, note("10.96.0.21", "nobody", "example.com"))
    repair = AddressRepair(here.registry)
    await repair.step()
    assert await listed_names(here, IPS) == ["10.96.0.21"]
    assert await reasons(here) == ["IPAddressNotAllocated 10.96.0.20"]
    await here.post(SERVICES, one("web", "10.96.0.20"))
    await here.send("DELETE", f"{IPS}/10.96.0.20")
    await here.post(IPS, note("10.96.0.20", "another"))  # somebody's, but the Service has it
    await repair.step()
    _, found = await here.send("GET", f"{IPS}/10.96.0.20")
    assert found["spec"]["parentRef"]["name"] == "web"
    await repair.step()
    assert len(await reasons(here)) == 3


@allocating()
async def test_two_services_of_one_address_and_one_outside_are_told(here: Here) -> None:
    await here.post(SERVICES, one("first", "10.96.0.9"))
    await here.send("DELETE", f"{IPS}/10.96.0.9")
    await here.post(SERVICES, one("second", "10.96.0.9"))
    await here.post(CIDRS, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})
    await here.post(SERVICES, one("outside", "10.97.0.9"))
    for path in (f"{CIDRS}/more", f"{IPS}/10.97.0.9"):
        await here.send("DELETE", path)
    await AddressRepair(here.registry).step()
    assert sorted(await reasons(here)) == ["ClusterIPAlreadyAllocated first", "ClusterIPOutOfRange outside"]
