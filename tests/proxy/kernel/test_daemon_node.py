"""The real proxy while its Node object is away or empty: node ports and Pod ranges stay as last known."""

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.apistore import ApiError
from tests.fakes.daemon import NODE, PATIENCE, Daemon, echo, page, reached, service_of, slice_for, stage
from tests.fakes.objects import service_cidr
from tests.fakes.own_network import run
from tests.proxy.conformance import own_cgroup

pytestmark = pytest.mark.kernel
MACHINE, INTERNAL, OTHER = "192.0.2.10", "198.51.100.7", "203.0.113.5"
"""The machine's first address, and two that a Node object may name."""
ZONE = "topology.kubernetes.io/zone"
PORT, POD = 30080, "10.244.0.1"
IN_ZONE = {"a": "10.244.0.41", "b": "10.244.0.42"}
"""The endpoint for each zone of a Service that prefers near ones."""
MODES = ("nftables", "iptables", "ebpf")
"""What a Node's facts are is decided before any mode sees them: each case is run in one of these, in turn."""


def node_object(internal: str = INTERNAL, pod_cidr: str = "10.244.0.0/24", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": NODE, "labels": {ZONE: "a"}, "uid": "first", **metadata},
        "spec": {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]} if pod_cidr else {},
        "status": {"addresses": [{"type": "InternalIP", "address": internal}] if internal else []},
    }


NAMES = [{"type": "Hostname", "address": NODE}, {"type": "InternalDNS", "address": f"{NODE}.example"}]
AWAY: Mapping[str, dict[str, Any] | None] = {
    "deleted": None,
    "no item of a list": {},
    "without addresses": node_object(internal="", pod_cidr=""),
    "with names only": node_object(internal="", pod_cidr="") | {"status": {"addresses": NAMES}},
    "created again, bare": {"metadata": {"name": NODE, "uid": "second"}, "spec": {}, "status": {}},
    "without podCIDRs": node_object(pod_cidr=""),
}


def write_node(server: FakeApiServer, node: dict[str, Any] | None) -> None:
    if node is None:
        server.store.delete("nodes", "", NODE)
    elif not node:  # no watch tells: it was restored from a backup, and versions have expired
        server.store.shelves["nodes"].objects.clear()
        server.store.expire()
        server.end_watches("nodes")
    else:
        if node["metadata"]["uid"] != "first":
            with suppress(ApiError):
                server.store.delete("nodes", "", NODE)
        server.store.put("nodes", node)


def filled(node: dict[str, Any] | None) -> FakeApiServer:
    server = FakeApiServer()
    server.store.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/16"))
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": PORT}]
    server.store.put("services", service_of("web", "10.96.0.1", type="NodePort", ports=ports))
    server.store.put("endpointslices", slice_for("web", POD))
    server.store.put("services", service_of("near", "10.96.0.2", trafficDistribution="PreferClose"))
    hinted = [slice_for("near", pod, suffix=zone) for zone, pod in IN_ZONE.items()]
    for zone, each in zip(IN_ZONE, hinted, strict=True):
        each["endpoints"][0]["hints"] = {"forZones": [{"name": zone}]}
        server.store.put("endpointslices", each)
    if node is not None:
        server.store.put("nodes", node)
    return server


def rules() -> str:
    return run("nft -s list ruleset")


async def near(zones: str) -> bool:
    """Tell whether the Service that prefers near endpoints leads to those of these zones, and to no others."""
    text = rules()
    return {zone for zone, pod in IN_ZONE.items() if pod in text} == set(zones)


class Play:
    """One API server, and daemons one after another with the same state directory."""

    def __init__(self, server: FakeApiServer, folder: Path, mode: str, *more: str) -> None:
        self.server, self.folder = server, folder
        self.flags = (
            f"--proxy-mode={mode}",
            "--nodeport-addresses=primary",
            "--detect-local-mode=NodeCIDR",
            f"--state-dir={folder}",
            *more,
        )

    def daemon(self, name: str = NODE) -> Daemon:
        return Daemon(f"--master={self.server.url}", f"--hostname-override={name}", *self.flags)

    async def ready(self, daemon: Daemon) -> None:
        await daemon.heard("synced", ip_family="IPv4")
        await eventually(lambda: answers(200))

    async def status(self) -> Any:
        flags = " ".join((f"--master={self.server.url}", f"--hostname-override={NODE}", *self.flags))
        return json.loads(await asyncio.to_thread(run, f"{sys.executable} -m vipwire status -o json {flags}"))


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110  # sockets and files tell nobody
            await asyncio.sleep(0.05)


async def answers(status: int) -> bool:
    return (await page("/readyz", 10256))[0] == status


