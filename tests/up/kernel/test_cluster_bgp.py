"""BGP: which addresses a machine announces, how BIRD is told, and what a router next to two machines learns."""

import asyncio
import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.own_network import own_network, run

from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.resource import ObjectReader
from vipwire.linux.host.waiting import read_listening_sockets
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Listed, Upserted
from vipwire_up.announcing.kinds import AnnounceKind, Machine, Placed
from vipwire_up.api.objects.object import encode
from vipwire_up.bgp.bird import Bird, render_bird_configuration
from vipwire_up.bgp.routes import SERVICES, Routed, choose_routes
from vipwire_up.bgp.run import BgpSpeaker, Event
from vipwire_up.bgp.settings import KINDS, BgpSettings, Peer, read_bgp_settings

WEB = ObjectName("default", "web")
READER = ObjectReader(SERVICES)
SETTINGS = BgpSettings(64512, (Peer("10.9.0.254", 64500),), ("LoadBalancer",))


def service(annotation: str | None = None, **spec: Any) -> Any:
    meta = {"name": "web", "namespace": "default"}
    words = {} if annotation is None else {"annotations": {"announce.vipwire.io/bgp": annotation}}
    status = {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}, {"ip": "2001:db8::7"}]}}
    addresses = {"type": "LoadBalancer", "clusterIPs": ["10.96.0.7"], "externalIPs": ["203.0.113.7"]}
    return READER.read(encode({"metadata": meta | words, "spec": addresses | spec, "status": status}), "")


def machine(name: str, *, ready: bool = True, excluded: bool = False) -> Machine:
    return Machine(name, ready, frozenset(), excluded)


BALANCED = ("198.51.100.7", "2001:db8::7")


@pytest.mark.parametrize(
    ("read", "nodes", "kinds", "wanted"),
    [
        (service(), ("n2",), ("LoadBalancer",), BALANCED),
        (service(), (), ("LoadBalancer",), ()),
        (service(), ("n2",), KINDS, ("10.96.0.7", "198.51.100.7", "2001:db8::7", "203.0.113.7")),
        (service("ClusterIP"), ("n2",), ("LoadBalancer",), ("10.96.0.7",)),
        (service("none"), ("n2",), KINDS, ()),
        (service(externalTrafficPolicy="Local"), ("n2",), KINDS, ("10.96.0.7",)),
        (service(externalTrafficPolicy="Local"), ("n1",), ("LoadBalancer",), BALANCED),
        (service(internalTrafficPolicy="Local"), ("n2",), ("ClusterIP",), ()),
    ],
)
def test_what_is_announced(
    read: Any, nodes: tuple[str, ...], kinds: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    there = {"n1": machine("n1"), "n2": machine("n2")}
    assert choose_routes("n1", (read.object,), {WEB: nodes}, there, kinds) == wanted
    for other in ({}, {"n1": machine("n1", ready=False)}, {"n1": machine("n1", excluded=True)}):
        assert choose_routes("n1", (read.object,), {WEB: nodes}, other, kinds) == ()


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [
        ((), ()),
        ((("198.51.100.7", 80),), ("198.51.100.7",)),
        ((("198.51.100.7", 80), ("2001:db8::7", 443)), BALANCED),
        ((("198.51.100.7", 22),), ()),
        ((("0.0.0.0", 80), ("203.0.113.7", 80), ("10.96.0.7", 80)), ()),
    ],
)
def test_a_gateways_address_is_announced_where_it_is_served(
    waiting: tuple[tuple[str, int], ...], wanted: tuple[str, ...]
) -> None:
    """No endpoint says so: `vipwire gateway` listens at the address itself."""
    there, ports = {"n1": machine("n1")}, [{"port": 80}, {"port": 443}]
    read = gateways_service(ports)
    assert choose_routes("n1", (read.object,), {}, there, KINDS, waiting) == wanted
    assert choose_routes("n1", (read.object,), {}, {}, KINDS, waiting) == ()
    own = gateways_service(ports, **{"vipwire.io/gateway-controller": "vipwire.io/gateway"})
    assert choose_routes("n1", (own.object,), {WEB: ("n1",)}, there, ("LoadBalancer",), ()) == BALANCED


def gateways_service(ports: list[dict[str, int]], **more: str) -> Any:
    """Write the Service from which a Gateway has its address."""
    meta = {"name": "web", "namespace": "default", "annotations": {"vipwire.io/gateway": "edge"} | more}
    status = {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}, {"ip": "2001:db8::7"}]}}
    spec = {"type": "LoadBalancer", "clusterIPs": ["10.96.0.7"], "externalIPs": ["203.0.113.7"], "ports": ports}
    return READER.read(encode({"metadata": meta, "spec": spec, "status": status}), "")


