"""The Node of this machine, as clients read it."""

from pathlib import Path

from tests.unit.cluster_here import Here, play

from vipwire.cluster.this_node import declare_node

REQUIRED = {
    *("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion"),
    *("machineID", "operatingSystem", "osImage", "systemUUID"),
}
"""What every nodeInfo has (k8s.io/api/core/v1, NodeSystemInfo): typed clients refuse one without."""


def test_it_has_what_clients_require_and_keeps_what_others_have_written(tmp_path: Path) -> None:
    async def scenario(here: Here) -> None:
        await declare_node(here.registry, "here", [{"type": "InternalIP", "address": "192.0.2.1"}])
        path = "/api/v1/nodes/here"
        _, node = await here.send("GET", path)
        assert {name for name, text in node["status"]["nodeInfo"].items() if isinstance(text, str)} >= REQUIRED
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.")
        await here.send("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, patch="merge-patch+json")
        await declare_node(here.registry, "here", [{"type": "InternalIP", "address": "192.0.2.2"}])
        _, again = await here.send("GET", path)
        assert again["metadata"]["labels"] == node["metadata"]["labels"] | {"a": "b"}
        assert again["status"]["addresses"] == [{"type": "InternalIP", "address": "192.0.2.2"}]
        assert again["status"]["conditions"] == node["status"]["conditions"]

    play(tmp_path, scenario)


def test_a_node_that_vipwire_served_under_another_name_is_not_ready_any_more(tmp_path: Path) -> None:
    async def scenario(here: Here) -> None:
        by_hand = {"metadata": {"name": "hand"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        assert (await here.send("POST", "/api/v1/nodes", by_hand))[0] == 201
        for name, there in (("first", ()), ("second", ("first",)), ("first", ("second",))):
            here.clock.move(seconds=60)
            await declare_node(here.registry, name, [])
            expected = {"hand": "True", name: "True"} | dict.fromkeys(there, "Unknown")
            assert {node: (await ready(here, node))["status"] for node in expected} == expected
        found = await ready(here, "first")
        assert (found["lastHeartbeatTime"], found["lastTransitionTime"]) == ("2026-01-01T12:03:00Z",) * 2
        here.clock.move(seconds=60)
        await declare_node(here.registry, "first", [])
        found = await ready(here, "first")
        assert (found["lastHeartbeatTime"], found["lastTransitionTime"]) == (
            "2026-01-01T12:04:00Z",
            "2026-01-01T12:03:00Z",
        )

    play(tmp_path, scenario)


async def ready(here: Here, name: str) -> dict[str, str]:
    code, node = await here.send("GET", f"/api/v1/nodes/{name}")
    assert code == 200
    (found,) = (each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return dict(found)
