"""`vipwire ingress` as a process: manifests and an API server, its status and Events, deaths, metrics, rendering."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
import pytest
import yaml
from tests.fakes.ports import free_port
from tests.l7.configurations import check_configuration
from tests.l7.ingress.site import backend, endpoint, endpoint_slice, ingress, rule, service
from tests.project.deployed import DEPLOY
from tests.up.unit.cluster_process import CLIENTS, Kubectl, up

from vipwire.errors import ConfigError
from vipwire_l7.ingress import cli, command

COMMAND = (sys.executable, "-m", "vipwire", "ingress")
POD_TEXT = "from a pod"
TRIAL = ("--allow-target-range", "127.0.0.0/8")  # Pods are at 127.0.0.1


class Daemon:
    """A process, where it listens, and what it has said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.http, self.metrics = folder, free_port(), free_port()
        self.log = folder / "log"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, *flags: str) -> None:
        common = ("--run-dir", str(self.folder / "run"), "--http", f"127.0.0.1:{self.http}", "--https", "")
        more = (
            "--metrics-bind-address",
            f"127.0.0.1:{self.metrics}",
            "--grace",
            "0.2",
            "--threads",
            "1",
            *TRIAL,
            *flags,
        )
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*COMMAND, *common, *more, stdout=log, stderr=log)

    async def kill(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()

    @property
    def masters(self) -> set[int]:
        """Find the HAProxys of this test that are no other's child."""
        command = ("pgrep", "-f", f"^{shutil.which('haproxy')} -W .*{self.folder}/")
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        pids = {int(word) for word in found.stdout.split()}
        return {pid for pid in pids if parent_of(pid) not in {0, *pids}}

    async def ask(self, host: str, path: str = "/", port: int = 0) -> tuple[int, str]:
        url = f"http://127.0.0.1:{port or self.http}{path}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(url, headers={"Host": host}, allow_redirects=False) as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientError as error:
            return 0, str(error)

    async def visit(self, host: str, cookie: str = "") -> tuple[str, str]:
        """Ask with a cookie; give the Pod's answer and the cookie to come back with."""
        headers = {"Host": host} | ({"Cookie": cookie} if cookie else {})
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.http}/", headers=headers) as response,
        ):
            return await response.text(), response.headers.get("Set-Cookie", cookie).partition(";")[0]

    async def until(self, fact: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(90):
                while not await fact():  # noqa: ASYNC110  # of another process nobody is told
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(self.log.read_text()) from None

    async def until_code(self, host: str, code: int, path: str = "/") -> None:
        async def fact() -> bool:
            return (await self.ask(host, path))[0] == code

        await self.until(fact)


def parent_of(pid: int) -> int:
    """Tell a process's parent; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


@contextlib.asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[Daemon]:
    made = Daemon(folder)
    try:
        yield made
    finally:
        if made.process is not None and made.process.returncode is None:
            await made.kill(signal.SIGTERM)
        for left in made.masters:
            os.kill(left, signal.SIGTERM)


@contextlib.asynccontextmanager
async def pod(address: str = "127.0.0.1", port: int = 0, text: str = POD_TEXT) -> AsyncIterator[int]:
    """Run a Pod; give its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, address, port)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def write(folder: Path, *objects: dict[str, Any]) -> None:
    """Write manifests as an editor does, in one step."""
    (folder / "objects.new").write_text(yaml.safe_dump_all(objects))
    (folder / "objects.new").rename(folder / "objects.yaml")


def objects(port: int) -> tuple[dict[str, Any], ...]:
    return service("web"), endpoint_slice("web", port, [endpoint("127.0.0.1")])


async def test_from_manifests_through_deaths_of_either_process(tmp_path: Path) -> None:
    async with asyncio.timeout(150), daemon(tmp_path) as here, pod() as port:
        manifests = tmp_path / "manifests"
        manifests.mkdir()
        write(manifests, *objects(port), ingress("web", rule("a.example.com", "/")))
        await here.start("--manifests", str(manifests))
        await here.until_code("a.example.com", 200)

        async def healthy() -> bool:
            return (await here.ask("x", "/healthz", here.metrics)) == (200, "ok")

        await here.until(healthy)
        write(manifests, *objects(port), ingress("web", rule("a.example.com", "/"), rule("b.example.com", "/")))
        await here.until_code("b.example.com", 200)

        (master,) = here.masters
        await here.kill(signal.SIGKILL)
        assert (await here.ask("b.example.com"))[0] == 200  # HAProxy goes on
        write(manifests, *objects(port), ingress("web", rule("c.example.com", "/")))
        await here.start("--manifests", str(manifests))
        await here.until_code("c.example.com", 200)
        await here.until_code("b.example.com", 404)
        assert here.masters == {master}  # and was taken over

        os.kill(master, signal.SIGKILL)
        await here.until_code("c.example.com", 200)
        labels = f'endpoint="127.0.0.1:{port}",namespace="default",pod="pod-127.0.0.1",port="80",service="web"'

        async def counted() -> bool:  # HAProxy answers a moment before vipwire has found its socket
            metrics = (await here.ask("x", "/metrics", here.metrics))[1]
            assert "vipwire_ingress_ingresses 1.0" in metrics
            return f"vipwire_ingress_sessions_total{{{labels}}}" in metrics

        await here.until(counted)
        assert await here.kill(signal.SIGTERM) == 0
        assert here.masters == set()


