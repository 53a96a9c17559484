"""The ClusterRole allows every request of a running vipwire, and nothing that it does not ask for."""

import asyncio
import re
from functools import cache

import pytest
from tests.fakes.apiserver import FakeApiServer, Seen
from tests.fakes.apistore import ApiStore
from tests.fakes.event_log import EventLog
from tests.fakes.objects import node, service, service_cidr, slice_of
from tests.project.deployed import OVERLAYS, one, recorded

from vipwire.kube.access.access import load_access
from vipwire.kube.client import ApiSource
from vipwire.kube.events import EventRecorder, Subject
from vipwire.kube.proxied import proxy_resources
from vipwire.watched_objects.event import Kind

NODE = "node-0"
PLURALS = ("services", "endpointslices", "nodes", "servicecidrs")
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/v1)(?:/namespaces/[^/]+)?/(?P<resource>[a-z]+)(?P<name>/[^/]+)?"
)
Right = tuple[str, str, str]
"""API group, resource, verb."""


def right_of(seen: Seen) -> Right:
    """Name what an API server would ask its authorizer for (Kubernetes: "Authorization Overview", request verbs)."""
    match = _PATH.fullmatch(seen.path)
    assert match is not None, seen.path
    reading = "get" if match["name"] else "watch" if seen.query.get("watch") in ("1", "true") else "list"
    verb = {"GET": reading, "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[seen.method]
    return match["group"] or "", match["resource"], verb


@cache
def requests() -> frozenset[Right]:
    """Run a source and a recorder against a server, with everything happening that makes them ask differently."""

    async def run() -> list[Seen]:
        async with FakeApiServer(_filled()) as server:
            access, log = load_access(None, server.url, environ={}), EventLog()
            source = ApiSource(access, proxy_resources(NODE), chance=log.chance)
            recorder = EventRecorder(access, NODE, qps=0)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(source.run(log)), group.create_task(recorder.run())]
                await log.until(lambda: log.listed() == set(Kind))
                await server.until(lambda: all(server.watching(plural) for plural in PLURALS))
                # Gone: everything is listed again.
                for plural in PLURALS:
                    server.send_error(plural, 410, "Expired")
                await server.until(lambda: all(len(server.requests(plural, watch=True)) > 1 for plural in PLURALS))
                # Said twice: an Event that is made, and one that is counted up.
                for _ in range(2):
                    recorder.record(Subject("Node", NODE, uid=NODE), "Starting", "vipwire starts")
                    recorder.record(Subject("Service", "web", "shop", "u-1"), "Conflict", "10.0.0.1:80")
                    await recorder.wait_until_sent()
                for task in tasks:
                    task.cancel()
            return server.seen

    return frozenset(map(right_of, asyncio.run(run())))


def _filled() -> ApiStore:
    store = ApiStore()
    store.put("services", service(1))
    store.put("endpointslices", slice_of(1))
    store.put("nodes", node(NODE))
    store.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/12"))
    return store


def allowed(overlay: str) -> set[Right]:
    role = one(recorded(overlay), "ClusterRole")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_role_allows_what_is_asked_for_and_only_that(overlay: str) -> None:
    assert allowed(overlay) == requests()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_role_is_bound_to_the_account_that_the_pod_has(overlay: str) -> None:
    objects = recorded(overlay)
    account, role, binding = (one(objects, kind) for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"))
    daemon_set = one(objects, "DaemonSet")
    assert daemon_set["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert daemon_set["metadata"]["namespace"] == account["metadata"]["namespace"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": account["metadata"]["namespace"]}
    ]
