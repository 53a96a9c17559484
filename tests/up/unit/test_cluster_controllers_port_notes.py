"""Notes of node ports and Services say the same after a repair, which changes nothing else and heeds its fence."""

from typing import Any

from tests.up.unit.cluster_here import SERVICES, Here, service
from tests.up.unit.controllers_here import allocating

from vipwire_up.controllers.allocation.port_notes import NOTES, PortNoteRepair, holder_of
from vipwire_up.store.record import FENCES, Check, Key

FENCE = Key(FENCES, "", "vipwire-controllers")
STANDING, FALLEN = Check(FENCE, 0), Check(FENCE, 1)
WEB, API = 30080, 30443


def node_port(name: str, number: int) -> dict[str, Any]:
    ports = [{"port": 80, "nodePort": number}]
    return service(name, type="NodePort", ipFamilies=["IPv4"], ports=ports)


def notes(here: Here) -> dict[str, str]:
    """Name the Service of each note."""
    return {record.key.name: holder_of(record)[1] for record in here.registry.store.scan(NOTES)}


async def repair(here: Here, fence: Check = STANDING) -> dict[str, str]:
    await PortNoteRepair(here.registry.with_fence(fence)).step()
    return notes(here)


@allocating()
async def test_notes_that_are_missing_are_written_once(here: Here) -> None:
    await here.post(SERVICES, node_port("web", WEB))
    await here.post(SERVICES, node_port("api", API))
    await here.post(SERVICES, service("plain", ipFamilies=["IPv4"]))
    assert notes(here) == {}, "a store of one process notes nothing itself"
    assert await repair(here) == {str(WEB): "web", str(API): "api"}
    before = here.registry.store.revision
    await repair(here)
    assert here.registry.store.revision == before


@allocating()
async def test_a_note_goes_when_its_service_is_gone_or_has_left_the_port(here: Here) -> None:
    for name, number in (("web", WEB), ("api", API)):
        await here.post(SERVICES, node_port(name, number))
    await repair(here)
    await here.send("DELETE", f"{SERVICES}/web")
    assert await repair(here) == {str(API): "api"}
    _, found = await here.send("GET", f"{SERVICES}/api")
    found["spec"]["ports"][0]["nodePort"] = WEB
    code, _ = await here.send("PUT", f"{SERVICES}/api", found)
    assert code == 200
    assert await repair(here) == {str(WEB): "api"}


@allocating()
async def test_a_writer_whose_election_is_over_changes_nothing(here: Here) -> None:
    await here.post(SERVICES, node_port("web", WEB))
    before = here.registry.store.revision
    assert await repair(here, FALLEN) == {}
    assert here.registry.store.revision == before
