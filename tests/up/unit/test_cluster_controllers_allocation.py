"""ClusterIPs and node ports: what is given, kept, refused and given back."""

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, service
from tests.up.unit.controllers_here import CIDRS, IPS, allocating, allocating_cluster, items, listed_names

from vipwire_up.controllers.allocation.ranges import address_range, port_range

DUAL = ("10.96.0.0/24", "fd00::/120")


def addresses(made: dict[str, Any]) -> list[str]:
    found: list[str] = made["spec"]["clusterIPs"]
    return found


@pytest.mark.parametrize(
    ("network", "static"), [("10.0.0.0/28", 0), ("10.0.0.0/24", 16), ("10.0.0.0/20", 256), ("fd00::/112", 256)]
)
def test_the_static_part_of_a_range_of_addresses_is_as_kep_3070_says(network: str, static: int) -> None:
    assert address_range(ipaddress.ip_network(network)).static == static


@pytest.mark.parametrize(("ports", "static"), [((1, 16), 0), ((1, 100), 16), ((30000, 32767), 86), ((1, 65000), 128)])
def test_the_static_part_of_a_range_of_ports_is_as_kep_3668_says(ports: tuple[int, int], static: int) -> None:
    assert port_range(*ports).static == static


def test_the_dynamic_part_is_given_first_and_all_of_a_range() -> None:
    taken: list[int] = []
    range_ = port_range(100, 139)
    for _ in range(40):
        number = range_.choose_free_number(taken.__contains__, lambda below: below // 2)
        assert number is not None
        taken.append(number)
    assert sorted(taken) == list(range(100, 140))
    assert min(taken[:24]) == 116
    assert range_.choose_free_number(taken.__contains__, lambda _: 0) is None


@allocating()
async def test_a_service_gets_an_address_that_is_noted_and_given_back(here: Here) -> None:
    made = await here.post(SERVICES, service("web"))
    spec = made["spec"]
    assert (spec["clusterIP"], spec["ipFamilies"], spec["ipFamilyPolicy"]) == (
        spec["clusterIPs"][0],
        ["IPv4"],
        "SingleStack",
    )
    (noted,) = await items(here, IPS)
    assert noted["metadata"]["name"] == spec["clusterIP"]
    assert noted["spec"]["parentRef"] == {"resource": "services", "namespace": "default", "name": "web", "group": ""}
    code, _ = await here.send("DELETE", f"{SERVICES}/web")
    assert (code, await items(here, IPS)) == (200, [])


@allocating()
async def test_an_address_by_hand_is_refused_if_taken_or_outside(here: Here) -> None:
    await here.post(SERVICES, service("one", clusterIP="10.96.0.9"))
    code, status = await here.send("POST", SERVICES, service("two", clusterIP="10.96.0.9"))
    assert code == 422
    said = 'Service "two" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.9"]: failed to allocate IP '
    assert status["message"] == f"{said}10.96.0.9: provided IP is already allocated"
    code, status = await here.send("POST", SERVICES, service("two", clusterIP="10.97.0.9"))
    assert code == 422
    assert "The range of valid IPs is 10.96.0.0/24" in status["message"]
    code, _ = await here.send("POST", SERVICES, service("two", clusterIP="nonsense"))
    assert code == 422
    assert await listed_names(here, IPS) == ["10.96.0.9"]


@pytest.mark.parametrize("address", ["10.96.0.77", "1.2.3.4", "None"])
@allocating()
async def test_an_address_stays_whatever_a_patch_asks_for(here: Here, address: str) -> None:
    made = await here.post(SERVICES, service("web"))
    patch = {"spec": {"clusterIP": address}}
    code, status = await here.send("PATCH", f"{SERVICES}/web", patch, patch="merge-patch+json")
    assert (code, len(status["details"]["causes"])) == (422, 1)
    assert "may not change once set" in status["message"]
    assert await listed_names(here, IPS) == addresses(made)


@allocating()
async def test_headless_and_external_names_get_none(here: Here) -> None:
    headless = await here.post(SERVICES, service("headless", clusterIP="None", selector={"a": "b"}))
    assert (headless["spec"]["clusterIPs"], headless["spec"]["ipFamilies"]) == (["None"], ["IPv4"])
    open_ = await here.post(SERVICES, service("open", clusterIP="None"))
    assert (open_["spec"]["ipFamilies"], open_["spec"]["ipFamilyPolicy"]) == (["IPv4", "IPv6"], "RequireDualStack")
    name = await here.post(SERVICES, service("name", type="ExternalName", externalName="example.com", ports=[]))
    assert "clusterIPs" not in name["spec"]
    assert await items(here, IPS) == []


@allocating("10.96.0.0/30")
async def test_a_full_range_is_said_and_a_second_one_is_used(here: Here) -> None:
    for _ in range(2):
        await here.post(SERVICES, service())
    code, status = await here.send("POST", SERVICES, service("late"))
    assert (code, status["message"]) == (
        500,
        "Internal error occurred: failed to allocate a serviceIP: range is full",
    )
    await here.post(CIDRS, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/30"]}})
    made = await here.post(SERVICES, service("late"))
    assert made["spec"]["clusterIP"].startswith("10.97.0.")


@pytest.mark.parametrize(
    ("spec", "families"),
    [
        ({}, ["IPv4"]),
        ({"ipFamilies": ["IPv6"]}, ["IPv6"]),
        ({"ipFamilyPolicy": "PreferDualStack"}, ["IPv4", "IPv6"]),
        ({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}, ["IPv6", "IPv4"]),
        ({"ipFamilyPolicy": "PreferDualStack", "clusterIP": "fd00::7"}, ["IPv6", "IPv4"]),
        ({"clusterIP": "fd00::7"}, ["IPv6"]),
    ],
)
@allocating(*DUAL)
async def test_families_in_a_dual_stack_cluster(here: Here, spec: dict[str, Any], families: list[str]) -> None:
    made = await here.post(SERVICES, service("web", **spec))
    assert made["spec"]["ipFamilies"] == families
    assert [f"IPv{ipaddress.ip_address(each).version}" for each in addresses(made)] == families
    assert sorted(await listed_names(here, IPS)) == sorted(addresses(made))


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"ipFamilyPolicy": "RequireDualStack"}, "this cluster is not configured for dual-stack services"),
        ({"ipFamilies": ["IPv6"]}, 'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster'),
        ({"ipFamilies": ["IPv4", "IPv6"]}, "when multiple IP families are specified"),
    ],
)
@allocating()
async def test_families_that_there_are_no_addresses_of_are_refused(
    here: Here, spec: dict[str, Any], word: str
) -> None:
    code, status = await here.send("POST", SERVICES, service("web", **spec))
    assert code == 422
    assert word in status["message"]


