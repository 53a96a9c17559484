"""A folder of manifests with files that are none: each is told, and all others are served, by every command."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import yaml
from tests.fakes.daemon import NODE, PATIENCE, Daemon, Record, echo, leads_to, reached, service_of, slice_for, stage
from tests.fakes.hostile_files import NAMES, mend, place_of, plant
from tests.fakes.own_network import own_network, run
from tests.fakes.waiting import until
from tests.up.unit.dns_process import running

pytestmark = pytest.mark.kernel
INVALID = "invalid object"


def objects(name: str, cluster_ip: str, pod: str) -> tuple[Record, Record]:
    service = {"apiVersion": "v1", "kind": "Service", **service_of(name, cluster_ip)}
    return service, {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **slice_for(name, pod)}


def manifest(name: str, cluster_ip: str, pod: str) -> str:
    return yaml.safe_dump_all(objects(name, cluster_ip, pod))


def told(daemon: Daemon) -> dict[str, str]:
    """Map the files that the proxy has named to their places."""
    return {str(record["object"]): str(record["field"]) for record in daemon.said(INVALID)}


def assert_all_told(found: dict[str, str], folder: Path) -> None:
    for name in NAMES:
        place = found[f"{folder}/{name}".encode(errors="replace").decode()]
        assert place.startswith(place_of(name)), name
        assert bool(place) == bool(place_of(name)), name


@pytest.mark.parametrize("when", ["there at the start", "added"])
async def test_each_hostile_file_is_told_and_the_proxy_serves_all_others(tmp_path: Path, when: str) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "a-good.yaml").write_text(manifest("one", "10.96.0.1", "10.244.0.1"))
    (folder / "z-good.yaml").write_text(manifest("two", "10.96.0.2", "10.244.0.2"))
    if when == "there at the start":
        plant(folder)

    async def story(daemon: Daemon) -> None:
        await daemon.heard("synced", ip_family="IPv4")
        if when == "added":
            plant(folder)
        await daemon.until(lambda: len(told(daemon)) >= len(NAMES))
        assert_all_told(told(daemon), folder)
        await daemon.heard("cannot read objects; the rules stay")
        assert [await reached(f"10.96.0.{number}") for number in (1, 2)] == ["10.244.0.1", "10.244.0.2"]
        (folder / "z-good.yaml").write_text(manifest("two", "10.96.0.2", "10.244.0.3"))  # a change of another file
        await leads_to("10.96.0.2", "10.244.0.3")
        for number, name in enumerate(NAMES):  # each is mended
            mend(folder, name, *objects(f"mended-{number}", f"10.96.1.{number}", "10.244.0.4"))
        for number in range(len(NAMES)):
            await leads_to(f"10.96.1.{number}", "10.244.0.4")
        await daemon.heard("reading objects works again")
        broken = partial((folder / NAMES[0]).write_text, "{a: b}: c\n")  # again: its last valid objects stay
        await daemon.again(broken, "cannot read objects; the rules stay")
        assert await reached("10.96.1.0") == "10.244.0.4"
        (folder / NAMES[0]).unlink()  # removed: they go
        await daemon.until(lambda: any(record["removed"] for record in daemon.said("synced", ip_family="IPv4")))
        assert await reached("10.96.0.1") == "10.244.0.1"
        assert "Traceback" not in daemon.log()
        assert await daemon.terminate() == 0

    with stage():
        async with echo(), Daemon(f"--manifests={folder}", f"--hostname-override={NODE}") as daemon:
            await story(daemon)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "manifests"
    made.mkdir()
    plant(made)
    (made / "good.yaml").write_text(manifest("one", "10.96.0.1", "10.244.0.1"))
    with own_network():
        yield made


def vipwire(*words: str, **more: object) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "vipwire", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", ["plan", "status", "diff", "explain"])
def test_commands_that_look_show_the_good_files_and_name_each_other(folder: Path, command: str) -> None:
    flags = (f"--manifests={folder}", f"--state-dir={folder}/state", f"--hostname-override={NODE}")
    done = vipwire(command, *flags, *(["--from=10.244.0.1", "10.96.0.1:80"] if command == "explain" else []))
    assert "Traceback" not in done.stderr
    assert "10.96.0.1" in done.stdout
    said = done.stdout + done.stderr
    for name in NAMES:
        assert (name if name.isprintable() else ".yaml") in said, name
        assert place_of(name) in said, name


@pytest.mark.parametrize("command", [("ingress", "convert"), ("ingress", "render"), ("gateway", "render")])
def test_conversion_and_rendering_go_by_the_good_files(folder: Path, command: tuple[str, ...]) -> None:
    rules = [{"host": "a.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": BACKEND}]}}]
    ingress = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web"}}
    spec = {"ingressClassName": "vipwire", "rules": rules}
    (folder / "ingress.yaml").write_text(yaml.safe_dump({**ingress, "spec": spec}))
    more = () if command[1] == "convert" else ("--run-dir", f"{folder}/run")
    done = vipwire(*command, f"--manifests={folder}", *more, *(["--ingress"] if command[0] == "gateway" else []))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert ("a.example.com" if command[1] == "convert" else "server s1 10.244.0.1:8080") in done.stdout
    for name in NAMES:
        assert (name if name.isprintable() else ".yaml") in done.stderr, name


BACKEND = {"service": {"name": "one", "port": {"number": 80}}}


def test_a_pipe_that_the_operator_names_is_read_to_its_end(folder: Path) -> None:
    flags = ("--manifests=/dev/stdin", f"--state-dir={folder}/state", f"--hostname-override={NODE}", "-o", "json")
    done = vipwire("status", *flags, input=manifest("one", "10.96.0.9", "10.244.0.1"))
    assert "10.96.0.9" in json.dumps(json.loads(done.stdout))


GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vipwire}
spec: {controllerName: vipwire.io/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec: {gatewayClassName: vipwire, listeners: [{name: http, port: 8000, protocol: HTTP}]}
"""
ROUTES = {
    "gateway": """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: edge}], hostnames: [HOST], rules: [{backendRefs: [{name: one, port: 80}]}]}
""",
    "ingress": """
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: vipwire
  rules:
  - host: HOST
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: one, port: {number: 80}}}}]}
""",
}


