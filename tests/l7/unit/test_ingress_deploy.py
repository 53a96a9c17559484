"""deploy/ingress: it renders, its flags are taken, its image is built from ours, its roles are enough."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from tests.project.deployed import DEPLOY, KUBECTL, one, rendered
from tests.project.test_deploy_rbac import Right

from vipwire import __version__
from vipwire.kube.access.access import Access, load_access
from vipwire.kube.client import ApiSource
from vipwire.kube.events import EventRecorder, Subject
from vipwire.model.names import ObjectName
from vipwire.model.net import Family, parse_address
from vipwire.watched_objects.event import Upserted
from vipwire_l7.ingress.cli import ingress
from vipwire_l7.ingress.command import Flags, read_options
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.ingress.served import IngressStatuses
from vipwire_l7.plan.destinations import Destinations
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.election import LeaseKeeper
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.status_writer import StatusWriter
from vipwire_l7.run.surroundings import DestinationFollower
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import BackendEndpoint, BackendSlice, Ingress, Usability
from vipwire_l7.watch.snapshot import Snapshot
from vipwire_up.api.serving.authorization import Role, User, may_use

pytestmark = pytest.mark.slow

FOLDER = DEPLOY / "ingress"
WEB = ObjectName("default", "web")
_PATH = re.compile(r"/(?:api/v1|apis/([^/]+)/v1[a-z0-9]*)(?:/namespaces/[^/]+)?/([a-z]+)(/[^/]+)?(/status)?")
_DISCOVERY = re.compile(r"/apis/[^/]+/[^/]+")
"""What every account may ask: which resources a version has."""


def objects() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [each for name in kustomization["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())]


def container() -> dict[str, Any]:
    (found,) = one(objects(), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_metrics_are_for_this_machine_alone_unless_somebody_says_otherwise() -> None:
    (option,) = (each for each in ingress.params if each.name == "metrics_bind_address")
    assert option.default == "127.0.0.1:10254"
    assert "--metrics-bind-address=127.0.0.1:10254" in container()["args"]


@pytest.mark.skipif(KUBECTL is None, reason="renders with kubectl, which is not installed")
def test_kubectl_renders_it_with_the_image_of_every_house() -> None:
    made = rendered(FOLDER)
    assert sorted(each["kind"] for each in made) == sorted(each["kind"] for each in objects())
    (found,) = one(made, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert found["image"] == f"registry.example/vipwire:{__version__}-all"


def test_the_flags_are_taken() -> None:
    given = container()
    assert given["command"] == ["vipwire", "ingress"]
    with ingress.make_context("ingress", list(given["args"])) as context:
        options = read_options(msgspec.convert(context.params, Flags))
    (mount, _), (_, volume) = (
        given["volumeMounts"],
        one(objects(), "DaemonSet")["spec"]["template"]["spec"]["volumes"],
    )
    assert (str(options.folder), mount["name"]) == (mount["mountPath"], volume["name"])
    ports = {each["name"]: each["containerPort"] for each in given["ports"]}
    assert (options.layout.http, options.layout.https) == (f"*:{ports['http']}", f"*:{ports['https']}")
    assert options.metrics.endswith(f":{ports['metrics']}")
    assert options.lease == ObjectName("kube-system", one(objects(), "Role")["metadata"]["name"])
    assert options.setting.controller == one(objects(), "IngressClass")["spec"]["controller"]
    assert options.setting.class_name == one(objects(), "IngressClass")["metadata"]["name"]
    assert options.grace < one(objects(), "DaemonSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


class Recorder:
    """An API server without objects that takes every write, and notes what each request needs the right for."""

    def __init__(self) -> None:
        self.rights: set[Right] = set()
        self._lease: dict[str, Any] = {}
        self._more = asyncio.Condition()

    async def until(self, *wanted: Right) -> None:
        async with self._more:
            await self._more.wait_for(lambda: self.rights.issuperset(wanted))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if _DISCOVERY.fullmatch(request.path):
            return web.json_response({"kind": "APIResourceList", "resources": []})
        match = _PATH.fullmatch(request.path)
        assert match is not None, request.path
        watching = request.query.get("watch") in ("1", "true")
        reading = "get" if match[3] else "watch" if watching else "list"
        verb = {"GET": reading, "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[
            request.method
        ]
        async with self._more:
            self.rights.add((match[1] or "", f"{match[2]}{match[4] or ''}", verb))
            self._more.notify_all()
        if watching:
            await asyncio.sleep(3600)
        if match[2] == "leases":
            return await self._answer_lease(request)
        if request.method == "GET":
            return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})
        return web.json_response(await request.json())

    async def _answer_lease(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self._lease = await request.json()
            self._lease["metadata"]["resourceVersion"] = "1"
        return web.json_response(self._lease) if self._lease else web.Response(status=404)


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[Recorder, Access]]:
    """Run a recorder."""
    recorder = Recorder()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield recorder, load_access(None, f"http://127.0.0.1:{runner.addresses[0][1]}", environ={})
    finally:
        await runner.cleanup()


def rights_of(rules: Iterable[dict[str, Any]]) -> set[Right]:
    """Return what the rules of roles allow."""
    return {
        right for rule in rules for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


async def reading_pod(access: Access) -> None:
    """Read the Pod that an endpoint at an address of the API server's machine is to be."""
    snapshot, destinations, address = Snapshot(), Destinations(), parse_address("192.0.2.1")
    endpoint = BackendEndpoint(address, Usability.READY, "agent")
    snapshot.apply(Upserted(BackendSlice(WEB, WEB, Family.IPV4, {"": 80}, (endpoint,)), ()))
    with contextlib.closing(DestinationFollower(destinations, (), snapshot.touch_services, access)) as follower:
        destinations.known.servers = frozenset((address,))
        destinations.review_services(snapshot, (WEB,))
        await follower.query_new_names()


