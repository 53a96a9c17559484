"""The Node of this machine, as clients read it."""

from tests.up.unit.cluster_here import Here, in_cluster

from vipwire_up.nodes.heartbeat import Heartbeat
from vipwire_up.nodes.objects import LocalObjects

REQUIRED = {
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion"),
    *("machineID", "operatingSystem", "osImage", "systemUUID"),
}
"""What every nodeInfo has (k8s.io/api/core/v1, NodeSystemInfo): typed clients refuse one without."""


async def declare(here: Here, address: str) -> None:
    addresses = [{"type": "InternalIP", "address": address}]
    await Heartbeat(LocalObjects(here.registry, "test"), "here", addresses, here.clock).declare()


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
