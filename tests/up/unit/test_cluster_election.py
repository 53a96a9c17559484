"""The election of the server that runs the controllers: how soon another begins, and when a holder is careful."""

import asyncio
from pathlib import Path

import pytest
from tests.up.unit.cluster_here import cluster

from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.object import decode_damaged_record, key_of
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import FencedRegistry, Registry
from vipwire_up.controllers.election import CAREFUL, NAME, QUICK, Election, Pace, Pacing

pytestmark = pytest.mark.slow

SYSTEM = "kube-system"


def lease(registry: Registry) -> Object:
    record = registry.store.read(key_of(LEASES, SYSTEM, NAME))
    found: Object = decode_damaged_record(record)["spec"] if record else {}
    return found


async def until_it_lasts(registry: Registry, holder: str, seconds: int) -> None:
    while (found := lease(registry)).get("holderIdentity") != holder or found["leaseDurationSeconds"] != seconds:
        await registry.store.wait_for_change(LEASES.id)


def test_a_holder_is_quick_while_it_renews_in_time_and_careful_after_it_was_held_up() -> None:
    pacing, found = Pacing(), []
    for late in (0.0, 0.1, 0.0, 0.2, 0.1, 0.0, 0.8, 0.0):
        pacing.record_lateness(late)
        found.append(pacing.pace)
    assert found == [CAREFUL] * 4 + [QUICK] * 2 + [CAREFUL] * 2


async def test_another_takes_over_when_the_time_of_a_silent_holder_is_over(tmp_path: Path) -> None:
    async def leading(_: FencedRegistry) -> None:
        await asyncio.Event().wait()

    async with cluster(tmp_path) as here:
        loop, careful, quick = asyncio.get_running_loop(), Pace(3, 2.0, 0.05), Pace(1, 0.9, 0.05)
        assert (await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}}))[0] == 201
        body: Object = {"metadata": {"name": NAME}}
        body["spec"] = {"holderIdentity": "lost", "leaseDurationSeconds": 1}
        await here.registry.create(LEASES, SYSTEM, body, Options())
        began = loop.time()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(Election(here.registry, "next", careful=careful, quick=quick).run(leading))
            await until_it_lasts(here.registry, "next", careful.seconds)
            assert loop.time() - began >= 1  # not before
            await until_it_lasts(here.registry, "next", quick.seconds)
            task.cancel()
        assert lease(here.registry)["holderIdentity"] == ""  # given back