async def test_cookies_bind_through_restarts_of_vipwire_and_of_both_and_scaling(tmp_path: Path) -> None:
    manifests, port = tmp_path / "manifests", free_port()
    manifests.mkdir()
    cookies: dict[str, str] = {}

    def serve(*addresses: str, also: str) -> None:
        rules = rule("a.example.com", "/"), rule(also, "/")
        made = ingress("web", *rules, annotations={"vipwire.io/affinity": "cookie"})
        write(manifests, service("web"), endpoint_slice("web", port, [endpoint(each) for each in addresses]), made)

    async def homes(here: Daemon) -> dict[str, str]:
        return {pod_: (await here.visit("a.example.com", cookie))[0] for pod_, cookie in cookies.items()}

    async with asyncio.timeout(150), contextlib.AsyncExitStack() as stack:
        here = await stack.enter_async_context(daemon(tmp_path))
        for number in range(11, 16):
            await stack.enter_async_context(pod(f"127.0.0.{number}", port, f"127.0.0.{number}"))
        serve("127.0.0.12", "127.0.0.13", also="first.example.com")
        await here.start("--manifests", str(manifests))
        await here.until_code("first.example.com", 200)
        while len(cookies) < 2:
            home, cookie = await here.visit("a.example.com")
            cookies[home] = cookie
        bound = {home: home for home in cookies}
        assert await homes(here) == bound

        await here.kill(signal.SIGKILL)
        assert await homes(here) == bound
        serve("127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14", "127.0.0.15", also="second.example.com")
        await here.start("--manifests", str(manifests))
        await here.until_code("second.example.com", 200)
        assert await homes(here) == bound

        assert await here.kill(signal.SIGTERM) == 0
        assert here.masters == set()
        serve("127.0.0.13", "127.0.0.12", "127.0.0.11", also="third.example.com")
        await here.start("--manifests", str(manifests))
        await here.until_code("third.example.com", 200)
        assert await homes(here) == bound


def test_with_an_api_server_status_and_events_are_written(tmp_path: Path) -> None:
    redirect = {"vipwire.io/force-ssl-redirect": "true"}  # an answer without a Pod
    made = (
        service("web"),
        service("edge", externalIPs=["192.0.2.1"]),
        ingress("web", rule("a.example.com", "/"), annotations=redirect),
        ingress("bad", rule("a.example.com", "/z"), rule("b.example.com", "/", service="none")),
        ingress("theirs", defaultBackend=backend("web"), ingressClassName="nginx"),
        ingress("some", rule("some.example.com", "/"), annotations=redirect | {"vipwire.io/retries": "many"}),
    )

    async def scenario(kubectl: Kubectl, config: Path) -> None:
        async with asyncio.timeout(150), daemon(tmp_path) as here:
            await here.start("--kubeconfig", str(config), "--publish-service", "default/edge")
            await here.until_code("a.example.com", 308)
            await here.until_code("b.example.com", 503)

            async def told(*command: str) -> str:
                return await asyncio.to_thread(kubectl, *command)

            async def status_is_there() -> bool:
                return "192.0.2.1" in await told("get", "ingress", "web")

            async def status_follows() -> bool:
                return "192.0.2.7" in await told("get", "ingress", "web")

            async def events_are_there() -> bool:
                events = await told("get", "events", "-o", "wide")
                return "the Service default/none does not exist" in events and "ingress/web" in events

            await here.until(status_is_there)
            await here.until(events_are_there)
            assert "192.0.2.1" not in await told("get", "ingress", "theirs")
            assert socket.gethostname() in await told("get", "lease", "vipwire-ingress", "-n", "kube-system")
            await told("patch", "service", "edge", "-p", '{"spec": {"externalIPs": ["192.0.2.7"]}}')
            await here.until(status_follows)
            await told("delete", "ingress", "bad")
            await here.until_code("b.example.com", 404)

            async def events_of(name: str) -> list[tuple[str, int]]:
                found = json.loads(await told("get", "events", "-o", "json"))["items"]
                about = (each for each in found if each["involvedObject"]["name"] == name)
                return sorted((each["reason"], each["count"]) for each in about)

            assert await events_of("some") == [("PartlyRejected", 1), ("Sync", 1)]
            (tmp_path / "2").mkdir()
            async with daemon(tmp_path / "2") as second:
                await second.start("--kubeconfig", str(config), "--publish-service", "default/edge")
                await second.until_code("a.example.com", 308)
                await told("annotate", "ingress", "some", "vipwire.io/retries=few", "--overwrite")

                async def is_reported() -> bool:
                    return ("PartlyRejected", 1) in (await events_of("some"))[1:]

                await here.until(is_reported)
                await asyncio.sleep(2)
                assert await events_of("some") == [("PartlyRejected", 1), ("PartlyRejected", 1), ("Sync", 1)]
                await here.kill(signal.SIGTERM)
                await told("annotate", "ingress", "some", "vipwire.io/retries=no", "--overwrite")

                async def is_reported_by_the_next() -> bool:
                    return len(await events_of("some")) > 3

                await second.until(is_reported_by_the_next)

    with up(tmp_path / "cluster"):
        config = tmp_path / "cluster" / "admin.kubeconfig"
        kubectl = Kubectl(CLIENTS[0], config, tmp_path)
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(made))
        known = kubectl("api-resources", "--no-headers", "-o", "name")
        deployed = yaml.safe_load_all(kubectl("kustomize", str(DEPLOY / "ingress")))
        taken = [each for each in deployed if each["kind"].lower() in known]
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(taken))
        assert "IngressClass" in {each["kind"] for each in taken}
        asyncio.run(scenario(kubectl, tmp_path / "cluster" / "ingress.kubeconfig"))  # its role is enough


