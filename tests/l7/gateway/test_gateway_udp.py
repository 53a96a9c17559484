"""UDPRoutes on real packets: a relay beside HAProxy serves them. Pods answer with their names and who has asked."""

import asyncio
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
from tests.l7.gateway.site import PATIENCE, GatewaySite, gateways, list_all

from vipwire.relay.client import Call
from vipwire_l7.gateway.run.datagrams import name_datagram_relay
from vipwire_l7.watch.objects import IngressKind

GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: udp}
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: names, port: $names, protocol: UDP}
  - {name: shared, port: $shared, protocol: UDP}
  - {name: gone, port: $gone, protocol: UDP}
  - {name: moving, port: $moving, protocol: UDP}
  - {name: refusing, port: $refusing, protocol: UDP}
  - {name: taken, port: $taken, protocol: UDP}
  - {name: http, port: $names, protocol: HTTP}
"""


def udp_route(name: str, backends: str, listener: str = "") -> str:
    spec = f"{{parentRefs: [{{name: udp, sectionName: {listener or name}}}], rules: [{{backendRefs: [{backends}]}}]}}"
    return f"apiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\nmetadata: {{name: {name}}}\nspec: {spec}\n"


ROUTES = "---\n".join(
    (
        udp_route("names", "{name: one, port: 53}"),
        udp_route("names-younger", "{name: two, port: 53}", "names"),
        udp_route("shared", "{name: one, port: 53, weight: 3}, {name: two, port: 53, weight: 1}"),
        udp_route("gone", "{name: one, port: 53}, {name: nowhere, port: 53}"),
        udp_route("moving", "{name: moving, port: 53}"),
        udp_route("refusing", "{name: refusing, port: 53}"),
    )
)
HTTP_ROUTE_AT_UDP = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: strange}
spec: {parentRefs: [{name: udp, sectionName: names}], rules: [{backendRefs: [{name: one, port: 8080}]}]}
"""


class Pod(asyncio.DatagramProtocol):
    """Answers each datagram with its name and the sender's port."""

    def __init__(self, name: str) -> None:
        self.name = name

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(json.dumps([self.name, addr[1], data.decode()]).encode(), addr)


@contextmanager
def pod(here: GatewaySite, name: str, address: str) -> Iterator[None]:
    async def start() -> Any:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: Pod(name), local_addr=(address, here.pod_port))
        return transport

    transport = here.run(start())
    yield
    transport.close()
    here.run(asyncio.sleep(0))


