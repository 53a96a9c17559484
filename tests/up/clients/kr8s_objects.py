"""kr8s."""

import asyncio

import kr8s
from kr8s.asyncio.objects import ConfigMap, Namespace, Pod, Service
from tests.up.clients.common import NAMESPACE, config_map, refused, service, wait_for_restart


def code_of(error: kr8s.ServerError) -> int:
    assert error.response is not None
    return int(error.response.status_code)


async def change(api: kr8s.Api) -> None:
    one = await ConfigMap(config_map("one", a="1"), api=api)
    await one.create()
    with refused(kr8s.ServerError, 409, code_of):
        await (await ConfigMap(config_map("one"), api=api)).create()
    try:
        await ConfigMap.get("none", namespace=NAMESPACE, api=api)
    except kr8s.NotFoundError:
        pass
    else:
        raise AssertionError("an object that is not there")
    await one.patch({"data": {"b": "2"}})
    assert dict(one.data) == {"a": "1", "b": "2"}
    await one.patch([{"op": "remove", "path": "/data/b"}], type="json")
    assert dict(one.data) == {"a": "1"}
    found = [each.name async for each in api.get("configmaps", namespace=NAMESPACE, label_selector={"app": "test"})]
    assert found == ["one"]
    await (await Service(service("web"), api=api)).create()


async def wait_for_pod(api: kr8s.Api) -> None:
    meta = {"name": "web", "namespace": NAMESPACE, "labels": {"app": "test"}}
    body = {"metadata": meta | {"annotations": {"vipwire.io/address": "10.1.0.5"}}}
    pod = await Pod(body | {"spec": {"containers": [{"name": "web", "image": "none"}]}}, api=api)
    await pod.create()
    await pod.wait("condition=Ready", timeout=60)
    assert await pod.ready()


async def end(api: kr8s.Api) -> None:
    body = config_map("held")
    body["metadata"]["finalizers"] = ["a.test/held"]
    held = await ConfigMap(body, api=api)
    await held.create()
    await held.delete()
    await held.refresh()
    assert held.metadata.deletionTimestamp
    await held.patch([{"op": "remove", "path": "/metadata/finalizers"}], type="json")
    assert not await held.exists()


async def follow(api: kr8s.Api, seen: "asyncio.Queue[str]") -> None:
    told: set[str] = set()
    while True:
        try:
            async for _, value in api.watch("configmaps", namespace=NAMESPACE):
                if value.name not in told:
                    told.add(value.name)
                    seen.put_nowait(value.name)
        except Exception:  # noqa: BLE001, S110  # kr8s leaves connections that break to its users
            pass
        await asyncio.sleep(0.1)


async def main() -> None:
    api = await kr8s.asyncio.api(namespace=NAMESPACE)
    await (await Namespace({"metadata": {"name": NAMESPACE}}, api=api)).create()
    await change(api)
    await wait_for_pod(api)
    await end(api)
    seen: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow(api, seen))
        assert await asyncio.wait_for(seen.get(), 60) == "one"
        await asyncio.to_thread(wait_for_restart)
        await (await ConfigMap(config_map("after"), api=api)).create()
        assert await asyncio.wait_for(seen.get(), 60) == "after"
        following.cancel()


asyncio.run(main())
