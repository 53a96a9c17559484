"""kubernetes_asyncio."""

import asyncio
import contextlib

import aiohttp
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException
from tests.up.clients.common import NAMESPACE, config_map, refused, service, wait_for_restart


def code_of(error: ApiException) -> int:
    return int(error.status)


async def change(core: client.CoreV1Api) -> None:
    made = await core.create_namespaced_config_map(NAMESPACE, config_map("one", a="1"))
    with refused(ApiException, 409, code_of):
        await core.create_namespaced_config_map(NAMESPACE, config_map("one"))
    with refused(ApiException, 404, code_of):
        await core.read_namespaced_config_map("none", NAMESPACE)
    await core.replace_namespaced_config_map("one", NAMESPACE, config_map("one", a="2"))
    with refused(ApiException, 409, code_of):
        await core.replace_namespaced_config_map("one", NAMESPACE, made)
    for number in range(3):
        await core.create_namespaced_config_map(NAMESPACE, config_map(f"page{number}"))
    page = await core.list_namespaced_config_map(NAMESPACE, limit=3)
    rest = await core.list_namespaced_config_map(NAMESPACE, limit=3, _continue=page.metadata._continue)  # noqa: SLF001
    assert [each.metadata.name for each in (*page.items, *rest.items)] == ["one", "page0", "page1", "page2"]


async def patch(core: client.CoreV1Api) -> None:
    await core.create_namespaced_service(NAMESPACE, service("web"))
    ports = {"spec": {"ports": [{"port": 80, "name": "c"}]}}
    kinds = {"strategic-merge-patch+json": ["c", "b"], "merge-patch+json": ["c"]}
    for kind, names in kinds.items():
        made = await core.patch_namespaced_service("web", NAMESPACE, ports, _content_type=f"application/{kind}")
        assert [each.name for each in made.spec.ports] == names
    operations = [{"op": "replace", "path": "/spec/ports/0/name", "value": "d"}]
    json_patch = "application/json-patch+json"
    made = await core.patch_namespaced_service("web", NAMESPACE, operations, _content_type=json_patch)
    assert [each.name for each in made.spec.ports] == ["d"]
    apply = {"_content_type": "application/apply-patch+yaml"}
    place = ("applied", NAMESPACE)
    await core.patch_namespaced_config_map(*place, config_map("applied", a="1"), field_manager="m1", **apply)
    with refused(ApiException, 409, code_of):
        await core.patch_namespaced_config_map(*place, config_map("applied", a="2"), field_manager="m2", **apply)
    forced = await core.patch_namespaced_config_map(
        *place, config_map("applied", a="2"), field_manager="m2", force=True, **apply
    )
    assert forced.data == {"a": "2"}


async def end(core: client.CoreV1Api) -> None:
    body = config_map("held")
    body["metadata"]["finalizers"] = ["a.test/held"]
    await core.create_namespaced_config_map(NAMESPACE, body)
    marked = await core.delete_namespaced_config_map("held", NAMESPACE)
    assert marked is not None
    merge = "application/merge-patch+json"
    freed = {"metadata": {"finalizers": None}}
    await core.patch_namespaced_config_map("held", NAMESPACE, freed, _content_type=merge)
    with refused(ApiException, 404, code_of):
        await core.read_namespaced_config_map("held", NAMESPACE)


async def follow(core: client.CoreV1Api, seen: "asyncio.Queue[str]") -> None:
    version = (await core.list_namespaced_config_map(NAMESPACE)).metadata.resource_version
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with watch.Watch().stream(
                core.list_namespaced_config_map, NAMESPACE, resource_version=version
            ) as events:
                async for event in events:
                    version = event["object"].metadata.resource_version
                    seen.put_nowait(event["object"].metadata.name)
        await asyncio.sleep(0.1)


async def main() -> None:
    await config.load_kube_config()
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        await core.create_namespace({"metadata": {"name": NAMESPACE}})
        await change(core)
        await patch(core)
        await end(core)
        seen: asyncio.Queue[str] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(core, seen))
            await asyncio.sleep(0.5)
            await core.create_namespaced_config_map(NAMESPACE, config_map("before"))
            assert await asyncio.wait_for(seen.get(), 60) == "before"
            await asyncio.to_thread(wait_for_restart)
            await core.create_namespaced_config_map(NAMESPACE, config_map("after"))
            assert await asyncio.wait_for(seen.get(), 60) == "after"
            following.cancel()


asyncio.run(main())