async def served_at(*addresses: str) -> bool:
    """Tell whether the node port leads to the Pod at these addresses of the machine, and is refused at the others."""
    return all(
        [
            await reached(address, PORT, patience=2) == (POD if address in addresses else "refused")
            for address in (MACHINE, INTERNAL, OTHER)
        ]
    )


def play(story: Callable[[Play], Awaitable[None]], node: dict[str, Any] | None, folder: Path, mode: str) -> None:
    async def tell() -> None:
        async with filled(node) as server, echo():
            await story(Play(server, folder, mode, *([f"--ebpf-cgroup={cgroup}"] if cgroup else [])))

    with own_cgroup.beside("node") if mode == "ebpf" else nullcontext() as cgroup, stage():
        for address in (INTERNAL, OTHER):
            run(f"ip address add {address}/32 dev node")
        asyncio.run(tell())


async def seen_by(it: Play, daemon: Daemon, node: dict[str, Any] | None) -> None:
    """Write the Node, and a Service after it; wait until the proxy has programmed that Service."""
    lists = len(it.server.requests("nodes", watch=False))
    write_node(it.server, node)
    if node == {}:
        await it.server.until(lambda: len(it.server.requests("nodes", watch=False)) > lists)
    marker = service_of("marker", "10.96.0.9")
    await daemon.again(lambda: it.server.store.put("services", marker), "synced", ip_family="IPv4")
    await daemon.again(lambda: it.server.store.delete("services", "default", "marker"), "synced", ip_family="IPv4")


@pytest.mark.parametrize(("mode", "away"), list(zip(itertools.cycle(MODES), AWAY, strict=False)))
def test_a_node_that_is_away_or_says_nothing_keeps_its_last_known_facts(mode: str, away: str, tmp_path: Path) -> None:
    async def story(it: Play) -> None:
        async with it.daemon() as daemon:
            await it.ready(daemon)
            assert await served_at(INTERNAL)
            assert await near("a")
            before = rules()
            await eventually(lambda: written(it.folder, INTERNAL))  # once a second: `status` reads it
            await seen_by(it, daemon, AWAY[away])
            assert rules() == before
            assert await served_at(INTERNAL)
            assert await answers(200)
            assert {family["state"] for family in (await it.status())["families"]} == {"as planned"}
            await daemon.terminate()
        async with it.daemon() as daemon:  # a start while the Node is away
            await it.ready(daemon)
            assert rules() == before
            assert await served_at(INTERNAL)
            there = {ZONE: "b"}
            write_node(it.server, node_object(OTHER, "10.244.7.0/24", uid="third", labels=there))
            await eventually(lambda: served_at(OTHER))
            await eventually(lambda: near("b"))
            assert "10.244.7.0/24" in rules()
            assert "10.244.0.0/24" not in rules()
            write_node(it.server, node_object(OTHER, "10.244.7.0/24", uid="third", labels={}))
            await eventually(lambda: near("ab"))  # removed on purpose, with the addresses there
            await eventually(lambda: written(it.folder, '"a"', still=False))
            await eventually(lambda: written(it.folder, '"b"', still=False))
            await daemon.terminate()
        write_node(it.server, None)
        async with it.daemon() as daemon:
            await it.ready(daemon)
            assert await near("ab")
            await daemon.terminate()

    play(story, node_object(), tmp_path, mode)


M6, I6, O6, P6 = "2001:db8::10", "2001:db8::7", "2001:db8::5", "fd00:10:244::1"
CIDR4, CIDR6 = "10.244.0.0/24", "fd00:10:244::/64"


def node_of_families(*addresses: str, pod_cidrs: tuple[str, ...] = (), uid: str = "first") -> dict[str, Any]:
    return {
        "metadata": {"name": NODE, "uid": uid},
        "spec": {"podCIDR": pod_cidrs[0], "podCIDRs": list(pod_cidrs)} if pod_cidrs else {},
        "status": {"addresses": [{"type": "InternalIP", "address": each} for each in addresses]},
    }


async def served_in_both(ipv4: str, ipv6: str) -> bool:
    six = [await reached(address, PORT, patience=2) for address in (M6, I6, O6)]
    return await served_at(*filter(None, [ipv4])) and six == [
        P6 if address == ipv6 else "refused" for address in (M6, I6, O6)
    ]


def play_in_two_families(
    story: Callable[[Play], Awaitable[None]], node: dict[str, Any], folder: Path, mode: str
) -> None:
    async def tell(it: Play) -> None:
        for address in (M6, I6, O6):
            run(f"ip address add {address}/128 dev node nodad")
        run(f"ip address add {P6}/128 dev lo nodad")
        run("ip -6 route add default dev node")
        ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": PORT}]
        both: dict[str, Any] = {"clusterIPs": ["10.96.0.1", "fd00:10:96::1"], "ipFamilies": ["IPv4", "IPv6"]}
        service = service_of(
            "web", "10.96.0.1", type="NodePort", ports=ports, ipFamilyPolicy="PreferDualStack", **both
        )
        it.server.store.put("services", service)
        it.server.store.put("endpointslices", slice_for("web", P6, suffix="6") | {"addressType": "IPv6"})
        async with echo(P6):
            await story(it)

    play(tell, node, folder, mode)


