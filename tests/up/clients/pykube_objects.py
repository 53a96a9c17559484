"""pykube-ng."""

import contextlib
import threading

import pykube
import requests
from tests.up.clients.common import NAMESPACE, config_map, refused, service, until, wait_for_restart


def code_of(error: pykube.exceptions.HTTPError) -> int:
    return int(error.code)


def change(api: pykube.HTTPClient) -> None:
    one = pykube.ConfigMap(api, config_map("one", a="1"))
    one.create()
    with refused(pykube.exceptions.HTTPError, 409, code_of):
        pykube.ConfigMap(api, config_map("one")).create()
    maps = pykube.ConfigMap.objects(api).filter(namespace=NAMESPACE, selector={"app": "test"})
    try:
        maps.get(name="none")
    except pykube.exceptions.ObjectDoesNotExist:
        pass
    else:
        raise AssertionError("an object that is not there")
    one.obj["data"]["b"] = "2"
    one.update()
    stale = pykube.ConfigMap(api, one.obj | {"metadata": one.obj["metadata"] | {"resourceVersion": "1"}})
    with refused(pykube.exceptions.HTTPError, 409, code_of):
        stale.update(is_strategic=False)
    one.patch({"data": {"a": None}})
    assert one.obj["data"] == {"b": "2"}
    assert [each.name for each in maps] == ["one"]
    web = pykube.Service(api, service("web"))
    web.create()
    web.patch({"spec": {"ports": [{"port": 80, "name": "c"}]}})
    assert [each["name"] for each in web.obj["spec"]["ports"]] == ["c"]


def end(api: pykube.HTTPClient) -> None:
    body = config_map("held")
    body["metadata"]["finalizers"] = ["a.test/held"]
    held = pykube.ConfigMap(api, body)
    held.create()
    held.delete()
    held.reload()
    assert held.metadata["deletionTimestamp"]
    held.patch({"metadata": {"finalizers": None}})
    assert not held.exists()


def follow(api: pykube.HTTPClient, seen: list[str]) -> None:
    while True:
        with contextlib.suppress(requests.RequestException, pykube.exceptions.KubernetesError):
            for event in pykube.ConfigMap.objects(api).filter(namespace=NAMESPACE).watch():
                if event.object.name not in seen:
                    seen.append(event.object.name)


def main() -> None:
    api = pykube.HTTPClient(pykube.KubeConfig.from_env())
    pykube.Namespace(api, {"metadata": {"name": NAMESPACE}}).create()
    change(api)
    end(api)
    seen: list[str] = []
    threading.Thread(target=follow, args=(api, seen), daemon=True).start()
    until(lambda: "one" in seen, "the watch shows an object")
    wait_for_restart()
    pykube.ConfigMap(api, config_map("after")).create()
    until(lambda: "after" in seen, "the watch goes on")


main()