@pytest.mark.kernel
def test_places_where_programs_listen_are_seen() -> None:
    with own_network():
        run("ip link set lo up")
        run("ip route add local 198.51.100.0/24 dev lo")
        with (
            socket.create_server(("198.51.100.7", 80)),
            socket.create_server(("::1", 81), family=socket.AF_INET6),
            socket.socket(type=socket.SOCK_DGRAM) as udp,
            socket.socket() as bound,
        ):
            udp.bind(("198.51.100.8", 53))
            bound.bind(("198.51.100.9", 82))  # and does not listen
            assert read_listening_sockets() == {("198.51.100.7", 80), ("::1", 81), ("198.51.100.8", 53)}


@pytest.mark.kernel
async def test_a_router_hears_of_a_gateway_while_haproxy_listens(folder: Path) -> None:
    """The machine's BIRD announces an address from when something listens there, and withdraws it after that."""
    with own_network():
        run("ip link set lo up")
        run("ip route add local 198.51.100.0/24 dev lo")

        async def follow(emit: Callable[[Event], None]) -> None:
            emit(Listed(AnnounceKind.SERVICE, (gateways_service([{"port": 80}]).object,)))
            emit(Listed(AnnounceKind.SLICE, ()))
            emit(Listed(AnnounceKind.NODE, (machine("n1"),)))
            while True:  # any news has it looked at anew, as time has
                await asyncio.sleep(0.1)
                emit(Upserted(machine("n1")))

        async def until_told(*, there: bool) -> None:
            async with asyncio.timeout(60):
                while ("198.51.100.7/32" in (await asyncio.to_thread(said))) is not there:
                    pass

        def said() -> str:
            control = ("birdc", "-s", str(folder / "bird.ctl"), "show", "route")
            return subprocess.run(control, capture_output=True, text=True, check=False, timeout=60).stdout

        speaker = BgpSpeaker(SETTINGS, "n1", ("10.9.0.1",), lambda: Bird(folder))
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(speaker.run(follow, lambda: None))
            await until_told(there=False)
            with socket.create_server(("198.51.100.7", 80)):
                await until_told(there=True)
            await until_told(there=False)
            task.cancel()


def test_a_word_that_is_no_kind_is_told_and_the_flags_count() -> None:
    read = service("LoadBalancer, all")
    assert read.object.kinds is None
    assert "'all' must be one of ClusterIP, ExternalIP, LoadBalancer, none" in str(read.problems[0])
    assert service(type="ExternalName", clusterIPs=[], externalIPs=[]).object is None


@pytest.mark.parametrize(
    ("number", "peers", "router", "why"),
    [
        (0, ("10.0.0.1@1",), "", "belong together"),
        (1, (), "", "belong together"),
        (1, ("10.0.0.1",), "", "is not ADDRESS@AS"),
        (1, ("router@1",), "", "is not ADDRESS@AS"),
        (1, ("10.0.0.1@0",), "", "is not ADDRESS@AS"),
        (1, ("10.0.0.1@1",), "fd00::1", "--bgp-router-id"),
    ],
)
def test_flags_that_are_wrong_are_told(number: int, peers: tuple[str, ...], router: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_bgp_settings(number, peers, (), router)
    assert read_bgp_settings(0, (), (), "") is None


def test_the_configuration_as_a_text() -> None:
    text = render_bird_configuration(BgpSettings(64512, (Peer("fd00::254", 64500),)), "10.9.0.1", BALANCED)
    assert "  route 198.51.100.7/32 blackhole;\n" in text
    assert "  route 2001:db8::7/128 blackhole;\n" in text
    assert "  neighbor fd00::254 as 64500;\n" in text
    assert "import none" in text
    assert "protocol kernel" not in text


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder whose name is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


ROUTER = """
router id 10.9.0.254;
protocol device {}
protocol kernel { ipv4 { export all; }; merge paths on; }
protocol bgp one { local as 64500; neighbor 10.9.0.1 as 64512; ipv4 { import all; export none; }; }
protocol bgp two { local as 64500; neighbor 10.9.0.2 as 64512; ipv4 { import all; export none; }; }
"""


@contextlib.contextmanager
def segment(count: int) -> Iterator[list[str]]:
    """Put this thread into the router's network; yield what runs commands on the machines beside it."""
    with own_network(), contextlib.ExitStack() as stack:
        run("ip link add br0 type bridge forward_delay 0")
        run("ip addr add 10.9.0.254/24 dev br0")
        run("ip link set br0 up")
        there = []
        for number in range(1, count + 1):
            holder = stack.enter_context(subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE))
            stack.callback(holder.communicate)
            ours = run("readlink /proc/self/ns/net")
            while run(f"readlink /proc/{holder.pid}/ns/net") == ours:  # it has yet to move into its own
                pass
            enter = f"nsenter -t {holder.pid} -n"
            run(f"ip link add m{number} type veth peer name eth0 netns {holder.pid}")
            run(f"ip link set m{number} master br0 up")
            for command in ("ip link set lo up", f"ip addr add 10.9.0.{number}/24 dev eth0", "ip link set eth0 up"):
                run(f"{enter} {command}")
            there.append(enter)
        yield there