async def asked() -> set[Right]:
    """Run all that asks an API server, with everything happening that makes it ask differently."""
    async with recording() as (recorder, access):
        await _ask(recorder, access)
        return recorder.rights


async def _ask(recorder: Recorder, access: Access) -> None:
    keeper, events, snapshot = LeaseKeeper(access, WEB, "me"), EventRecorder(access, "me", qps=0), Snapshot()
    snapshot.apply(Upserted(Ingress(WEB, "vipwire"), ()))
    planner = IngressPlanner(Setting())
    planner.update(snapshot, 0.0)
    statuses = IngressStatuses(planner, snapshot, lambda: ("192.0.2.1",))
    writer = StatusWriter(access, RESOURCES, statuses, snapshot, keeper.is_leading, Rate(1_000))
    work = (
        ApiSource(access, RESOURCES.values()).run(Snapshot().apply),
        keeper.run(),
        events.run(),
        writer.run(),
        reading_pod(access),
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        for _ in range(2):  # an Event that is made, and one that is counted up
            events.record(Subject("Ingress", "web", "default", "u-1", "networking.k8s.io/v1"), "Sync", "it is ours")
            await events.wait_until_sent()
        await recorder.until(
            *(("networking.k8s.io", kind, "watch") for kind in ("ingresses", "ingressclasses")),
            *(("", kind, "watch") for kind in ("services", "secrets")),
            ("", "pods", "get"),
            ("discovery.k8s.io", "endpointslices", "watch"),
            ("networking.k8s.io", "ingresses/status", "patch"),
            ("coordination.k8s.io", "leases", "update"),
        )
        for task in tasks:
            task.cancel()


async def test_the_roles_allow_what_is_asked_for_and_only_that() -> None:
    allowed = rights_of(rule for role in objects() for rule in role.get("rules", ()))
    async with asyncio.timeout(60):
        rights = await asked()
    assert rights == allowed
    ours = User("vipwire-ingress", (Role.INGRESS.value,))
    assert [right for right in rights if not may_use(ours, right[2], right[1])] == [], "and so does a `vipwire up`"
    assert not may_use(ours, "list", "pods")
    assert not may_use(ours, "create", "secrets")
    assert not may_use(ours, "update", "ingresses")
    assert not may_use(User("viewer", (Role.VIEW.value,)), "list", "secrets")


def test_the_roles_are_bound_to_the_account_that_the_pod_has() -> None:
    account = one(objects(), "ServiceAccount")["metadata"]
    assert one(objects(), "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
    for role, binding in (("ClusterRole", "ClusterRoleBinding"), ("Role", "RoleBinding")):
        bound = one(objects(), binding)
        assert bound["roleRef"]["name"] == one(objects(), role)["metadata"]["name"]
        assert bound["subjects"] == [
            {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        ]
