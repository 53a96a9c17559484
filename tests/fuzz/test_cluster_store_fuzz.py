"""Whatever objects a store holds, every controller goes on, and other objects are served."""

import asyncio
import ipaddress
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.up.unit.cluster_here import cluster
from tests.up.unit.controllers_here import PODS, SLICES
from tests.up.unit.up_here import whole, write

from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.kinds.service_cidr import SERVICE_CIDRS
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Shape, Type
from vipwire_up.controllers.allocation.cidrs import ServiceCidrs
from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.allocation.repair import AddressRepair
from vipwire_up.controllers.balancers import Balancers
from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.controllers.garbage_collector import GarbageCollector
from vipwire_up.controllers.hooks import Ranges, build_hooks, create_first_service_cidr
from vipwire_up.controllers.own_services import OwnServices, build_api_service
from vipwire_up.readiness_probes.probes import build_local_probes

NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 80, 80800, 2**31, 2**63 - 1, 10**400])
TEXTS = st.sampled_from(
    (
        *("", "x", "None", "0", "-1", "1e999", "NaN", "3m", "10.0.0.1", "fd00::1", "10.0.0.0/33", "10.96.0.0/24"),
        *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00", "2020-01-01T00:00:00Z"),
        *("Auto", "IPv4", "IPv6", "LoadBalancer", "ExternalName", "True", "Running", "\x1b[2J", "\x00", "good", "v1"),
        "::/0",
    )
)
NONSENSE: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | NUMBERS | TEXTS | st.floats() | st.just([]) | st.just({}) | st.just([{}])
)
LABELS = {"app": "good", "kubernetes.io/service-name": "good"} | {
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    "topology.kubernetes.io/zone": "a",
}


def nearly(kind: Type, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that are mostly of a type, with extreme parts, and now and then something else in their place."""
    made: st.SearchStrategy[Any] = NONSENSE
    if kind.shape is Shape.OBJECT and depth < 4:
        made = st.fixed_dictionaries(
            {}, optional={name: nearly(field.type, depth + 1) for name, field in kind.fields.items()}
        )
    elif kind.shape is Shape.LIST and kind.element is not None:
        made = st.lists(nearly(kind.element, depth + 1), max_size=2)
    elif kind.shape is Shape.MAP:
        made = st.dictionaries(st.sampled_from([*LABELS, "x"]), st.sampled_from(list(LABELS.values())) | NONSENSE)
    elif kind.name in ("int32", "int64"):
        made = NUMBERS
    elif kind.name == "string":
        made = TEXTS
    return st.one_of(made, made, made, made, NONSENSE) if depth else made


@st.composite
def garbage(draw: st.DrawFn) -> dict[str, Any]:
    """An object of any kind, with the names that a store's keys need."""
    resource: Resource = draw(st.sampled_from(RESOURCES))
    value: dict[str, Any] = draw(nearly(resource.type))
    meta = draw(nearly(resource.type.fields["metadata"].type, 1))
    meta = meta if isinstance(meta, dict) else {}
    name = draw(st.sampled_from(["a", "b", "c", "kubernetes", "10.96.0.9"]))
    if resource is SERVICE_CIDRS:
        name = "a"  # without the first one nothing can be given, rightly
    kept = {key: part for key, part in meta.items() if key not in ("uid", "namespace", "name") or draw(st.booleans())}
    return whole(value | {"kind": resource.kind, "metadata": kept | {"name": name, "namespace": "default"}})


async def hold(folder: Path, values: list[dict[str, Any]]) -> None:
    async with cluster(folder) as here:
        await write(here.store, *values)
    async with cluster(folder, make_hooks=lambda store: build_hooks(store, here.clock, Ranges())) as here:
        await create_first_service_cidr(here.registry, Ranges())
        own = OwnServices(here.registry)
        network: Network = ipaddress.ip_network("192.0.2.0/28")
        parts = (
            GarbageCollector(here.registry),
            EndpointController(here.registry),
            AddressRepair(here.registry),
            ServiceCidrs(here.registry),
            Balancers(here.registry, [network]),
            own,
        )
        await own.add_service(build_api_service(("10.1.0.1",), 6443, "here"))
        async with asyncio.TaskGroup() as tasks:
            probing = tasks.create_task(build_local_probes(here.registry).run())
            for _ in range(2):
                for part in parts:
                    await part.step()
            meta = {"name": "good-1", "labels": {"app": "fine"}, "annotations": {"vipwire.io/address": "10.1.0.5"}}
            await here.post(PODS, {"metadata": meta, "spec": {"containers": [{"name": "web", "image": "none"}]}})
            spec = {
                "ports": [{"port": 80}],
                "selector": {"app": "fine"},
                "type": "LoadBalancer",
                "ipFamilies": ["IPv4"],
            }
            service = {"metadata": {"name": "fine"}, "spec": spec}
            await here.post("/api/v1/namespaces/default/services", service)
            for _ in range(2):
                for part in parts:
                    await part.step()
            assert not probing.done()
            probing.cancel()
        slices = [r for r in here.store.scan("endpointslices.discovery.k8s.io") if r.key.name.startswith("fine-")]
        assert len(slices) == 1
        code, found = await here.send("GET", f"{SLICES}/{slices[0].key.name}")
        assert (code, found["endpoints"][0]["addresses"]) == (200, ["10.1.0.5"])
        code, found = await here.send("GET", "/api/v1/namespaces/default/services/fine")
        assert found["status"]["loadBalancer"]["ingress"][0]["ip"].startswith("192.0.2.")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(garbage(), min_size=4, max_size=12))
def test_any_objects_in_the_store_leave_all_others_served(values: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(hold(Path(folder), values))
