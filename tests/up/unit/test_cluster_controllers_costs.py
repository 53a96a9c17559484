"""What a change costs a controller: what its own Service costs, however many others there are. Counted, not timed."""

import asyncio
import gc
import ipaddress
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, service
from tests.up.unit.controllers_here import allocating

from vipwire_up.api.change import Options
from vipwire_up.api.kinds.service import SERVICES as KIND
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.repair import AddressRepair
from vipwire_up.controllers.balancers import Balancers
from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.controllers.endpoints.selection import Selection
from vipwire_up.controllers.garbage_collector import GarbageCollector
from vipwire_up.controllers.own_services import OwnServices
from vipwire_up.store_watch.events import write_warning_event

pytestmark = pytest.mark.slow

Step = Callable[[], Awaitable[object]]
RANGE = (ipaddress.ip_network("198.18.0.0/16"),)
KINDS: dict[str, Callable[[Registry], Step]] = {
    "balancers": lambda registry: Balancers(registry, RANGE).step,
    "endpoints": lambda registry: EndpointController(registry).step,
    "garbage": lambda registry: GarbageCollector(registry).step,
    "own services": lambda registry: OwnServices(registry).step,
    "repair": lambda registry: AddressRepair(registry).step,
}
FEW, MANY = 5, 120


async def calls(step: Step) -> int:
    """Count the functions that are called until a step is done."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what is finalized meanwhile is of other tests
    sys.setprofile(note)
    try:
        await step()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def balanced(number: int) -> dict[str, Any]:
    return service(f"s{number:03}", type="LoadBalancer", ipFamilies=["IPv4"], selector={"app": f"a{number}"})


async def settle(here: Here, step: Step) -> None:
    before = -1
    while before != here.store.revision:
        before = here.store.revision
        await step()


async def add(here: Here, number: int) -> None:
    """Make a Service and an Event about it."""
    made: Object = await here.post(SERVICES, balanced(number))
    await write_warning_event(here.registry, KIND, made, "Said", "something")


async def cost(here: Here, name: str, many: int) -> int:
    """Count what one more Service, with an Event about it, costs where there are others."""
    for number in range(here.store.count(KIND.id), many):
        await add(here, number)
    for kind in KINDS.values():  # all of them: there are slices and addresses, as in life
        await settle(here, kind(here.registry))
    step = KINDS[name](here.registry)
    await settle(here, step)
    await add(here, 998)  # the first after a start may have to find its place
    await settle(here, step)
    await add(here, 999)
    count = await calls(step)
    for number in (998, 999):
        await here.registry.delete(KIND, "default", f"s{number}", options=Options())
    return count


@pytest.mark.parametrize("name", KINDS)
@allocating()
async def test_a_service_costs_the_same_among_few_and_among_many(here: Here, name: str) -> None:
    few = await cost(here, name, FEW)
    many = await cost(here, name, MANY)
    assert few > 0
    assert many < few + MANY / 2


def chosen(count: int) -> Selection:
    """Make Services that have one label of their selectors in common, each with a Pod."""
    made = Selection()
    for number in range(count):
        labels = {"app": "web", "tenant": str(number)}
        made.put_service(("default", f"s{number}"), labels)
        made.put_pod(("default", f"p{number}"), labels | {"hash": "1"})
    return made


def test_a_label_that_all_selectors_share_costs_nothing() -> None:
    async def look(where: Selection) -> None:
        where.put_pod(("default", "p3"), {"app": "web", "tenant": "3", "hash": "2"})
        assert list(where.services_of(("default", "p3"))) == [("default", "s3")]
        assert where.pods_of(("default", "s3")) == [("default", "p3")]
        where.put_service(("default", "s4"), {"app": "web"})
        where.put_service(("default", "s4"), {"app": "web", "tenant": "4"})

    few, many = chosen(5), chosen(500)
    assert asyncio.run(calls(lambda: look(few))) == asyncio.run(calls(lambda: look(many)))
