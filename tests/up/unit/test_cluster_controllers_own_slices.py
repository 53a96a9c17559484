"""EndpointSlices of the cluster's own Services: those of servers that are gone go, and Endpoints follow the rest."""

from typing import Any

import pytest
from tests.up.unit.cluster_here import Here
from tests.up.unit.controllers_here import ENDPOINTS, SLICES, allocating, items

from vipwire_up.controllers.endpoints.slices import MANAGED_BY, SERVICE
from vipwire_up.controllers.own_services import MANAGER, SERVER
from vipwire_up.controllers.servers import OwnSlices, lease_name

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def slice_of(name: str, address: str, server: str, service: str = "kubernetes") -> dict[str, Any]:
    meta = {"name": name, "labels": {SERVICE: service, MANAGED_BY: MANAGER, SERVER: server}}
    ports = [{"name": "https", "port": 6443, "protocol": "TCP"}]
    return {"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": [address]}], "ports": ports}


async def prepared(here: Here) -> None:
    """Make servers a and b, which are there; c is not."""
    await here.post("/api/v1/namespaces", {"metadata": {"name": "kube-system"}})
    for server in "ab":
        spec = {"holderIdentity": server, "leaseDurationSeconds": 60}
        await here.post(LEASES, {"metadata": {"name": lease_name(server)}, "spec": spec})


async def reached(here: Here) -> list[str]:
    return [
        each["ip"]
        for found in await items(here, ENDPOINTS)
        for subset in found.get("subsets", [])
        for each in subset["addresses"]
    ]


@allocating()
async def test_they_are_followed_and_others_are_not_read(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnSlices(here.registry)
    await prepared(here)
    await here.post(SLICES, slice_of("kubernetes-a", "192.0.2.1", "a"))
    await here.post(SLICES, slice_of("kubernetes-c", "192.0.2.3", "c"))
    await here.post(SLICES, slice_of("web-1", "192.0.2.9", "c", "web"))
    await own.step(0.0)
    assert await reached(here) == ["192.0.2.1"]
    assert [each["metadata"]["name"] for each in await items(here, SLICES)] == ["kubernetes-a", "web-1"]
    await here.post(SLICES, slice_of("kubernetes-b", "192.0.2.2", "b"))
    with monkeypatch.context() as patching:
        patching.setattr(type(here.store), "scan", lambda *_, **__: pytest.fail("it reads everything"))
        await own.step(1.0)
    assert await reached(here) == ["192.0.2.1", "192.0.2.2"]
    await here.send("DELETE", f"{SLICES}/kubernetes-b")
    await own.step(2.0)
    assert await reached(here) == ["192.0.2.1"]
