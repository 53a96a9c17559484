"""lightkube."""

import contextlib
import threading
import time

import httpx2
import lightkube
from lightkube import codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import ConfigMap, Namespace, Service
from lightkube.types import PatchType, on_error_retry
from tests.up.clients.common import NAMESPACE, config_map, refused, service, until, wait_for_restart


def code_of(error: ApiError) -> int:
    return int(error.status.code)


def change(client: lightkube.Client) -> None:
    made = client.create(ConfigMap.from_dict(config_map("one", a="1")))
    with refused(ApiError, 409, code_of):
        client.create(ConfigMap.from_dict(config_map("one")))
    with refused(ApiError, 404, code_of):
        client.get(ConfigMap, "none")
    client.replace(ConfigMap.from_dict(config_map("one", a="2")))
    with refused(ApiError, 409, code_of):
        client.replace(made)
    for number in range(5):
        client.create(ConfigMap.from_dict(config_map(f"page{number}")))
    listed = client.list(ConfigMap, chunk_size=2, labels={"app": "test"})
    assert [each.metadata.name for each in listed] == ["one", *(f"page{number}" for number in range(5))]


def patch(client: lightkube.Client) -> None:
    client.create(codecs.from_dict(service("web")))
    ports = {"spec": {"ports": [{"port": 80, "name": "c"}]}}
    for kind, names in ((PatchType.STRATEGIC, ["c", "b"]), (PatchType.MERGE, ["c"])):
        made = client.patch(Service, "web", ports, patch_type=kind)
        assert [each.name for each in made.spec.ports] == names
    operations = [{"op": "replace", "path": "/spec/ports/0/name", "value": "d"}]
    assert client.patch(Service, "web", operations, patch_type=PatchType.JSON).spec.ports[0].name == "d"
    client.apply(ConfigMap.from_dict(config_map("applied", a="1")), field_manager="m1")
    with refused(ApiError, 409, code_of):
        client.apply(ConfigMap.from_dict(config_map("applied", a="2")), field_manager="m2")
    forced = client.apply(ConfigMap.from_dict(config_map("applied", a="2")), field_manager="m2", force=True)
    assert forced.data == {"a": "2"}


def end(client: lightkube.Client) -> None:
    body = config_map("held")
    body["metadata"]["finalizers"] = ["a.test/held"]
    client.create(ConfigMap.from_dict(body))
    client.delete(ConfigMap, "held")
    assert client.get(ConfigMap, "held").metadata.deletionTimestamp
    client.patch(ConfigMap, "held", {"metadata": {"finalizers": None}}, patch_type=PatchType.MERGE)
    with refused(ApiError, 404, code_of):
        client.get(ConfigMap, "held")


def follow(client: lightkube.Client, seen: list[str]) -> None:
    """Watch; where the server is away, lightkube raises in spite of its handler."""
    version = client.create(ConfigMap.from_dict(config_map("start"))).metadata.resourceVersion
    while True:
        with contextlib.suppress(httpx2.HTTPError):
            for _, value in client.watch(ConfigMap, resource_version=version, on_error=on_error_retry):
                version = value.metadata.resourceVersion
                seen.append(value.metadata.name)
        time.sleep(0.1)


def main() -> None:
    client = lightkube.Client(namespace=NAMESPACE)
    client.create(Namespace.from_dict({"metadata": {"name": NAMESPACE}}))
    change(client)
    patch(client)
    end(client)
    seen: list[str] = []
    threading.Thread(target=follow, args=(client, seen), daemon=True).start()
    client.create(ConfigMap.from_dict(config_map("before")))
    until(lambda: "before" in seen, "the watch shows an object")
    wait_for_restart()
    client.create(ConfigMap.from_dict(config_map("after")))
    until(lambda: "after" in seen, "the watch goes on")
    assert seen == ["before", "after"]


main()
