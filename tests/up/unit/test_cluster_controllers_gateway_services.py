"""Gateways' addresses of the operator's ranges: a LoadBalancer Service for each, which goes with it."""

import ipaddress
from pathlib import Path
from typing import Any

from tests.up.unit.cluster_here import SERVICES, Here
from tests.up.unit.controllers_here import allocating, items

from vipwire.kube.gateway_addresses import GATEWAY, POOL, service_name
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS
from vipwire_up.api.objects.object import decode_record, key_of
from vipwire_up.controllers.balancers import Balancers
from vipwire_up.controllers.gateway_services import GatewayServices, create_pool_class

RANGES = (ipaddress.ip_network("192.0.2.0/30"),)
PROXY_NAME = "service.kubernetes.io/service-proxy-name"
GROUP = "/apis/gateway.networking.k8s.io/v1"
GATEWAYS = f"{GROUP}/namespaces/default/gateways"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
EVENTS = "/api/v1/namespaces/default/events"


def gateway(name: str, *, of: str = "ours", addresses: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    listeners = [{"name": f"l{port}", "port": port, "protocol": protocol} for port, protocol in ((80, "HTTP"),)]
    spec = {"gatewayClassName": of, "listeners": listeners, "addresses": [{"value": each} for each in addresses]}
    return {"metadata": {"name": name, **more}, "spec": spec}


async def classes(here: Here) -> None:
    for name, controller in (("ours", "vipwire.io/gateway"), ("theirs", "example.com/other")):
        body = {"metadata": {"name": name}, "spec": {"controllerName": controller}}
        await here.post(f"{GROUP}/gatewayclasses", body)


async def read(here: Here, name: str) -> dict[str, Any]:
    return next(each for each in await items(here, SERVICES) if each["metadata"]["name"] == name)


async def given(here: Here) -> dict[str, list[str]]:
    found = await items(here, SERVICES)
    return {
        each["metadata"]["annotations"][GATEWAY]: [
            entry["ip"] for entry in each["status"]["loadBalancer"].get("ingress", [])
        ]
        for each in found
        if GATEWAY in each["metadata"].get("annotations", {})
    }


@allocating()
async def test_gateways_that_name_no_address_get_one_of_the_ranges(here: Here) -> None:
    services, balancers = GatewayServices(here.registry, RANGES), Balancers(here.registry, RANGES)
    await classes(here)
    await here.post(GATEWAYS, gateway("plain"))
    await here.post(GATEWAYS, gateway("asking", addresses=("192.0.2.2",)))
    await here.post(GATEWAYS, gateway("elsewhere", addresses=("198.51.100.1",)))
    await here.post(GATEWAYS, gateway("foreign", of="theirs"))
    await services.step()
    await balancers.step()
    assert await given(here) == {"plain": ["192.0.2.0"], "asking": ["192.0.2.2"]}
    service = await read(here, "plain-ours")
    assert [each["ipMode"] for each in service["status"]["loadBalancer"]["ingress"]] == ["Proxy"]
    assert service["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"] == "plain"
    assert service["metadata"]["ownerReferences"][0]["kind"] == "Gateway"
    assert "nodePort" not in service["spec"]["ports"][0]
    await services.step()
    (led,) = [each for each in await items(here, SLICES) if each["metadata"]["name"] == "plain-ours-ipv4"]
    assert [each["addresses"] for each in led["endpoints"]] == [["192.0.2.0"]]
    assert led["ports"] == [{"name": "tcp-80", "port": 80, "protocol": "TCP"}]
    before = here.store.revision
    await services.step()
    await balancers.step()
    await services.step()
    assert here.store.revision == before
    await here.send("PATCH", f"{GATEWAYS}/asking", {"spec": {"addresses": None}}, patch="merge-patch+json")
    await services.step()
    assert "loadBalancerIP" not in (await read(here, "asking-ours"))["spec"]
    change = {"spec": {"addresses": [{"type": "IPAddress", "value": "198.51.100.1"}]}}
    await here.send("PATCH", f"{GATEWAYS}/plain", change, patch="merge-patch+json")
    await services.step()
    assert await given(here) == {"asking": ["192.0.2.2"]}


@allocating()
async def test_the_service_of_an_older_vipwire_is_proxied_once_its_address_is_not(here: Here) -> None:
    """Proxies shall lead its ClusterIP, and never take the address from HAProxy, not for a moment."""
    services, balancers = GatewayServices(here.registry, RANGES), Balancers(here.registry, RANGES)
    await classes(here)
    await here.post(GATEWAYS, gateway("edge"))
    await services.step()
    await balancers.step()
    label = {"metadata": {"labels": {PROXY_NAME: "vipwire-gateway"}}}
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.0", "ipMode": "VIP"}]}}}
    await here.send("PATCH", f"{SERVICES}/edge-ours", label, patch="merge-patch+json")
    await here.send("PATCH", f"{SERVICES}/edge-ours/status", status, patch="merge-patch+json")
    await services.step()
    assert PROXY_NAME in (await read(here, "edge-ours"))["metadata"]["labels"]
    await balancers.step()
    await services.step()
    service = await read(here, "edge-ours")
    assert PROXY_NAME not in service["metadata"]["labels"]
    assert service["status"]["loadBalancer"]["ingress"] == [{"ip": "192.0.2.0", "ipMode": "Proxy"}]


@allocating()
async def test_ports_labels_and_annotations_follow_the_gateway(here: Here) -> None:
    """GatewayInfrastructure."""
    services = GatewayServices(here.registry, RANGES)
    await classes(here)
    body = gateway("edge", annotations={"announce.vipwire.io/from": "role=edge", "other": "x"})
    body["spec"]["infrastructure"] = {"labels": {"team": "web"}, "annotations": {"a.org/b": "c"}}
    await here.post(GATEWAYS, body)
    await services.step()
    listeners = [
        {"name": "a", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "x"}]}},
        {"name": "b", "port": 443, "protocol": "UDP"},
        {"name": "c", "port": 80, "protocol": "HTTP"},
    ]
    await here.send("PATCH", f"{GATEWAYS}/edge", {"spec": {"listeners": listeners}}, patch="merge-patch+json")
    await services.step()
    service = await read(here, "edge-ours")
    ports = [(each["name"], each["port"], each["protocol"]) for each in service["spec"]["ports"]]
    assert ports == [("tcp-443", 443, "TCP"), ("udp-443", 443, "UDP"), ("tcp-80", 80, "TCP")]
    wanted = {"announce.vipwire.io/from": "role=edge", "a.org/b": "c", GATEWAY: "edge"}
    assert service["metadata"]["annotations"] == wanted
    assert service["metadata"]["labels"]["team"] == "web"