BOTH = (CIDR4, CIDR6)


@pytest.mark.parametrize(
    ("mode", "partly"),
    [
        ("nftables", node_of_families(INTERNAL, pod_cidrs=(CIDR4,))),
        ("ebpf", node_of_families(I6, pod_cidrs=(CIDR6,))),
        ("nftables", node_of_families(I6, pod_cidrs=(CIDR6,), uid="second")),
        ("ebpf", node_of_families(I6, INTERNAL, pod_cidrs=(CIDR6, CIDR4), uid="second")),
        ("nftables", {}),
    ],
    ids=["IPv4 is left", "IPv6 is left", "created again with IPv6", "created again, swapped", "no item of a list"],
)
def test_each_family_keeps_its_last_known_facts(mode: str, partly: dict[str, Any], tmp_path: Path) -> None:
    async def story(it: Play) -> None:
        async with it.daemon() as daemon:
            await it.ready(daemon)
            await eventually(lambda: served_in_both(INTERNAL, I6))
            before = rules()
            await seen_by(it, daemon, partly)
            assert rules() == before
            assert await served_in_both(INTERNAL, I6)
            assert await answers(200)
            await eventually(lambda: written(it.folder, I6))
            await daemon.terminate()
        async with it.daemon() as daemon:
            await it.ready(daemon)
            assert await served_in_both(INTERNAL, I6)
            assert all(cidr in rules() for cidr in BOTH)
            write_node(it.server, node_of_families(O6, OTHER, pod_cidrs=("fd00:10:244:7::/64",), uid="third"))
            await eventually(lambda: served_in_both(OTHER, O6))
            assert (CIDR4 in rules(), CIDR6 in rules()) == (True, False)
            await daemon.terminate()

    play_in_two_families(story, node_of_families(INTERNAL, I6, pod_cidrs=BOTH), tmp_path, mode)


@pytest.mark.parametrize("mode", ["nftables", "ebpf"])
def test_a_node_of_one_family_serves_node_ports_in_that_family(mode: str, tmp_path: Path) -> None:
    async def story(it: Play) -> None:
        async with it.daemon() as daemon:
            await it.ready(daemon)
            await eventually(lambda: served_in_both("", I6))
            assert await answers(200)
            write_node(it.server, node_of_families("2001:db8::ffff", pod_cidrs=(CIDR6,)))  # the machine has it not
            await eventually(lambda: served_in_both("", ""))
            assert await reached("fd00:10:96::1") == P6
            await daemon.terminate()

    play_in_two_families(story, node_of_families(I6, pod_cidrs=(CIDR6,)), tmp_path, mode)


async def written(folder: Path, text: str, *, still: bool = True) -> bool:
    return await asyncio.to_thread(
        lambda: any(text in path.read_text("utf-8") for path in folder.glob("proxy-*.json")) is still
    )


@pytest.mark.parametrize(
    ("mode", "node"),
    [("nftables", None), ("iptables", AWAY["without addresses"]), ("ebpf", None)],
    ids=["no Node", "without addresses", "no Node, programs"],
)
def test_a_node_of_which_nothing_was_ever_known_serves_no_node_ports_and_is_not_ready(
    mode: str, node: dict[str, Any] | None, tmp_path: Path
) -> None:
    async def story(it: Play) -> None:
        async with it.daemon() as daemon:
            await daemon.heard("synced", ip_family="IPv4")
            await daemon.until(
                lambda: {"status.addresses", "spec.podCIDRs"} <= {r.get("field") for r in daemon.records}
            )
            assert await served_at()
            assert await reached("10.96.0.1") == POD
            status, body = await page("/readyz", 10256)
            assert status == 503
            assert json.loads(body)["waiting"] == ["Node: status.addresses, spec.podCIDRs"]
            await eventually(lambda: written(it.folder, "status.addresses"))
            told = {each["field"] for each in (await it.status())["problems"] if each["kind"] == "Node"}
            assert {"status.addresses", "spec.podCIDRs"} <= told
            write_node(it.server, node_object())
            await eventually(lambda: answers(200))
            await eventually(lambda: served_at(INTERNAL))
            await daemon.terminate()
        async with it.daemon("another") as daemon:  # the facts of one Node are not another's
            await daemon.heard("synced", ip_family="IPv4")
            assert await served_at()
            assert await answers(503)
            await daemon.terminate()

    play(story, node, tmp_path, mode)