def test_render_writes_what_haproxy_takes_and_tells_of_problems(tmp_path: Path) -> None:
    manifests, output = tmp_path / "manifests", tmp_path / "out"
    manifests.mkdir()
    far = service("far", type="ExternalName", externalName="far.example.net")
    rules = rule("a.example.com", "/"), rule("B!", "/"), rule("far.example.com", "/", service="far")
    write(manifests, *objects(8080), far, ingress("web", *rules))
    command = (*COMMAND, "render", "--manifests", str(manifests), "--run-dir", str(tmp_path / "run"), *TRIAL)
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "server s1 127.0.0.1:8080 weight 16 tcp-ut 15s\n" in printed.stdout
    assert "warning: Ingress default/web: spec.rules[1].host: 'B!' is no host" in printed.stderr
    unwritable = subprocess.run((*command, "--output-dir", "/proc/1/no"), capture_output=True, text=True, check=False)
    assert (unwritable.returncode, unwritable.stderr) == (
        1,
        "error: --output-dir /proc/1/no: No such file or directory\n",
    )
    ipv6 = ("--http", "[::1]:8000", "--resolver", "[::1]:53")
    subprocess.run((*command, *ipv6, "--output-dir", str(output)), capture_output=True, check=True, timeout=60)
    check_configuration(output)
    assert "a.example.com/ default:web:80\n" in (output / "prefixes.map").read_text()
    assert (output / "default.pem").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--http", "80"), r"--http: '80' is no address \(allowed: \*:80"),
        (("--http", "", "--https", ""), "there is nothing to serve"),
        (("--resolver", "x"), "--resolver: 'x' is no address"),
        (("--cookie-key-file", "/dev/null"), "--cookie-key-file /dev/null: is empty"),
        (("--cookie-key-file", "/nowhere"), "--cookie-key-file /nowhere: cannot be read"),
        (("--lease", "x"), "--lease: 'x' is no NAMESPACE/NAME"),
        (("--publish-service", "a/b", "--publish-address", "192.0.2.1"), "give one of them"),
    ],
)
def test_bad_flags_are_told_of(flags: tuple[str, ...], told: str) -> None:
    with cli.ingress.make_context("ingress", list(flags)) as context, pytest.raises(ConfigError, match=told):
        command.read_options(msgspec.convert(context.params, command.Flags))


def test_a_cookie_key_comes_from_a_file_and_from_no_command_line(tmp_path: Path) -> None:
    (key := tmp_path / "key").write_text("a-secret\n")
    with cli.ingress.make_context("ingress", ["--cookie-key-file", str(key)]) as context:
        assert command.read_options(msgspec.convert(context.params, command.Flags)).layout.cookie_key == "a-secret"
    with pytest.raises(click.UsageError, match="--cookie-key-file"):
        cli.ingress.make_context("ingress", ["--cookie-key", "a-secret"])


def test_what_flags_name_and_is_not_there_is_told_of(tmp_path: Path) -> None:
    for flags, told in (
        (("--manifests", str(tmp_path / "none")), "none does not exist"),
        (("--manifests", str(tmp_path), "--haproxy", "no-such-haproxy"), "no-such-haproxy is not installed"),
        (("--manifests", str(tmp_path), "--default-certificate", "/dev/null"), "--default-certificate /dev/null"),
    ):
        command = (*COMMAND, "--run-dir", str(tmp_path / "run"), *flags)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_port_that_is_taken_is_told_of(tmp_path: Path) -> None:
    async with asyncio.timeout(100), daemon(tmp_path) as here, pod() as port:
        here.http = port
        (tmp_path / "manifests").mkdir()
        await here.start("--manifests", str(tmp_path / "manifests"))

        async def told() -> bool:
            return "cannot bind socket" in here.log.read_text()

        await here.until(told)
