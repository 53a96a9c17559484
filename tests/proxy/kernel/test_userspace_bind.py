"""`--userspace-bind`: a proxy that is root in name only serves Services without a rule, with real packets.

Clients connect to the listeners themselves. Where these are `vipwire status` tells, and for ports of the proxy's own
the log.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.daemon import Daemon, service_of, slice_for, stage
from tests.fakes.own_network import run

from vipwire.model.net import Family
from vipwire.relay.client import Call, relay_name

pytestmark = pytest.mark.kernel
BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
PODS = {"IPv4": "10.244.0.1", "IPv6": "fd00:10:244::1"}
VIPS = {"IPv4": "10.96.0.1", "IPv6": "fd00:10:96::1"}
DNS = {"IPv4": "10.96.0.10", "IPv6": "fd00:10:96::a"}
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
PORT, NODE_PORT, POD_PORT = 8000, 30080, 8080
AT_LIMIT = "refusing clients: too many open files"
HostPort = tuple[str, int]


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """Make a namespace that has VIPs and a Pod of each family, and no rule."""
    with stage():
        for address in (VIPS["IPv4"], DNS["IPv4"]):
            run(f"ip address add {address}/32 dev lo")
        for address in (PODS["IPv6"], VIPS["IPv6"], DNS["IPv6"]):
            run(f"ip address add {address}/128 dev lo nodad")
        run("ip address add 2001:db8::10/64 dev node nodad")
        yield
        assert run("nft list ruleset") == "", "no rule was written"


def written(folder: Path, port: int = PORT) -> Path:
    """Write a Service of both families with a node port, and one with a UDP port."""
    ports = [{"name": "http", "protocol": "TCP", "port": port, "targetPort": POD_PORT, "nodePort": NODE_PORT}]
    both: dict[str, Any] = {"ipFamilies": list(VIPS), "ipFamilyPolicy": "RequireDualStack"}
    web = service_of("web", VIPS["IPv4"], type="NodePort", ports=ports, clusterIPs=list(VIPS.values()), **both)
    udp = [{"name": "dns", "protocol": "UDP", "port": 5353, "targetPort": POD_PORT}]
    dns = service_of("dns", DNS["IPv4"], ports=udp, clusterIPs=list(DNS.values()), **both)
    items = [{"apiVersion": "v1", "kind": "Service", **each} for each in (web, dns)]
    for family, address in PODS.items():
        for name, label, protocol in (("web", "http", "TCP"), ("dns", "dns", "UDP")):
            piece = slice_for(name, address, port=POD_PORT, suffix=f"-{family.lower()}")
            piece |= {"addressType": family, "ports": [{"name": label, "protocol": protocol, "port": POD_PORT}]}
            items.append({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **piece})
    for number, item in enumerate(items):
        (folder / f"{number}.json").write_text(json.dumps(item))
    return folder


def flags(folder: Path, bind: str) -> tuple[str, ...]:
    return (
        f"--manifests={folder}",
        "--hostname-override=node",
        "--oom-score-adj=0",
        "--proxy-mode=userspace",
        f"--userspace-bind={bind}",
    )


def said(*arguments: str) -> str:
    """Run a command of vipwire without rights; return what it prints."""
    command = (*BARE, sys.executable, "-m", "vipwire", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Answer(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(b"to " + data, addr)


@contextlib.asynccontextmanager
async def pods() -> AsyncIterator[None]:
    """Answer at the Pods' addresses: over TCP with the address, over UDP with what was said."""

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(writer.get_extra_info("sockname")[0]).encode())
        await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for address in PODS.values():
            await stack.enter_async_context(await asyncio.start_server(tell, address, POD_PORT))
            transport, _ = await loop.create_datagram_endpoint(_Answer, local_addr=(address, POD_PORT))
            stack.callback(transport.close)
        yield


async def answer(place: HostPort) -> str:
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*place)
        found = (await reader.read()).decode()
        writer.close()
        return found


