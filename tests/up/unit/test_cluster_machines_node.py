"""The Node of this machine, as clients read it."""

from tests.up.unit.cluster_here import Here, in_cluster

from vipwire.linux.host.addresses import LocalAddress
from vipwire.model.net import parse_address
from vipwire_up.nodes.heartbeat import Heartbeat
from vipwire_up.nodes.node import node_addresses
from vipwire_up.nodes.objects import LocalObjects

REQUIRED = {
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion"),
    *("machineID", "operatingSystem", "osImage", "systemUUID"),
}
"""What every nodeInfo has (k8s.io/api/core/v1, NodeSystemInfo): typed clients refuse one without."""


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def declare(here: Here, address: str) -> None:
    addresses = [{"type": "InternalIP", "address": address}]
    await Heartbeat(LocalObjects(here.registry, "test"), "here", lambda: (addresses, {}), here.clock).declare_node()


@in_cluster()
async def test_it_has_what_clients_require_and_keeps_what_others_have_written(here: Here) -> None:
    await declare(here, "192.0.2.1")
    path = "/api/v1/nodes/here"
    _, node = await here.send("GET", path)
    assert {name for name, text in node["status"]["nodeInfo"].items() if isinstance(text, str)} >= REQUIRED
    assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.")
    await here.send("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, patch="merge-patch+json")
    await declare(here, "192.0.2.2")
    _, again = await here.send("GET", path)
    assert again["metadata"]["labels"] == node["metadata"]["labels"] | {"a": "b"}
    assert again["status"]["addresses"] == [{"type": "InternalIP", "address": "192.0.2.2"}]
    assert again["status"]["conditions"] == node["status"]["conditions"]


def chosen(*preferred: str, machine: tuple[tuple[str, str], ...]) -> list[str]:
    held = [LocalAddress(parse_address(text), 24, 0, interface) for text, interface in machine]
    return [each["address"] for each in node_addresses(held, "here", preferred)[:-1]]


def test_its_address_is_the_operators_then_the_earlier_one_then_that_of_the_default_route() -> None:
    machine = (("10.1.0.5", "lo"), ("10.9.0.1", "wg0"), ("192.0.2.7", "eth0"), ("fd00::7", "eth0"))
    assert chosen(machine=machine) == ["10.9.0.1", "fd00::7"]
    assert chosen("192.0.2.7", machine=machine) == ["192.0.2.7", "fd00::7"]
    assert chosen("198.51.100.1", "192.0.2.7", machine=machine) == ["192.0.2.7", "fd00::7"]
    assert chosen(machine=machine[:1]) == ["10.1.0.5"]
    assert chosen("192.0.2.7", machine=()) == ["192.0.2.7"]


@in_cluster()
async def test_kubectl_shows_a_lost_machine_as_not_ready(here: Here) -> None:
    await declare(here, "192.0.2.1")
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
    await here.send("PATCH", "/api/v1/nodes/here/status", lost, patch="strategic-merge-patch+json")
    _, table = await here.send("GET", "/api/v1/nodes/here", Accept=TABLE)
    assert table["rows"][0]["cells"][1] == "NotReady"