class Here(Bird):
    """BIRD on one of the machines."""

    def __init__(self, folder: Path, enter: str) -> None:
        super().__init__(folder)
        script = folder / "bird"
        folder.mkdir()
        script.write_text(f'#!/bin/sh\nexec {enter} {self._program} "$@"\n')
        script.chmod(0o755)
        self._program = str(script)


@pytest.mark.kernel
@pytest.mark.slow
async def test_a_router_spreads_over_the_machines_that_announce_and_forgets_those_that_do_not(folder: Path) -> None:
    async def until(holds: Callable[[str], bool]) -> None:
        async with asyncio.timeout(90):
            while not holds(table := await asyncio.to_thread(run, "ip route show proto bird")):
                await asyncio.sleep(0.2)
                assert table is not None

    with segment(2) as there:
        (folder / "router").mkdir()
        router = Bird(folder / "router")
        await router.apply_configuration(ROUTER)
        speakers, emits = [], dict[str, Callable[[Event], None]]()
        async with asyncio.TaskGroup() as tasks:
            for number, enter in enumerate(there, 1):
                node = f"n{number}"

                async def follow(emit: Callable[[Event], None], node: str = node) -> None:
                    emits[node] = emit
                    emit(Listed(AnnounceKind.SERVICE, (service().object,)))
                    emit(Listed(AnnounceKind.SLICE, (Placed(ObjectName("default", "s"), WEB, frozenset((node,))),)))
                    emit(Listed(AnnounceKind.NODE, (machine(node),)))
                    await asyncio.Event().wait()

                bird = Here(folder / node, enter)
                speaker = BgpSpeaker(SETTINGS, node, (f"10.9.0.{number}",), lambda bird=bird: bird)  # type: ignore[misc]
                speakers.append(tasks.create_task(speaker.run(follow, lambda: None)))
            await until(lambda table: "via 10.9.0.1" in table and "via 10.9.0.2" in table)
            emits["n1"](Upserted(machine("n1", ready=False)))
            await until(lambda table: "via 10.9.0.1" not in table and "via 10.9.0.2" in table)
            emits["n1"](Upserted(machine("n1")))
            await until(lambda table: "via 10.9.0.1" in table and "via 10.9.0.2" in table)
            speakers[1].cancel()
            await until(lambda table: "via 10.9.0.2" not in table and "198.51.100.7" in table)
            emits["n1"](Upserted(Placed(ObjectName("default", "s"), WEB, frozenset())))
            await until(lambda table: "198.51.100.7" not in table)
            speakers[0].cancel()
        await router.stop()


@pytest.mark.kernel
async def test_what_bird_does_not_take_is_told_and_the_configuration_before_stays(folder: Path) -> None:
    with own_network():
        bird = Bird(folder)
        with pytest.raises(VipwireError, match=r"BIRD does not start: .*syntax error"):
            await bird.apply_configuration("nonsense;\n")
        await bird.apply_configuration(render_bird_configuration(SETTINGS, "10.9.0.1", ()))
        with pytest.raises(VipwireError, match="syntax error"):
            await bird.apply_configuration("nonsense;\n")
        assert await bird.is_ready()
        left = Bird(folder)  # of a process that was killed
        await left.apply_configuration(render_bird_configuration(SETTINGS, "10.9.0.1", ("198.51.100.7",)))
        await left.stop()
        assert not await bird.is_ready()
        await bird.stop()


def test_one_router_id_is_needed(tmp_path: Path) -> None:
    with pytest.raises(VipwireError, match="--bgp-router-id: required"):
        BgpSpeaker(SETTINGS, "n1", ("fd00::1",), lambda: Bird(tmp_path))
    assert isinstance(service().object, Routed)