@allocating(*DUAL)
async def test_a_second_family_comes_and_goes_with_the_policy(here: Here) -> None:
    first = addresses(await here.post(SERVICES, service("web")))
    for policy, count in (("PreferDualStack", 2), ("SingleStack", 1)):
        body = {"spec": {"ipFamilyPolicy": policy}}
        code, made = await here.send("PATCH", f"{SERVICES}/web", body, patch="merge-patch+json")
        assert (code, len(addresses(made)), addresses(made)[:1]) == (200, count, first)
        assert len(await items(here, IPS)) == count


@allocating()
async def test_node_ports_are_chosen_shared_by_protocols_and_given_back(here: Here) -> None:
    ports = [{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]
    made = await here.post(SERVICES, service("dns", type="NodePort", ports=ports))
    first, second = (port["nodePort"] for port in made["spec"]["ports"])
    assert first == second
    one = {"type": "NodePort", "ports": [{"port": 80, "nodePort": first}]}
    code, status = await here.send("POST", SERVICES, service("web", **one))
    assert code == 422
    said = f'Service "web" is invalid: spec.ports[0].nodePort: Invalid value: {first}'
    assert status["message"] == f"{said}: provided port is already allocated"
    body = {"spec": {"type": "ClusterIP"}}
    code, changed = await here.send("PATCH", f"{SERVICES}/dns", body, patch="merge-patch+json")
    assert (code, [port.get("nodePort") for port in changed["spec"]["ports"]]) == (200, [None, None])
    await here.post(SERVICES, service("web", **one))


@allocating(ports=port_range(30000, 30001))
async def test_node_ports_outside_and_none_left(here: Here) -> None:
    asked = service("far", type="NodePort", ports=[{"port": 80, "nodePort": 80}])
    code, status = await here.send("POST", SERVICES, asked)
    assert (code, "The range of valid ports is 30000-30001" in status["message"]) == (422, True)
    balanced = service("lb", type="LoadBalancer", externalTrafficPolicy="Local")
    made = await here.post(SERVICES, balanced)
    given = {made["spec"]["ports"][0]["nodePort"], made["spec"]["healthCheckNodePort"]}
    assert given == {30000, 30001}
    code, status = await here.send("POST", SERVICES, service("late", type="NodePort"))
    assert (code, status["message"]) == (500, "Internal error occurred: failed to allocate a nodePort: range is full")
    assert len(await items(here, IPS)) == 1
    body = {"spec": {"externalTrafficPolicy": "Cluster"}}
    code, changed = await here.send("PATCH", f"{SERVICES}/lb", body, patch="merge-patch+json")
    assert (code, "healthCheckNodePort" in changed["spec"]) == (200, False)
    await here.post(SERVICES, service("late", type="NodePort"))
    without = service("plain", type="LoadBalancer", allocateLoadBalancerNodePorts=False)
    assert "nodePort" not in (await here.post(SERVICES, without))["spec"]["ports"][0]


@allocating()
async def test_addresses_of_a_load_balancer_go_with_the_type(here: Here) -> None:
    await here.post(SERVICES, service("web", type="LoadBalancer"))
    ingress = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}}
    code, found = await here.send("PATCH", f"{SERVICES}/web/status", ingress, patch="merge-patch+json")
    assert (code, found["status"]["loadBalancer"]["ingress"][0]["ip"]) == (200, "192.0.2.1")
    body = {"spec": {"type": "ClusterIP"}}
    code, found = await here.send("PATCH", f"{SERVICES}/web", body, patch="merge-patch+json")
    assert (code, found["status"]) == (200, {"loadBalancer": {}})


@allocating("10.96.0.0/30", ports=port_range(30000, 30001))
async def test_what_is_not_written_takes_nothing(here: Here) -> None:
    assert (await here.send("POST", f"{SERVICES}?dryRun=All", service("dry", type="NodePort")))[0] == 201
    bad = service("bad", type="NodePort", externalIPs=["nonsense"])
    assert (await here.send("POST", SERVICES, bad))[0] == 422
    assert await items(here, IPS) == []
    for _ in range(2):
        await here.post(SERVICES, service(type="NodePort"))


async def test_a_new_start_knows_what_is_taken(tmp_path: Path) -> None:
    port, address = 30005, "10.96.0.7"
    ports = [{"port": 80, "nodePort": port}]
    async with allocating_cluster(tmp_path) as here:
        await here.post(SERVICES, service("web", type="NodePort", ports=ports, clusterIP=address))
    async with allocating_cluster(tmp_path, start=False) as here:
        assert (await here.send("POST", SERVICES, service("a", type="NodePort", ports=ports)))[0] == 422
        assert (await here.send("POST", SERVICES, service("b", clusterIP=address)))[0] == 422
