"""What is told of announced addresses: one Event when it begins, one when another machine has them, too."""

import asyncio
from pathlib import Path

from tests.up.unit.cluster_here import SERVICES, Here, cluster, in_cluster, service

from vipwire.config.flags import build_config, parse_flags
from vipwire.model.names import ObjectName
from vipwire.proxy_daemon.announced import AnnouncedAddress, announced_file, read_announced
from vipwire_up.announcing.announced import Announced
from vipwire_up.nodes.objects import LocalObjects

EVENTS = "/api/v1/namespaces/default/events?watch=true"
HARDWARE = bytes.fromhex("020000000099")


@in_cluster()
async def test_events_about_the_service(here: Here) -> None:
    await here.post(SERVICES, service("web", clusterIP="None"))
    services = {"192.0.2.7": [ObjectName("default", "web")]}
    announced = Announced(LocalObjects(here.registry, "test"), "n1", "near", here.clock, services.__getitem__)
    announced.record_start([bytes((192, 0, 2, 7))])
    for _ in range(3):
        announced.record_other_claim(bytes((192, 0, 2, 7)), HARDWARE)
    async with here.watch(EVENTS) as events, asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(announced.write_events())
        told = [(await events.next())[1] for _ in range(2)]
        writing.cancel()
    assert sorted((each["type"], each["reason"], each["message"]) for each in told) == [
        ("Normal", "AddressAnnounced", "192.0.2.7 is announced by n1 on near"),
        ("Warning", "AddressConflict", "02:00:00:00:00:99 announces 192.0.2.7 on near, too"),
    ]
    assert {each["involvedObject"]["name"] for each in told} == {"web"}


async def test_the_page_learns_which_addresses_are_announced(tmp_path: Path) -> None:
    config = build_config(parse_flags([f"--state-dir={tmp_path}", "--nodeport-addresses=primary"])).config
    async with cluster(tmp_path) as here:
        announced = Announced(LocalObjects(here.registry, "test"), "n1", "near", here.clock, lambda _: (), config)
        announced.record_start([bytes((192, 0, 2, 7)), bytes((192, 0, 2, 8))])
        announced.record_other_claim(bytes((192, 0, 2, 7)), HARDWARE)
        announced.record_in_use("192.0.2.9", HARDWARE)
        announced.record_end(["192.0.2.8", "192.0.2.10"])
    assert read_announced(announced_file(str(tmp_path))) == {
        "192.0.2.7": AnnouncedAddress("near", other="02:00:00:00:00:99"),
        "192.0.2.9": AnnouncedAddress("near", here=False, other="02:00:00:00:00:99"),
    }
    assert read_announced(tmp_path / "nothing") == {}
