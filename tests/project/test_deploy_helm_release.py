"""The chart as a release on `vipwire up`: install, upgrade, a refused upgrade, rollback, uninstall, by a real helm.

`up` runs no Pods and has fixed roles: the server in front of it keeps DaemonSets, roles and ServiceAccounts, and
passes on the rest. `make release-test` names the packed chart of a release by VIPWIRE_TEST_CHART.
"""

import asyncio
import csv
import json
import os
import platform
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from tests.project.test_deploy_helm import CHART, HELM
from tests.up.unit.cluster_process import up

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the helm that is there is for amd64"),
]
KINDS = {
    "apps/v1": {"daemonsets": "DaemonSet"},
    "rbac.authorization.k8s.io/v1": {
        "clusterroles": "ClusterRole",
        "clusterrolebindings": "ClusterRoleBinding",
        "roles": "Role",
        "rolebindings": "RoleBinding",
    },
}
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
CLUSTER_WIDE = ("clusterroles", "clusterrolebindings")


class Front:
    """Keeps objects of KINDS by path; everything else is the API server's."""

    def __init__(self, kubeconfig: Path) -> None:
        self._server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        self._tls = ssl.create_default_context(cadata=(kubeconfig.parent / "pki/ca.crt").read_text())
        with (kubeconfig.parent / "tokens.csv").open(newline="") as file:
            token = next(row[0] for row in csv.reader(file) if row[1] == "kubernetes-admin")
        self._headers = {"Authorization": f"Bearer {token}"}
        self.objects: dict[str, Any] = {}
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._client:
            app = web.Application(client_max_size=64 << 20)
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        for version, kinds in KINDS.items():
            if request.path == f"/apis/{version}":
                return web.json_response({"groupVersion": version, "resources": _resources(kinds)})
            if request.path.startswith(f"/apis/{version}/"):
                return await self._own(request)
        if "serviceaccounts" in request.path.split("/"):
            return await self._own(request)
        kept = ("Content-Type", *["Accept"] * request.path.startswith("/openapi"))
        headers = {"Accept": "application/json"} | {
            name: request.headers[name] for name in kept if name in request.headers
        }
        async with self._client.request(
            request.method,
            f"{self._server}{request.raw_path}",
            data=await request.read(),
            headers=headers | self._headers,
            ssl=self._tls,
        ) as answer:
            body = await answer.read()
            if request.path == "/apis":
                found = json.loads(body)
                found["groups"] += [_group(version) for version in KINDS]
                body = json.dumps(found).encode()
            if request.path == "/api/v1":
                found = json.loads(body)
                found["resources"] += _resources({"serviceaccounts": "ServiceAccount"})
                body = json.dumps(found).encode()
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    async def _own(self, request: web.Request) -> web.Response:
        text = await request.read()
        path = request.path
        if request.method == "POST":
            made = yaml.safe_load(text)
            path = f"{path}/{made['metadata']['name']}"
        elif request.method in ("PUT", "PATCH"):
            made = yaml.safe_load(text)
            assert request.method == "PUT" or request.content_type == "application/apply-patch+yaml"
        elif path not in self.objects:
            return web.json_response(NOT_FOUND, status=404)
        elif request.method == "DELETE":
            return web.json_response(self.objects.pop(path))
        else:
            made = self.objects[path]
        self.objects[path] = made
        return web.json_response(made, status=201 if request.method == "POST" else 200)

    def daemonsets(self) -> dict[str, Any]:
        found = (each for path, each in self.objects.items() if "/daemonsets/" in path)
        return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in found}


def _group(version: str) -> dict[str, Any]:
    each = {"groupVersion": version, "version": version.rpartition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [each], "preferredVersion": each}


def _resources(kinds: dict[str, str]) -> list[dict[str, Any]]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return [
        {"name": name, "singularName": "", "namespaced": name not in CLUSTER_WIDE, "kind": kind, "verbs": verbs}
        for name, kind in kinds.items()
    ]


async def helm(front: Front, folder: Path, *arguments: str, fails: bool = False) -> str:
    command = [str(HELM), *arguments, f"--kube-apiserver={front.url}", "--namespace=kube-system"]
    environ = {"HOME": str(folder), "PATH": "/usr/bin"}
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = (await process.communicate())[0].decode()
    assert bool(process.returncode) == fails, text
    return text


async def test_a_release_is_upgraded_rolled_back_and_removed(tmp_path: Path) -> None:
    chart = os.environ.get("VIPWIRE_TEST_CHART", str(CHART))
    with up(tmp_path / "cluster"):
        front = Front(tmp_path / "cluster/admin.kubeconfig")
        async with front.listening():
            values = ("--set=config.create=true", "--set=config.apiServer=https://10.0.0.1:6443")
            await helm(front, tmp_path, "install", "vipwire", chart, *values)
            first = front.daemonsets()
            assert list(first) == ["vipwire"]
            on = ("--reuse-values", "--set=mode=iptables", "--set=ingress.enabled=true", "--set=image.tag=0.3.0")
            await helm(front, tmp_path, "upgrade", "vipwire", chart, *on)
            second = front.daemonsets()
            assert sorted(second) == ["vipwire", "vipwire-ingress"]
            assert second["vipwire"]["containers"][0]["image"] == "registry.example/vipwire:0.3.0"
            for pods in (first, second):
                state = {each["name"]: each for each in pods["vipwire"]["volumes"]}["state"]
                assert state["hostPath"]["path"] == "/run/vipwire", "orders of `vipwire drain` outlive the Pod"
            said = await helm(front, tmp_path, "upgrade", "vipwire", chart, "--set=mode=ebfp", fails=True)
            assert "mode" in said
            assert front.daemonsets() == second
            await helm(front, tmp_path, "rollback", "vipwire", "1")
            assert front.daemonsets() == first
            await helm(front, tmp_path, "uninstall", "vipwire")
            assert not front.objects
