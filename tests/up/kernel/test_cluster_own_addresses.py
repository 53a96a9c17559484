"""A machine's address changes while it runs: its Node, Service `kubernetes` and the server's certificate follow."""

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network, run
from tests.up.unit.up_here import Up, up

pytestmark = pytest.mark.kernel
FIRST, SECOND, LOWER = "198.51.100.7", "198.51.100.9", "198.51.100.1"


async def until(here: Up, path: str, *place: str | int, wanted: object) -> None:
    async with asyncio.timeout(60):
        while True:
            _, value = await here.ask("GET", path)
            for step in place:
                value = value[step] if value else None
            if value == wanted:
                return
            await asyncio.sleep(0.05)


async def serves_as(here: Up, folder: Path, address: str) -> None:
    """Wait until the Node, the Service and the certificate have an address."""
    await until(here, "/api/v1/nodes/n1", "status", "addresses", 0, "address", wanted=address)
    kubernetes = "/api/v1/namespaces/default/endpoints/kubernetes"
    await until(here, kubernetes, "subsets", 0, "addresses", wanted=[{"ip": address}])
    trusting = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
    port = int(here.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=address)
    writer.close()


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])  # the two ways that an endpoint has a Node's address
async def test_an_address_that_changes_is_followed_and_one_that_stays_is_kept(tmp_path: Path, bind: str) -> None:
    with own_network():
        run(f"ip addr add {FIRST}/32 dev lo")
        async with up(tmp_path, node="n1", address=bind, node_seconds=2) as here:
            await serves_as(here, tmp_path, FIRST)
            run(f"ip addr add {LOWER}/32 dev lo")
            await until(
                here, "/api/v1/nodes/n1", "metadata", "annotations", "vipwire.io/addresses", wanted=f"{LOWER},{FIRST}"
            )
            await serves_as(here, tmp_path, FIRST)
            run(f"ip addr add {SECOND}/32 dev lo")
            run(f"ip addr del {LOWER}/32 dev lo")
            run(f"ip addr del {FIRST}/32 dev lo")
            await serves_as(here, tmp_path, SECOND)
            run(f"ip addr del {SECOND}/32 dev lo")  # for a moment it has none: the last one stays
            run(f"ip addr add {FIRST}/32 dev lo")
            await serves_as(here, tmp_path, FIRST)
