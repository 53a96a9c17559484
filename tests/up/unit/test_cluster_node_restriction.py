"""What a hostile machine may do with its credentials: nothing to what is another machine's."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.up.unit.cluster_here import USERS, SentBy, cluster, pod
from tests.up.unit.up_here import up

from vipwire.kube.access.access import load_access
from vipwire.kube.errors import ApiError
from vipwire_up.api.admission import AdmissionRequest
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.serving.authorization import Role, User
from vipwire_up.controllers.node_restriction import refuse_writes_of_other_nodes
from vipwire_up.joining import join as joining
from vipwire_up.joining.manage import create_token
from vipwire_up.joining.membership import Folder
from vipwire_up.nodes.objects import LocalObjects, Objects, RemoteObjects

Act: TypeAlias = Callable[[Objects], Awaitable[object]]
SYSTEM = "kube-system"
MACHINE = User("system:node:n1", (Role.NODE.value,))
PROXY = User("system:kube-proxy", (Role.NODE.value,))
"""A user of the role node that is no machine."""


def placed(name: str, node: str) -> Object:
    return pod(name, metadata={"namespace": "default"}, spec={"nodeName": node} if node else {})


def lease(name: str, holder: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 2}}


def make(resource: Resource, namespace: str, value: Object) -> Act:
    return lambda objects: objects.create(resource, namespace, value)


def delete(resource: Resource, namespace: str, name: str) -> Act:
    return lambda objects: objects.delete(resource, namespace, name)


def ready(name: str) -> Act:
    """Say of a Pod that it is ready."""
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return lambda objects: objects.edit(
        PODS, "default", name, lambda value: value | {"status": status}, subresource="status"
    )


def labelled(name: str) -> Act:
    def edit(value: Object) -> Object:
        return value | {"metadata": value["metadata"] | {"labels": {"app": "web"}}}

    return lambda objects: objects.edit(PODS, "default", name, edit)


def held(name: str, holder: str) -> Act:
    def edit(value: Object) -> Object:
        return value | {"spec": value["spec"] | {"holderIdentity": holder}}

    return lambda objects: objects.edit(LEASES, SYSTEM, name, edit)


ALLOWED: dict[str, Act] = {
    "its own Pod's status": ready("own"),
    "a Pod of its own": make(PODS, "default", placed("static", "n1")),
    "its announcer": held("vipwire-announcer-n1", "n1"),
    "the fence of another": held("vipwire-announcer-n2", ""),
    "an address that it takes": held("vipwire-address-10-0-0-2", "n1"),
    "an address that it gives": held("vipwire-address-10-0-0-1", "n2"),
}
REFUSED: dict[str, Act] = {
    "another's Pod's status": ready("foreign"),
    "the status of a Pod on no machine": ready("nowhere"),
    "another's Pod": labelled("foreign"),
    "a new Pod on another": make(PODS, "default", placed("planted", "n2")),
    "a new Pod on no machine": make(PODS, "default", placed("planted", "")),
    "another's Pod's deletion": delete(PODS, "default", "foreign"),
    "another as announcer": held("vipwire-announcer-n2", "n2"),
    "itself in another's announcer": held("vipwire-announcer-n2", "n1"),
    "a new announcer of another": make(LEASES, SYSTEM, lease("vipwire-announcer-n3", "")),
    "another's announcer's deletion": delete(LEASES, SYSTEM, "vipwire-announcer-n2"),
    "an address that another gives": held("vipwire-address-10-0-0-2", "n3"),
    "an address that nobody has any more": held("vipwire-address-10-0-0-2", ""),
    "an address's deletion": delete(LEASES, SYSTEM, "vipwire-address-10-0-0-1"),
    "the election": held("vipwire-controllers", "n1"),
    "the election's deletion": delete(LEASES, SYSTEM, "vipwire-controllers"),
    "an API server's": held("vipwire-server-n2", ""),
    "another Node": make(NODES, "", {"metadata": {"name": "n3"}}),
}


def what_is_there() -> Iterator[tuple[Resource, str, Object]]:
    yield from (
        (PODS, "default", placed(name, node)) for name, node in (("own", "n1"), ("foreign", "n2"), ("nowhere", ""))
    )
    yield from ((LEASES, SYSTEM, lease(f"vipwire-announcer-{node}", node)) for node in ("n1", "n2"))
    yield from ((LEASES, SYSTEM, lease(f"vipwire-address-10-0-0-{node[1]}", node)) for node in ("n1", "n2"))
    yield from ((LEASES, SYSTEM, lease(name, "n2_1")) for name in ("vipwire-controllers", "vipwire-server-n2"))


async def refused(act: Act, objects: Objects) -> bool:
    try:
        await act(objects)
    except ApiError as error:
        if error.code != 403:
            raise
        return True
    return False


async def tried(folder: Path, acts: dict[str, Act], caller: User | None) -> dict[str, bool]:
    """Try each; tell which of them were refused."""
    hook = SentBy(refuse_writes_of_other_nodes)
    async with cluster(folder, make_hooks=lambda _: (hook,)) as here:
        objects = LocalObjects(here.registry, "test")
        for name in (SYSTEM, "default"):
            await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for resource, namespace, value in what_is_there():
            await objects.create(resource, namespace, value)
        hook.caller = caller
        return {name: await refused(act, objects) for name, act in acts.items()}


async def test_a_machine_writes_what_is_its_own(tmp_path: Path) -> None:
    assert await tried(tmp_path, ALLOWED, MACHINE) == dict.fromkeys(ALLOWED, False)


@pytest.mark.attack
async def test_a_machine_writes_nothing_of_others(tmp_path: Path) -> None:
    assert await tried(tmp_path, REFUSED, MACHINE) == dict.fromkeys(REFUSED, True)


@pytest.mark.attack
async def test_who_is_no_machine_writes_no_lease_that_machines_announce_by(tmp_path: Path) -> None:
    leases = {name: act for name, act in ALLOWED.items() if "Pod" not in name}
    assert await tried(tmp_path, leases, PROXY) == dict.fromkeys(leases, True)


@pytest.mark.parametrize("caller", [User("admin", (Role.ADMIN.value,)), None])
async def test_admins_and_api_servers_are_not_restricted(tmp_path: Path, caller: User | None) -> None:
    some = {name: REFUSED[name] for name in ("another's Pod's status", "the election", "an API server's")}
    assert await tried(tmp_path, some, caller) == dict.fromkeys(some, False)


PODS_PATH = "/api/v1/namespaces/default/pods"
APPLIED = {"apiVersion": "v1", "kind": "Pod"}


@pytest.mark.parametrize(
    ("method", "path", "body", "patch"),
    [
        ("POST", PODS_PATH, placed("new", "n1"), ""),
        ("PUT", f"{PODS_PATH}/own", placed("own", "n1"), ""),
        ("PUT", f"{PODS_PATH}/own/status", placed("own", "n1") | {"status": {"phase": "Running"}}, ""),
        ("PATCH", f"{PODS_PATH}/own", {"metadata": {"labels": {"app": "web"}}}, "merge-patch+json"),
        ("PATCH", f"{PODS_PATH}/own?fieldManager=me&force=true", APPLIED | placed("own", "n1"),
         "apply-patch+yaml"),
        ("PATCH", f"{PODS_PATH}/new?fieldManager=me", APPLIED | placed("new", "n1"),
         "apply-patch+yaml"),
        ("DELETE", f"{PODS_PATH}/own?gracePeriodSeconds=0", None, ""),
        ("DELETE", f"{PODS_PATH}/own?gracePeriodSeconds=9", None, ""),
        ("DELETE", PODS_PATH, None, ""),
    ],
)  # fmt: skip
async def test_hooks_are_told_who_sends_each_change(
    tmp_path: Path, method: str, path: str, body: Any, patch: str
) -> None:
    callers: list[User | None] = []

    def note(attempt: AdmissionRequest) -> None:
        callers.append(attempt.caller)

    async with cluster(tmp_path, hooks=(note,)) as here:
        await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
        await LocalObjects(here.registry, "test").create(PODS, "default", placed("own", "n1"))
        assert callers.pop() is None
        callers.clear()
        assert (await here.send(method, path, body, patch=patch))[0] in (200, 201)
    assert callers == [USERS["admin"]] * len(callers)
    assert callers


@pytest.mark.attack
async def test_a_machines_certificate_writes_no_status_of_another_machines_pod(tmp_path: Path) -> None:
    async with up(tmp_path / "up") as here:
        admin = load_access(tmp_path / "up/admin.kubeconfig", environ={})
        words = (await create_token(admin, 60, servers=False, description="a test's")).split()
        token, pinned = words[words.index("--token") + 1], words[words.index("--ca-hash") + 1]
        folder = Folder(tmp_path / "there")
        await joining.join_cluster(folder, here.url, token, pinned, "n1")
        for name, node in (("own", "n1"), ("foreign", "n2")):
            assert (await here.ask("POST", "/api/v1/namespaces/default/pods", placed(name, node)))[0] == 201
        async with RemoteObjects(folder.access_to(here.url), "hostile") as objects:
            await ready("own")(objects)
            with pytest.raises(ApiError, match='User "system:node:n1" cannot write it: a machine may write its own'):
                await ready("foreign")(objects)
        found: Any = await here.ask("GET", "/api/v1/namespaces/default/pods/foreign")
        assert not found[1]["status"].get("conditions")