class _Heard(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        del addr
        if not self.came.done():
            self.came.set_result(data)


async def echoed(place: HostPort) -> bytes:
    """Say something until it is answered: the relay forgets whoever has been silent for a quarter of a second."""
    transport, heard = await asyncio.get_running_loop().create_datagram_endpoint(_Heard, remote_addr=place)
    try:
        async with asyncio.timeout(60):
            while not heard.came.done():
                transport.sendto(b"you")
                await asyncio.wait([heard.came], timeout=1.0)
        return heard.came.result()
    finally:
        transport.close()


def place_of(text: str) -> HostPort:
    """Read `address:port`; an address that means all is reached by loopback."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    return EVERYWHERE.get(host, host), int(port)


def listening(folder: Path, bind: str) -> dict[tuple[str, str, str], list[HostPort]]:
    """Ask `vipwire status` where frontends are reached, by Service, kind and family."""
    document = json.loads(said("status", "-o", "json", *flags(folder, bind)))
    return {
        (service["name"], frontend["kind"], frontend["family"]): [place_of(text) for text in frontend["listening"]]
        for service in document["services"]
        for port in service["ports"]
        for frontend in port["frontends"]
    }


EXPECTED: dict[str, dict[tuple[str, str, str], HostPort]] = {
    "vip": {
        ("web", "cluster IP", "IPv4"): (VIPS["IPv4"], PORT),
        ("web", "cluster IP", "IPv6"): (VIPS["IPv6"], PORT),
        ("web", "node port", "IPv4"): ("192.0.2.10", NODE_PORT),
        ("web", "node port", "IPv6"): ("2001:db8::10", NODE_PORT),
        ("dns", "cluster IP", "IPv4"): (DNS["IPv4"], 5353),
    },
    "none": {},
}


async def told_again(folder: Path) -> set[tuple[HostPort, ...]]:
    """Start another proxy, which finds the relay as it was left; return where it listens, by the log."""
    async with Daemon(*flags(folder, "none"), within=BARE) as daemon:
        for family in PODS:
            await daemon.heard("synced", ip_family=family, changed=0, added=0)
        assert await daemon.terminate() == 0
        return places_told(daemon)


def places_told(daemon: Daemon) -> set[tuple[HostPort, ...]]:
    return {tuple(map(place_of, record["at"].split(","))) for record in daemon.said("listening")}


def relayed(family: Family) -> bool:
    call = Call.find(relay_name(family))
    if call is not None:
        call.close()
    return call is not None


@pytest.mark.parametrize("bind", list(EXPECTED))
async def test_without_a_single_right_clients_reach_pods_at_the_listeners(tmp_path: Path, bind: str) -> None:
    with machine():
        folder = written(tmp_path)
        async with pods(), Daemon(*flags(folder, bind), within=BARE) as daemon:
            for family in PODS:
                await daemon.heard("synced", ip_family=family)
            places = listening(folder, bind)
            assert len(places) == 6
            for key, expected in EXPECTED[bind].items():
                assert expected in places[key], key
            for (service, _, family), found in places.items():
                assert found
                for place in found:
                    assert await (answer(place) if service == "web" else echoed(place)) in (PODS[family], b"to you")
            told = places_told(daemon)
            unknown = {
                "vip": [],
                "none": [*places.values()],
            }
            assert told == set(map(tuple, unknown[bind])), "the log tells of ports that nobody can know"
            assert daemon.said("not looking for rules of other modes")
            assert not daemon.said("cannot set", what="net.ipv4.ip_forward")
            assert await daemon.terminate() == 0
        if bind == "none":
            assert await told_again(folder) == told
        said("cleanup", *flags(folder, bind))
        async with asyncio.timeout(60):
            while any(map(relayed, Family)):  # noqa: ASYNC110 - a process ends
                await asyncio.sleep(0.01)


async def test_a_low_port_is_refused_with_its_remedy_and_the_other_service_goes_on(tmp_path: Path) -> None:
    with machine():
        run("sysctl -q -w net.ipv4.ip_unprivileged_port_start=1024")
        async with pods(), Daemon(*flags(written(tmp_path, port=80), "vip"), within=BARE) as daemon:
            await daemon.heard("synced", ip_family="IPv4")
            assert await echoed((DNS["IPv4"], 5353)) == b"to you"
            with pytest.raises(ConnectionRefusedError):
                await answer((VIPS["IPv4"], 80))
            text = daemon.log()
            assert "default/web" in text
            assert "10.96.0.1:80/tcp: this user may not listen on ports below 1024" in text
            assert "ip_unprivileged_port_start" in text
            assert await daemon.terminate() == 0


async def test_at_the_limit_of_open_files_new_clients_are_refused_and_said_and_served_again_when_there_is_room(
    tmp_path: Path,
) -> None:
    """The limit is the kernel's own, which a process without rights cannot raise: 400, of which 64 are kept."""
    within = ("prlimit", "--nofile=400:400", *BARE)
    with machine():
        async with pods(), Daemon(*flags(written(tmp_path), "vip"), within=within) as daemon:
            await daemon.heard("synced", ip_family="IPv4")
            held = await asyncio.to_thread(flooding, (VIPS["IPv4"], PORT))
            assert 100 < len(held) <= 150, "one listener has three quarters of the room"
            record = await daemon.heard("default/web:http cluster IP 10.96.0.1:8000/tcp: " + AT_LIMIT)
            assert (record["level"], record["times"] > 0) == ("warning", True)
            assert await answer(("192.0.2.10", NODE_PORT)) == PODS["IPv4"], "another listener is not concerned"
            assert await echoed((DNS["IPv4"], 5353)) == b"to you"
            for each in held:
                each.close()
            assert await answered_in_time((VIPS["IPv4"], PORT)) == PODS["IPv4"]
            assert await daemon.terminate() == 0


def flooding(place: HostPort) -> list[socket.socket]:
    """Connect 200 times; return those that are answered."""
    flood = [connected(place) for _ in range(200)]
    held = [sock for sock in flood if sock is not None and not was_reset(sock)]
    for sock in set(filter(None, flood)) - set(held):
        sock.close()
    return held


def connected(place: HostPort) -> socket.socket | None:
    """Connect; None if that is reset at once."""
    try:
        return socket.create_connection(place, timeout=60)
    except ConnectionResetError:
        return None


def was_reset(sock: socket.socket) -> bool:
    """Wait for the Pod's answer, or for a reset."""
    try:
        return not sock.recv(100)
    except ConnectionResetError:
        return True


async def answered_in_time(place: HostPort) -> str:
    """Connect until somebody answers: places become free as the relay hears of it."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ConnectionError):
                if found := await answer(place):
                    return found
            await asyncio.sleep(0.01)


def test_rules_are_not_fallen_back_to_where_there_is_no_right_to_any(tmp_path: Path) -> None:
    """Every step is told; the last needs no rights if it is told to do without rules, and runs."""

    async def scenario(bind: str) -> None:
        words = ("--proxy-mode=ipvs", "--proxy-mode-fallback", *(flags(written(tmp_path), bind)[:3]))
        rest = (f"--userspace-bind={bind}",) if bind else ()
        async with pods(), Daemon(*words, *rest, within=BARE) as daemon:
            if bind:
                await daemon.heard("synced", ip_family="IPv4")
                assert daemon.said("starting", mode="userspace")
                assert await answer((VIPS["IPv4"], PORT)) == PODS["IPv4"]
                assert await daemon.terminate() == 0
            else:
                assert await daemon.ended() == 1
                first, last = (line for line in daemon.lines if line.startswith("error: "))
                assert last.startswith(first), "what three modes say alike is told once"
                assert last.endswith("or run this mode without rules (--userspace-bind)")
            steps = [(each["mode"], each["to"]) for each in daemon.said("falling back")]
            assert steps == [("ipvs", "iptables"), ("iptables", "nftables"), ("nftables", "userspace")]
            assert all("CAP_NET_ADMIN" in each["reason"] for each in daemon.said("falling back"))

    with machine():
        asyncio.run(scenario(""))
        asyncio.run(scenario("vip"))