@allocating()
async def test_a_service_of_somebody_else_stays_and_the_gateway_is_told(here: Here) -> None:
    services = GatewayServices(here.registry, RANGES)
    await classes(here)
    theirs = {"metadata": {"name": "edge-ours"}, "spec": {"ports": [{"port": 80}]}}
    await here.post(SERVICES, theirs)
    await here.post(GATEWAYS, gateway("edge"))
    await services.step()
    assert await given(here) == {}
    (event,) = await items(here, EVENTS)
    assert event["message"] == "Service edge-ours belongs to another owner: the Gateway has no address"
    await here.send("DELETE", f"{SERVICES}/edge-ours")
    await here.send("PATCH", f"{GATEWAYS}/edge", {"metadata": {"labels": {"a": "b"}}}, patch="merge-patch+json")
    await services.step()
    assert list(await given(here)) == ["edge"]


@allocating()
async def test_a_class_that_comes_later_counts_for_its_gateways(here: Here) -> None:
    services = GatewayServices(here.registry, RANGES)
    await here.post(GATEWAYS, gateway("edge"))
    await services.step()
    assert await given(here) == {}
    await classes(here)
    await services.step()
    assert list(await given(here)) == ["edge"]


def test_names_that_no_service_can_have(tmp_path: Path) -> None:
    del tmp_path
    assert service_name("edge", "vipwire") == "edge-vipwire"
    for name in ("a.b", "9", "x" * 60):
        assert service_name(name, "vipwire").startswith("gateway-")
    assert service_name("a.b", "vipwire") != service_name("a.c", "vipwire")


@allocating()
async def test_the_ranges_are_declared_and_taken_back(here: Here) -> None:
    await here.post("/api/v1/namespaces", {"metadata": {"name": POOL.namespace}})
    key = key_of(CONFIG_MAPS, *POOL)
    more = (*RANGES, ipaddress.ip_network("fd00::/120"))
    for networks, said in ((RANGES, "192.0.2.0/30"), (more, "192.0.2.0/30,fd00::/120"), ((), "")):
        await create_pool_class(here.registry, networks)
        await create_pool_class(here.registry, networks)
        found = here.store.read(key)
        assert (found is not None) == bool(networks)
        if found is not None:
            assert decode_record(found)["data"] == {"ranges": said}
