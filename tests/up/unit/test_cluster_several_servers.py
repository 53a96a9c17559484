"""Several API servers over one etcd: any may be asked, nothing is given twice, controllers run once."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_process import ALONE, VIPWIRE
from tests.up.unit.cluster_process import up as up_process
from tests.up.unit.etcd_here import Etcd, members
from tests.up.unit.store_here import etcd_store, now, prefix, settings
from tests.up.unit.up_here import Up, up

from vipwire.errors import raise_ungrouped
from vipwire.kube.access.access import load_access
from vipwire.kube.errors import ApiError
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS, NAMESPACES
from vipwire_up.api.objects.object import key_of
from vipwire_up.api.registry import FencedRegistry, Registry
from vipwire_up.controllers.allocation.ranges import port_range
from vipwire_up.controllers.election import Election
from vipwire_up.controllers.hooks import Ranges
from vipwire_up.controllers.own_services import OwnServices, build_api_service
from vipwire_up.joining.join import join_cluster
from vipwire_up.joining.manage import create_token, remove_machine
from vipwire_up.joining.membership import Folder
from vipwire_up.nodes.name_claim import NameTakenError, server_identity
from vipwire_up.nodes.objects import RemoteObjects

pytestmark = pytest.mark.slow

SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with members(3) as running:
        yield running


def folder_of(tmp_path: Path, number: int) -> Path:
    """Make the data directory of one more server: it has the cluster's authority."""
    folder = tmp_path / f"server{number}"
    if number and not folder.exists():
        (folder / "pki").mkdir(parents=True)
        for name in ("ca.crt", "ca.key"):
            shutil.copy(tmp_path / "server0/pki" / name, folder / "pki")
    return folder


@contextlib.asynccontextmanager
async def servers(etcd: Etcd, tmp_path: Path, count: int, **flags: Any) -> AsyncIterator[list[Up]]:
    """Run some, in this process."""
    place = prefix()
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for number in range(count):
            folder = folder_of(tmp_path, number)
            given = {"etcd": settings(etcd, place), "node": f"n{number}"} | flags
            found.append(await stack.enter_async_context(up(folder, **given)))
        yield found


async def test_any_server_shows_at_once_what_another_has_acknowledged(etcd: Etcd, tmp_path: Path) -> None:
    async with servers(etcd, tmp_path, 3) as found:
        for number in range(30):
            body = {"metadata": {"name": f"web-{number}"}, "spec": {"ports": [{"port": 80}]}}
            code, made = await found[number % 3].ask("POST", SERVICES, body)
            assert code == 201, made
            for asked in found:
                code, seen = await asked.ask("GET", f"{SERVICES}/web-{number}")
                assert (code, seen["spec"]["clusterIP"]) == (200, made["spec"]["clusterIP"])
        listed = [(await asked.ask("GET", SERVICES))[1]["items"] for asked in found]
        assert listed[0] == listed[1] == listed[2]
        await found[1].serves_others()


async def test_changes_of_one_object_at_several_servers_are_all_made(etcd: Etcd, tmp_path: Path) -> None:
    async with servers(etcd, tmp_path, 3) as found:
        maps = "/api/v1/namespaces/default/configmaps"
        code, _ = await found[0].ask("POST", maps, {"metadata": {"name": "one"}})
        assert code == 201

        async def change(number: int) -> None:
            patch = {"data": {f"k{number}": "v"}}
            code, answer = await found[number % 3].patch(f"{maps}/one", patch)
            assert code == 200, answer

        await asyncio.gather(*map(change, range(45)))
        _, one = await found[0].ask("GET", f"{maps}/one")
        assert len(one["data"]) == 45
        stale = one | {"data": {"stale": "v"}}
        code, _ = await found[1].ask("PUT", f"{maps}/one", stale)
        assert code == 200
        code, refused = await found[2].ask("PUT", f"{maps}/one", stale)
        assert (code, refused["reason"]) == (409, "Conflict")


async def test_no_address_and_no_node_port_is_given_twice_under_load_while_members_die(
    etcd: Etcd, tmp_path: Path
) -> None:
    ranges = Ranges(("10.96.0.0/24",), port_range(30000, 30120))
    async with servers(etcd, tmp_path, 3, ranges=ranges) as found:
        made: list[str] = []

        async def work(number: int) -> None:
            for turn in range(12):
                name = f"s-{number}-{turn}"
                body = {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
                code, answer = await found[number % 3].ask("POST", SERVICES, body)
                assert code in (201, 409, 500, 504), answer
                if code == 201:
                    made.append(name)
                if code == 201 and turn % 3 == 0:
                    await found[(number + 1) % 3].ask("DELETE", f"{SERVICES}/{name}")

        async def harm() -> None:
            for number in (0, 1):
                await asyncio.to_thread(etcd.stop, number)
                await asyncio.to_thread(etcd.start, number)
                await asyncio.to_thread(etcd.wait)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harm())
            for number in range(9):
                tasks.create_task(work(number))
        _, listed = await found[0].ask("GET", SERVICES)
        specs = [each["spec"] for each in listed["items"]]
        assert len(specs) > 20
        addresses = Counter(spec["clusterIP"] for spec in specs)
        ports = Counter(port["nodePort"] for spec in specs for port in spec["ports"] if "nodePort" in port)
        assert set(addresses.values()) | set(ports.values()) == {1}
        _, notes = await found[1].ask("GET", "/apis/networking.k8s.io/v1/ipaddresses")
        assert {each["metadata"]["name"] for each in notes["items"]} >= set(addresses)


