"""The store of `vipwire up` as a source, and a whole server in the process of somebody else."""

import asyncio
import socket
from pathlib import Path

import dns.message
from tests.up.unit.cluster_here import cluster

from vipwire_up.dns.objects import RESOURCES
from vipwire_up.dns.run import serve_dns
from vipwire_up.dns.settings import Settings
from vipwire_up.store_watch.source import StoreSource

SERVICES = "/api/v1/namespaces/default/services"
WEB = "web.default.svc.cluster.local"


async def ask(port: int, name: str) -> list[str]:
    """Ask for addresses over TCP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = dns.message.make_query(name, "A").to_wire()
    writer.write(len(wire).to_bytes(2) + wire)
    answer = dns.message.from_wire(await reader.readexactly(int.from_bytes(await reader.readexactly(2))))
    writer.close()
    await writer.wait_closed()
    return [data.to_text() for rrset in answer.answer for data in rrset]


def named(name: str, address: str) -> dict[str, object]:
    spec = {"clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80, "protocol": "TCP"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


async def test_what_the_api_acknowledges_is_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here, asyncio.TaskGroup() as tasks:
        await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
        await here.send("POST", SERVICES, named("first", "10.96.0.1"))
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        feed = StoreSource(here.store, RESOURCES)
        settings = Settings(addresses=("127.0.0.1",), port=0)
        serving = tasks.create_task(serve_dns(settings, feed.run, lambda port, _: bound.set_result(port)))
        port = await bound
        async with asyncio.timeout(60):
            while not await ask(port, "first.default.svc.cluster.local"):
                pass
            code, _ = await here.send("POST", SERVICES, named("web", "10.96.0.2"))
            assert code == 201
            while await ask(port, WEB) != ["10.96.0.2"]:
                pass
            code, _ = await here.send("DELETE", f"{SERVICES}/web")
            assert code == 200
            while await ask(port, WEB):
                pass
        serving.cancel()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", port))
