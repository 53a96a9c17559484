"""Methods that a path does not have: nothing is done, and above all nothing is deleted."""

from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, service

from vipwire_up.api.answers.discovery import build_resource_list, resources_by_base_path
from vipwire_up.api.answers.openapi import build_document_v2
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.kinds.small_kinds import NAMESPACES
from vipwire_up.api.objects.resource import Resource

REFUSED = (405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def told(answer: tuple[int, Any]) -> tuple[int, str, str]:
    """Name what matters of a Status."""
    return answer[0], answer[1]["reason"], answer[1]["message"]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.plural)
@in_cluster()
async def test_nothing_is_deleted_in_all_namespaces_at_once(here: Here, resource: Resource) -> None:
    await here.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    before = here.store.revision
    if not resource.namespaced and resource.deletes_many:
        return
    path = f"{resource.base}/{resource.plural}"
    for query in ("", "?labelSelector=app%3Dweb", "?dryRun=All", "?fieldSelector=metadata.namespace%3Ddefault"):
        assert told(await here.send("DELETE", f"{path}{query}")) == REFUSED
    assert here.store.revision == before


@in_cluster()
async def test_services_of_all_namespaces_are_still_there(here: Here) -> None:
    await here.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    await here.post(SERVICES, service("web"))
    await here.post("/api/v1/namespaces/other/services", service("web"))
    assert told(await here.send("DELETE", "/api/v1/services")) == REFUSED
    assert told(await here.send("DELETE", "/api/v1/namespaces")) == REFUSED
    assert len((await here.send("GET", "/api/v1/services"))[1]["items"]) == 2
    assert (await here.send("DELETE", SERVICES))[0] == 200
    left = (await here.send("GET", "/api/v1/services"))[1]["items"]
    assert [item["metadata"]["namespace"] for item in left] == ["other"]
    assert (await here.send("DELETE", "/api/v1/services", user="view"))[0] == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/services"),
        ("POST", f"{SERVICES}/web"),
        ("PUT", SERVICES),
        ("PATCH", SERVICES),
        ("PUT", "/api/v1/services"),
        ("POST", f"{SERVICES}/web/status"),
        ("DELETE", f"{SERVICES}/web/status"),
        ("PATCH", "/api/v1/namespaces/default/finalize"),
    ],
)
@in_cluster()
async def test_methods_that_a_path_does_not_have(here: Here, method: str, path: str) -> None:
    before = await here.post(SERVICES, service("web"))
    patch = "merge-patch+json" if method == "PATCH" else ""
    assert told(await here.send(method, path, service("web"), patch=patch)) == REFUSED
    assert await here.send("GET", f"{SERVICES}/web") == (200, before)


def test_what_is_told_to_clients_is_what_can_be_done() -> None:
    verbs = {
        entry["name"]: entry["verbs"]
        for entry in build_resource_list(resources_by_base_path()["/api/v1"])["resources"]
    }
    assert "deletecollection" not in verbs["namespaces"]
    assert "deletecollection" in verbs["services"]
    assert NAMESPACES.verbs == tuple(verbs["namespaces"])
    assert "delete" not in build_document_v2()["paths"]["/api/v1/namespaces"]
