"""The proxy's own way to its API server, which no object can cut off: packets, in every mode that runs here."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Scene, leads_to, reached, scene, service_of, slice_for, stage

pytestmark = pytest.mark.kernel
MODES = pytest.mark.parametrize("mode", ["nftables", "iptables", "userspace"])
PORT = 30443
SERVER, POD, OTHER = "10.244.0.9", "10.244.0.1", "10.244.0.8"
"""The API server's address, the thief's Pod, and where the API server is later."""


def thefts(address: str = SERVER, port: int = PORT) -> dict[str, dict[str, Any]]:
    """Make Services that name the API server's address, each in another way."""
    ports = [{"name": "http", "protocol": "TCP", "port": port}]
    others = [{"name": "http", "protocol": "TCP", "port": port + 1}]
    wide = service_of("wide", "10.96.0.16", ports=others, externalIPs=[address])
    wide["metadata"]["annotations"] = {"vipwire.io/port-range": f"{port - 5}-{port + 5}"}
    balanced = service_of("balanced", "10.96.0.12", ports=ports, type="LoadBalancer")
    old = service_of("older", "10.96.0.13", created="1999-01-01T00:00:00Z", ports=ports, externalIPs=[address])
    return {
        "external": service_of("external", "10.96.0.11", ports=ports, externalIPs=[address]),
        "balanced": balanced | {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}},
        "older": old,
        "other-port": service_of("other-port", "10.96.0.14", ports=others, externalIPs=[address]),
        "cluster-ip": service_of("cluster-ip", address, ports=ports),
        "cluster-ip-other": service_of("cluster-ip-other", address, ports=others),
        "node-port": service_of(
            "node-port", "10.96.0.15", type="NodePort", ports=[ports[0] | {"nodePort": port, "port": 80}]
        ),
        "wide": wide,
    }


class Server(FakeApiServer):
    """An API server at an address of its own, not at loopback."""

    async def start(self, host: str = SERVER, port: int = PORT) -> None:
        """Listen."""
        await super().start(host, port)


async def hears(it: Scene, number: int) -> None:
    """Put one more Service, and find it served: so the proxy has read it."""
    name, address = f"beacon-{number}", f"10.96.1.{number}"
    it.server.store.put("services", service_of(name, address))
    it.server.store.put("endpointslices", slice_for(name, POD))
    await leads_to(address, POD)


async def answers(address: str) -> bool:
    """Ask the API server as any process of this node may, on a connection of its own."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}:{PORT}/version") as response:
        return response.status == 200


@MODES
async def test_no_object_cuts_the_proxy_off_from_its_api_server(mode: str) -> None:
    with stage():
        async with scene(Server(), f"--proxy-mode={mode}", "--nodeport-addresses=0.0.0.0/0") as it:
            await it.synced()
            for number, (name, theft) in enumerate(thefts().items(), 1):
                it.server.store.put("endpointslices", slice_for(name, POD))
                it.server.store.put("services", theft)
                await hears(it, 2 * number)
                await it.server.stop()  # every connection is made anew
                await it.server.start()
                await hears(it, 2 * number + 1)
                assert await answers(SERVER), name
                if PORT in [port.get("nodePort", port["port"]) for port in theft["spec"]["ports"]]:
                    await it.posted("FrontendConflict", name)
                it.server.store.delete("services", "default", name)


@MODES
async def test_an_api_server_that_moves_to_an_address_of_a_service_is_found_by_its_name(
    mode: str, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{SERVER} api.test\n")
    within = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts; exec "$@"', str(hosts))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": f"http://api.test:{PORT}"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
                "current-context": "c",
            }
        )
    )
    with stage():
        flags = f"--proxy-mode={mode}", f"--kubeconfig={kubeconfig}"
        async with scene(Server(), *flags, within=within) as it:
            await it.synced()
            it.server.store.put("endpointslices", slice_for("external", POD))
            it.server.store.put("services", thefts(OTHER)["external"])
            async with asyncio.timeout(60):
                while await reached(OTHER, PORT) != POD:
                    pass
            await it.server.stop()
            hosts.write_text(f"{OTHER} api.test\n")  # in place: the file is mounted
            await it.server.start(OTHER)
            await hears(it, 1)
            assert await answers(OTHER)
            hosts.write_text("")  # a name that leads nowhere for a while
            await it.server.stop()
            await it.server.start(OTHER)
            await hears(it, 2)