def service(name: str, *addresses: str, port: int, family: str = "IPv4") -> str:
    endpoints = ", ".join(f"{{addresses: ['{each}']}}" for each in addresses)
    return f"""
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: infra}}
spec: {{ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 54, protocol: TCP}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: infra, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {family}
ports: [{{name: dns, port: {port}, protocol: UDP}}, {{name: dns-tcp, port: {port}}}]
endpoints: [{endpoints}]
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("udp")) as site, ExitStack() as held:
        site.put(GATEWAY)
        site.put(ROUTES)
        for name, address in (("one", "127.0.0.71"), ("two", "127.0.0.72"), ("six", "::1")):
            held.enter_context(pod(site, name, address))
        site.put(service("one", "127.0.0.71", port=site.pod_port))
        site.put(service("two", "127.0.0.72", port=site.pod_port))
        site.put(service("moving", "127.0.0.71", port=site.pod_port))
        site.put(service("refusing", "127.0.0.79", port=site.pod_port))
        site.put(HTTP_ROUTE_AT_UDP)
        taken = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        taken.bind(("127.0.0.1", site.port("taken")))
        list_all(site)
        site.settle()
        asked(site, "names")
        yield site


@contextmanager
def client(here: GatewaySite, port: str, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        sock.connect((address, here.port(port)))
        yield sock


def say(here: GatewaySite, sock: socket.socket, patience: float = PATIENCE) -> Any:
    """Ask again until somebody answers; None if nobody does."""

    async def asking() -> Any:
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        while loop.time() < end:
            try:
                await loop.sock_sendall(sock, b"hello")
                return json.loads(await asyncio.wait_for(loop.sock_recv(sock, 4096), 0.3))
            except (TimeoutError, ConnectionRefusedError):
                await asyncio.sleep(0.02)
        return None

    return here.run(asking())


def asked(here: GatewaySite, port: str, patience: float = PATIENCE) -> Any:
    with client(here, port) as sock:
        return say(here, sock, patience)


def until(here: GatewaySite, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        here.run(asyncio.sleep(0.02))


def reasons(of: Any) -> dict[str, str]:
    return {each["type"]: ("" if each["status"] == "True" else "not ") + each["reason"] for each in of["conditions"]}


def listener(here: GatewaySite, name: str) -> Any:
    found = here.status(IngressKind.GATEWAY, "udp")["listeners"]
    return next(each for each in found if each["name"] == name)


def test_udp_route(here: GatewaySite) -> None:
    """UDPRoute, UDPTCPListenerMerge: HTTP has the same port."""
    name, _, said = asked(here, "names")
    assert (name, said) == ("one", "hello")
    (parent,) = here.status(IngressKind.UDP_ROUTE, "names")["parents"]
    assert reasons(parent) == {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}
    found = listener(here, "names")
    assert reasons(found) == {
        "Accepted": "Accepted",
        "Programmed": "Programmed",
        "ResolvedRefs": "ResolvedRefs",
        "Conflicted": "not NoConflicts",
    }
    assert [each["kind"] for each in found["supportedKinds"]] == ["UDPRoute"]


def test_the_oldest_udp_route_has_all_clients(here: GatewaySite) -> None:
    """UDPRouteMultipleRoutesAttachment."""
    assert {asked(here, "names")[0] for _ in range(10)} == {"one"}
    assert listener(here, "names")["attachedRoutes"] == 2
    (parent,) = here.status(IngressKind.UDP_ROUTE, "names-younger")["parents"]
    assert reasons(parent)["Accepted"] == "Accepted"


def test_a_client_keeps_its_pod_and_each_client_is_another_to_the_pod(here: GatewaySite) -> None:
    with client(here, "shared") as one, client(here, "shared") as other:
        first, second = say(here, one), say(here, other)
        assert first[1] != second[1]
        assert {tuple(say(here, one)[:2]) for _ in range(10)} == {tuple(first[:2])}


def test_clients_are_shared_by_weight(here: GatewaySite) -> None:
    """UDPRouteWeightedRouting."""
    found = Counter(asked(here, "shared")[0] for _ in range(40))
    assert found == {"one": 30, "two": 10}


def test_a_backend_that_is_nowhere_drops_its_share_and_the_status_says_so(here: GatewaySite) -> None:
    with ExitStack() as stack:
        socks = [stack.enter_context(client(here, "gone")) for _ in range(20)]
        for sock in socks:
            sock.send(b"once")

        async def heard(sock: socket.socket) -> bool:
            try:
                return bool(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 4096), 0.5))
            except TimeoutError:
                return False

        async def all_heard() -> list[bool]:
            return await asyncio.gather(*map(heard, socks))

        assert sum(here.run(all_heard())) == 10
    (parent,) = here.status(IngressKind.UDP_ROUTE, "gone")["parents"]
    assert reasons(parent) == {"Accepted": "Accepted", "ResolvedRefs": "not BackendNotFound"}
    until(here, lambda: (here.registry.get_sample_value("vipwire_gateway_udp_dropped_total", NOBODY) or 0) >= 10)


NOBODY = {"reason": "the listener refuses clients"}


def test_endpoints_change_and_their_clients_get_others_the_rest_stay(here: GatewaySite) -> None:
    with client(here, "moving") as sock, client(here, "names") as beside:
        assert say(here, sock)[0] == "one"
        stays = say(here, beside)
        # The Pods of a Service need not be of the family at which clients come.
        here.put(service("moving", "::1", port=here.pod_port, family="IPv6"))
        until(here, lambda: say(here, sock)[0] == "six")
        assert say(here, beside) == stays
    here.put(service("moving", "127.0.0.71", port=here.pod_port))


def test_a_pod_that_refuses_is_left_as_soon_as_there_is_another(here: GatewaySite) -> None:
    assert asked(here, "refusing", 0.7) is None
    here.put(service("refusing", "127.0.0.79", "127.0.0.72", port=here.pod_port))
    with client(here, "refusing") as sock:
        assert say(here, sock)[0] == "two"


def test_a_port_that_is_taken_costs_its_listener(here: GatewaySite) -> None:
    until(here, lambda: reasons(listener(here, "taken"))["Accepted"] == "not PortUnavailable")
    assert reasons(listener(here, "names"))["Accepted"] == "Accepted"


def test_routes_of_other_kinds_are_not_let_in_and_http_may_have_the_same_port(here: GatewaySite) -> None:
    (parent,) = here.status(IngressKind.HTTP_ROUTE, "strange")["parents"]
    assert reasons(parent)["Accepted"] == "not NotAllowedByListeners"
    assert here.ask("names").status == 404


def test_counters(here: GatewaySite) -> None:
    labels = dict(zip(("namespace", "service", "port", "pod"), ("infra", "one", "53", ""), strict=True))
    labels |= {"listener": f"udp:{here.port('names')}", "endpoint": f"127.0.0.71:{here.pod_port}"}
    until(here, lambda: (here.registry.get_sample_value("vipwire_gateway_udp_sessions_total", labels) or 0) >= 1)
    assert (here.registry.get_sample_value("vipwire_gateway_udp_received_bytes_total", labels) or 0) >= len("hello")


def test_a_relay_that_dies_is_started_again(here: GatewaySite) -> None:
    before = relay_of(here)
    os.kill(before, signal.SIGKILL)
    with client(here, "names") as sock:
        assert say(here, sock)[0] == "one"
    assert relay_of(here) not in (0, before)


def test_the_relay_ends_with_the_last_listener(here: GatewaySite) -> None:
    here.remove(IngressKind.GATEWAY, "udp")
    until(here, lambda: relay_of(here) == 0)
    here.put(GATEWAY)
    assert asked(here, "names")[0] == "one"


def relay_of(here: GatewaySite) -> int:
    """Return the process of the relay, 0 if there is none."""
    call = Call.find(name_datagram_relay(here.haproxy.folder))
    if call is None:
        return 0
    with closing(call), suppress(ConnectionError):
        welcome = call.exchange_hello()
        return welcome.pid if welcome else 0
    return 0
