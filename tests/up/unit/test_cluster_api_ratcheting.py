"""What was stored when less was refused can still be changed; what an update makes wrong itself is refused."""

from typing import Any

import pytest
from tests.up.unit.cluster_here import Here, in_cluster
from tests.up.unit.up_here import BY_KIND, write

WEB: dict[str, Any] = {"name": "web", "image": "x"}


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "old"}, "spec": {"containers": [WEB]} | spec}


def service(**spec: Any) -> dict[str, Any]:
    ports = [{"port": 80, "protocol": "TCP", "targetPort": 8080}]
    kept = {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "ports": ports}
    return {"kind": "Service", "metadata": {"name": "old"}, "spec": kept | spec}


def labelled(value: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return value | {"metadata": value["metadata"] | meta}


PROBE = {"readinessProbe": {"tcpSocket": {"port": 80800}, "periodSeconds": -3}}
STORED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # what is stored; a change that makes it wrong in another way
    "a port beyond all": (pod(containers=[WEB | PROBE]), {"spec": {"containers": [WEB | {"ports": [{}]}]}}),
    "a quantity that is none": (
        pod(containers=[WEB | {"resources": {"requests": {"cpu": "a lot"}}}]),
        {"spec": {"containers": [WEB | {"resources": {"requests": {"cpu": "lots"}}}]}},
    ),
    "a choice that is none": (pod(restartPolicy="Perhaps"), {"spec": {"restartPolicy": "Never ever"}}),
    "what is required and missing": (
        service(ports=[{"protocol": "TCP", "targetPort": 80}]),
        {"spec": {"ports": [{"protocol": "TCP", "targetPort": 80}, {"protocol": "TCP"}]}},
    ),
    "a port that is none": (
        service(ports=[{"port": 0, "protocol": "TCP", "targetPort": 80}]),
        {"spec": {"ports": [{"port": -1, "protocol": "TCP", "targetPort": 80}]}},
    ),
    "a label that is none": (
        labelled(service(), labels={"a b": "c d"}),
        {"metadata": {"labels": {"a b": None, "d e": "f"}}},
    ),
    "a finalizer that is none": (
        labelled(service(), finalizers=["mine"]),
        {"metadata": {"finalizers": ["mine", "yours"]}},
    ),
    "a time that is none": (
        labelled(pod(), managedFields=[{"manager": "m", "operation": "Update", "time": "yesterday"}]),
        {"metadata": {"deletionGracePeriodSeconds": "x"}},
    ),
    "a field that nobody knows": (pod(unheard="of"), {"spec": {"unheardOf": 1}}),
}


@pytest.mark.parametrize("name", STORED)
@in_cluster()
async def test_what_was_stored_under_laxer_rules_can_be_changed_where_it_is_sound(here: Here, name: str) -> None:
    stored, worse = STORED[name]
    await write(here.store, stored)
    path = f"/api/v1/namespaces/default/{BY_KIND[stored['kind']].plural}/old"
    condition = {"type": "Odd", "status": "True", "reason": "Odd", "message": "odd"}
    condition |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    merge = "merge-patch+json"
    about = {"status": {"conditions": [condition]}}
    code, answer = await here.send("PATCH", f"{path}/status", about, patch=merge)
    assert code == 200, answer.get("message")
    code, answer = await here.send("PUT", f"{path}/status", answer | {"status": {"conditions": []}})
    assert code == 200, answer.get("message")
    code, answer = await here.send("PATCH", path, {"metadata": {"annotations": {"a": "b"}}}, patch=merge)
    assert code == 200, answer.get("message")
    value = answer | {"metadata": answer["metadata"] | {"annotations": {"a": "c"}}}
    assert (await here.send("PUT", path, value))[0] == 200
    apply = {"apiVersion": "v1", "kind": stored["kind"], "metadata": {"name": "old", "annotations": {"b": "c"}}}
    code, answer = await here.send("PATCH", f"{path}?fieldManager=x", apply, patch="apply-patch+yaml")
    assert code == 200, answer.get("message")
    code, answer = await here.send("PATCH", f"{path}?fieldValidation=Strict", worse, patch=merge)
    assert code in (400, 422), answer
    assert (await here.send("DELETE", path))[0] == 200