async def test_a_stopped_server_that_goes_on_writes_nothing_as_the_elected_one(etcd: Etcd) -> None:
    async with asyncio.timeout(60):
        given = settings(etcd, prefix())
        async with etcd_store(given) as first, etcd_store(given) as second:
            registries = [Registry(store, now) for store in (first, second)]
            for name in ("default", "kube-system"):
                await registries[0].create(NAMESPACES, "", {"metadata": {"name": name}}, Options())
            led = asyncio.Event()
            fenced: list[FencedRegistry] = []

            async def lead(registry: FencedRegistry) -> None:
                fenced.append(registry)
                led.set()
                await asyncio.get_running_loop().create_future()

            async with asyncio.TaskGroup() as tasks:
                one = tasks.create_task(Election(registries[0], "one").run(lead))
                await led.wait()
                led.clear()
                two = tasks.create_task(Election(registries[1], "two").run(lead))
                one.cancel()
                await led.wait()  # at once: the first has given the Lease back
                await first.wait_for_newest()
                body = {"metadata": {"name": "late"}}
                for registry, holds in zip(fenced, (False, True), strict=True):
                    with contextlib.nullcontext() if holds else pytest.raises(ApiError, match="modified"):
                        await registry.create(CONFIG_MAPS, "default", body, Options())
                two.cancel()


async def test_a_killed_servers_controllers_run_elsewhere_in_seconds_and_its_endpoints_go(
    etcd: Etcd, tmp_path: Path
) -> None:
    place = prefix()
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    flags = ("--store", "etcd", "--etcd-servers", etcd.servers, "--etcd-prefix", place, "--node-name", "n0")
    with up_process(folder_of(tmp_path, 0), *flags) as killed:
        async with up(folder_of(tmp_path, 1), etcd=settings(etcd, place), node="n1") as left:
            _, found = await left.ask("GET", slices)
            assert {each["metadata"]["name"] for each in found["items"]} >= {"kubernetes-n0", "kubernetes-n1"}
            killed.kill()
            await left.serves_others()  # so its controllers run
            while "kubernetes-n0" in {each["metadata"]["name"] for each in found["items"]}:
                await asyncio.sleep(0.2)
                _, found = await left.ask("GET", slices)
            _, endpoints = await left.ask("GET", "/api/v1/namespaces/default/endpoints/kubernetes")
            assert endpoints["kind"] == "Endpoints"


async def test_a_server_that_is_killed_and_started_again_has_its_lease_at_once(etcd: Etcd, tmp_path: Path) -> None:
    place = prefix()
    where = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/vipwire-server-n1"

    async def scenario(left: Up, began: "subprocess.Popen[str]") -> None:
        _, before = await left.ask("GET", where)
        began.kill()
        with up_process(folder_of(tmp_path, 1), *flags):
            _, after = await left.ask("GET", where)
            while after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]:
                await asyncio.sleep(0.05)
                _, after = await left.ask("GET", where)
            assert after["spec"]["holderIdentity"] == before["spec"]["holderIdentity"] != ""
            assert after["spec"]["leaseTransitions"] == 0

    flags = ("--store", "etcd", "--etcd-servers", etcd.servers, "--etcd-prefix", place, "--node-name", "n1")
    async with asyncio.timeout(120):
        async with up(folder_of(tmp_path, 0), etcd=settings(etcd, place), node="n0") as left:
            with up_process(folder_of(tmp_path, 1), *flags) as began:
                await scenario(left, began)


async def begin(folder: Path, **flags: Any) -> None:
    """Run a server until it has begun. Raise what it says if it does not."""
    with raise_ungrouped():
        async with up(folder, **flags):
            pass


async def test_a_second_server_of_a_name_is_refused_while_the_first_is_alive(etcd: Etcd, tmp_path: Path) -> None:
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes-n1"
    async with asyncio.timeout(120):
        place = prefix()
        flags = {"etcd": settings(etcd, place), "node": "n1"}
        async with up(folder_of(tmp_path, 0), **flags) as first:
            _, before = await first.ask("GET", slices)
            with pytest.raises(NameTakenError, match="another running API server is Node n1: choose another"):
                await begin(folder_of(tmp_path, 1), **flags)
            assert await first.ask("GET", slices) == (200, before)
        async with up(folder_of(tmp_path, 1), **flags) as second:  # the first has given the name back
            assert (await second.ask("GET", slices))[0] == 200


