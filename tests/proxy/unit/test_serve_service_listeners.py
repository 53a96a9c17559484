"""Health-check node ports over real sockets on loopback."""

import socket
from collections.abc import Iterator

import aiohttp
import pytest
from tests.fakes.ports import free_port

from vipwire.model.names import ObjectName
from vipwire.proxy_daemon.serve.server import open_listening_socket
from vipwire.proxy_daemon.serve.service_health import PortChanges, ServiceHealthCheck, ServiceListeners, compare_ports

A, B = ObjectName("ns", "a"), ObjectName("ns", "b")


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with open_listening_socket("127.0.0.1", 0) as holder:
        yield holder


async def _status(port: int, path: str = "/", host: str = "127.0.0.1") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as response:
        return response.status, response.headers["X-Load-Balancing-Endpoint-Weight"]


async def test_a_port_that_is_taken_is_reported_once_and_tried_again(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    desired = {port: ServiceHealthCheck(A, 1)}

    async with ServiceListeners(lambda: True, lambda: ("127.0.0.1",)) as listeners:
        (problem,) = await listeners.update(desired)
        assert (problem.kind, problem.object, problem.field) == ("Service", A, "spec.healthCheckNodePort")
        assert problem.message == f"cannot listen on port {port}: Address already in use"
        assert await listeners.update(desired) == ()
        taken.close()
        assert await listeners.update({}) == ()
        assert await _status(port) == (200, "1")


async def test_a_port_is_bound_at_all_given_addresses_or_at_none() -> None:
    port = free_port()

    async with ServiceListeners(lambda: True, lambda: ("127.0.0.1", "127.0.0.2")) as listeners:
        with open_listening_socket("127.0.0.2", port):
            problems = await listeners.update({port: ServiceHealthCheck(A, 1)})
            assert (len(problems), listeners.complete) == (1, False)
            open_listening_socket("127.0.0.1", port).close()  # nothing was left half open
        assert await listeners.update({}) == ()
        assert listeners.complete
        assert await _status(port) == (200, "1")


async def test_ports_follow_addresses_and_the_others_go_on() -> None:
    port, addresses = free_port(), ["127.0.0.1"]
    one, two = "127.0.0.1", "127.0.0.2"

    async with ServiceListeners(lambda: True, lambda: tuple(addresses)) as listeners:
        await listeners.update({port: ServiceHealthCheck(A, 1)})
        async with aiohttp.ClientSession() as kept:
            async with kept.get(f"http://{one}:{port}/") as response:
                assert response.status == 200
            addresses.append(two)
            with open_listening_socket(two, port):
                (problem,) = await listeners.move()
                assert (problem.object, listeners.complete) == (A, False)
                assert await _status(port, host=one) == (200, "1")
            assert await listeners.update({}) == ()
            assert listeners.complete
            assert await _status(port, host=two) == (200, "1")
            async with kept.get(f"http://{one}:{port}/") as response:
                assert response.status == 200
        addresses.remove(one)
        assert await listeners.move() == ()
        assert await _status(port, host=two) == (200, "1")
        with pytest.raises(aiohttp.ClientConnectorError):
            await _status(port, host=one)


A, B = ObjectName("ns1", "a"), ObjectName("ns2", "b")


def test_the_body_is_kube_proxys_byte_for_byte() -> None:
    answer = ServiceHealthCheck(B, 1).answer(proxy_healthy=True)
    assert answer.status == 200
    assert answer.body == (
        '{\n\t"service": {\n\t\t"namespace": "ns2",\n\t\t"name": "b"\n\t},\n'
        '\t"localEndpoints": 1,\n\t"serviceProxyHealthy": true\n}'
    )
    assert answer.headers == {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": "1",
    }


@pytest.mark.parametrize(
    ("endpoints", "healthy", "status"), [(0, True, 503), (3, True, 200), (3, False, 503), (0, False, 503)]
)
def test_200_needs_a_local_endpoint_and_a_healthy_proxy(endpoints: int, status: int, *, healthy: bool) -> None:
    answer = ServiceHealthCheck(A, endpoints).answer(proxy_healthy=healthy)
    assert (answer.status, answer.headers["X-Load-Balancing-Endpoint-Weight"]) == (status, str(endpoints))


@pytest.mark.parametrize(
    ("listening", "desired", "changes"),
    [
        ({}, {}, PortChanges((), ())),
        ({}, {2: ServiceHealthCheck(A, 0), 1: ServiceHealthCheck(B, 1)}, PortChanges((), (1, 2))),
        ({1: A}, {1: ServiceHealthCheck(A, 9)}, PortChanges((), ())),
        ({1: A}, {1: ServiceHealthCheck(B, 1)}, PortChanges((1,), (1,))),
        ({1: A, 2: B}, {3: ServiceHealthCheck(A, 1)}, PortChanges((1, 2), (3,))),
    ],
)
def test_only_ports_whose_service_changes_are_touched(
    listening: dict[int, ObjectName], desired: dict[int, ServiceHealthCheck], changes: PortChanges
) -> None:
    assert compare_ports(listening, desired) == changes
