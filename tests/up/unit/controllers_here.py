"""A cluster with its controllers: `cluster_here` with allocation and the other controllers."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fakes.coroutine_tests import CoroutineTest, runs_in
from tests.up.unit.cluster_here import START, Here, cluster

from vipwire_up.api.admission import Admission
from vipwire_up.controllers.allocation.addresses import Addresses
from vipwire_up.controllers.allocation.hook import ServiceAllocation
from vipwire_up.controllers.allocation.node_ports import NodePorts
from vipwire_up.controllers.allocation.port_notes import PortNotes
from vipwire_up.controllers.allocation.ranges import Range
from vipwire_up.controllers.hooks import NODE_PORTS
from vipwire_up.store.store import Store

CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
IPS = "/apis/networking.k8s.io/v1/ipaddresses"
PODS = "/api/v1/namespaces/default/pods"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"


def allocation(ports: Range = NODE_PORTS) -> Callable[[Store], Sequence[Admission]]:
    """Make the allocators, with the same random numbers in every run."""
    draw = random.Random(7).randrange  # noqa: S311  # a test's

    def make(store: Store) -> Sequence[Admission]:
        ports_of = NodePorts(store, ports, draw)
        return (ServiceAllocation(Addresses(store, draw), ports_of, PortNotes(store), clock).admit,)

    return make


def clock() -> datetime:
    return START.astimezone(UTC)


@contextlib.asynccontextmanager
async def allocating_cluster(
    folder: Path, *cidrs: str, ports: Range = NODE_PORTS, start: bool = True
) -> AsyncIterator[Here]:
    """Run a cluster that allocates from a ServiceCIDR."""
    async with cluster(folder, make_hooks=allocation(ports)) as here:
        if start:
            body = {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs or ("10.96.0.0/24",)}}
            await here.post(CIDRS, body)
        yield here


def allocating(*cidrs: str, **settings: Any) -> Callable[[CoroutineTest], CoroutineTest]:
    return runs_in(lambda folder: allocating_cluster(folder, *cidrs, **settings))


async def items(here: Here, path: str) -> list[dict[str, Any]]:
    code, found = await here.send("GET", path)
    assert code == 200
    listed: list[dict[str, Any]] = found["items"]
    return listed


async def listed_names(here: Here, path: str) -> list[str]:
    return [item["metadata"]["name"] for item in await items(here, path)]