async def test_a_server_that_comes_back_after_another_took_its_name_ends(etcd: Etcd, tmp_path: Path) -> None:
    def started(command: list[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(first: "subprocess.Popen[str]") -> str:
        first.send_signal(signal.SIGCONT)
        return str(first.communicate(timeout=60)[0])

    async with asyncio.timeout(120):
        place = prefix()
        flags = ("--store", "etcd", "--etcd-servers", etcd.servers, "--etcd-prefix", place, "--node-name", "n1")
        command = [*VIPWIRE, "up", "--data-dir", str(folder_of(tmp_path, 0)), "--secure-port", "0", *ALONE, *flags]
        command += ["--node-lease-seconds", "4"]
        with started(command) as first:
            assert first.stdout
            while not (await asyncio.to_thread(first.stdout.readline)).startswith("try:"):
                assert first.poll() is None
            first.send_signal(signal.SIGSTOP)
            try:
                async with up(
                    folder_of(tmp_path, 1), etcd=settings(etcd, place), node="n1", node_seconds=4
                ) as second:
                    said = await asyncio.to_thread(end, first)
                    assert (first.returncode, said.count("is Node n1: choose another")) == (1, 1), said
                    assert (await second.ask("GET", "/api/v1/nodes/n1"))[0] == 200
            finally:
                first.kill()


def test_a_directory_names_its_server_once(tmp_path: Path) -> None:
    first = server_identity(tmp_path, "n1")
    assert server_identity(tmp_path, "n1") == first
    for odd in (b"", b"\xff", b"../../etc"):
        (tmp_path / "server-id").write_bytes(odd)
        assert (other := server_identity(tmp_path, "n1")) != first
        assert server_identity(tmp_path, "n1") == other
    assert server_identity(tmp_path / "missing", "n1").startswith("n1_")  # it cannot be written


async def test_servers_that_differ_about_a_slice_do_not_write_as_fast_as_they_can(etcd: Etcd) -> None:
    seconds = [100.0]
    async with etcd_store(settings(etcd, prefix())) as store:
        registry = Registry(store, now)
        for name in ("default", "kube-system"):
            await registry.create(NAMESPACES, "", {"metadata": {"name": name}}, Options())
        own = OwnServices(registry, clock=lambda: seconds[0])
        await own.add_service(build_api_service(("192.0.2.1",), 6443, "n1"))
        await own.step()
        place = key_of(ENDPOINT_SLICES, "default", "kubernetes-n1")
        await registry.delete(ENDPOINT_SLICES, "default", "kubernetes-n1", options=Options())
        await store.wait_for_newest()
        assert await own.step()  # it is to look again
        assert store.read(place) is None
        seconds[0] += 1.0
        assert not await own.step()
        await store.wait_for_newest()
        assert store.read(place) is not None


async def code_of(server: Up, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with server.session.get(f"{server.url}{SERVICES}", headers=headers) as answer:
        return answer.status


async def until_codes(found: list[Up], token: str, wanted: int) -> None:
    """Ask all servers until each answers as it should; who calls has a deadline."""
    while {await code_of(each, token) for each in found} != {wanted}:  # noqa: ASYNC110  # each question takes a while
        await asyncio.sleep(0.05)


@pytest.mark.attack
async def test_a_token_is_good_at_all_servers_and_withdrawn_at_all_by_any(etcd: Etcd, tmp_path: Path) -> None:
    async with servers(etcd, tmp_path, 2) as found:
        lists = [tmp_path / f"server{number}/tokens.csv" for number in range(2)]
        lines = lists[0].read_text().splitlines(keepends=True)
        viewer = next(line for line in lines if ",viewer," in line)
        token = viewer.partition(",")[0]
        await until_codes(found, token, 200)
        with lists[1].open("a") as file:
            file.write(viewer)  # as people did who copied the file
        kept = "".join(line for line in lines if line != viewer)
        lists[0].write_text(kept)
        await until_codes(found, token, 401)
        lists[0].write_text(f"{kept}{viewer}")
        await until_codes(found, token, 200)
        (tmp_path / "server1/revoked").write_text("user viewer\n")
        await until_codes(found, token, 401)
        assert (await found[0].ask("GET", SERVICES))[0] == 200


async def until_refused(objects: RemoteObjects) -> None:
    """Ask until the answer is 401; who calls has a deadline."""
    with contextlib.suppress(ApiError):
        while True:
            await objects.list(NODES)
            await asyncio.sleep(0.05)
    with pytest.raises(ApiError, match="Unauthorized"):
        await objects.list(NODES)


@pytest.mark.attack
async def test_a_machine_that_left_at_one_server_is_refused_at_all(etcd: Etcd, tmp_path: Path) -> None:
    async with servers(etcd, tmp_path, 2) as found:
        access = load_access(tmp_path / "server0/admin.kubeconfig")
        words = (await create_token(access, 60, servers=False, description="")).split()
        folder = Folder(tmp_path / "there")
        token, pinned = words[words.index("--token") + 1], words[words.index("--ca-hash") + 1]
        await join_cluster(folder, found[0].url, token, pinned, "n2")
        async with RemoteObjects(folder.access_to(found[1].url), "test") as objects:
            assert await objects.list(NODES)
            await remove_machine(access, "n2")
            await until_refused(objects)