@pytest.mark.parametrize("command", ["ingress", "gateway"])
async def test_haproxy_serves_what_changes_beside_hostile_files(folder: Path, command: str) -> None:
    run("ip address add 10.244.0.1/32 dev lo")
    if command == "gateway":
        (folder / "gateway.yaml").write_text(GATEWAY)
    bind = ("--http", "127.0.0.1:8000", "--https", "") if command == "ingress" else ("--bind", "127.0.0.1")
    allowed = "--allow-target-range=10.244.0.0/24"  # the Pod has an address of this node
    common = ("--run-dir", str(folder.parent / "run"), "--threads=1", "--grace=0.2")
    flags = (f"--manifests={folder}", *common, allowed, *bind)

    def serve(host: str) -> None:
        (folder / "route.yaml").write_text(ROUTES[command].replace("HOST", host))

    async def reached_through(host: str) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get("http://127.0.0.1:8000/", headers={"Host": host}) as response:
                        if response.status == 502:  # the Pod answers, though not in HTTP
                            return
                await asyncio.sleep(0.05)

    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "vipwire", command, *flags, stderr=-1)
    try:
        async with echo():
            serve("a.example.com")
            await reached_through("a.example.com")
            serve("b.example.com")
            await reached_through("b.example.com")
    finally:
        process.terminate()
        _, said = await process.communicate()
    assert b"Traceback" not in said
    assert process.returncode == 0
    assert all((name if name.isprintable() else ".yaml").encode() in said for name in NAMES)


def test_dns_answers_beside_hostile_files_and_goes_on_when_others_change(folder: Path) -> None:
    with running(folder) as server:
        assert server.dig("one.default.svc.cluster.local", "A").answers == ("A 10.96.0.1",)
        (folder / "later.yaml").write_text(manifest("two", "10.96.0.2", "10.244.0.1"))
        until(lambda: server.dig("two.default.svc.cluster.local", "A").answers == ("A 10.96.0.2",))
