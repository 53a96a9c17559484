"""The answers of health-check node ports, and which ports are to be served."""

import pytest

from vipwire.model.names import ObjectName
from vipwire.proxy.serve.service_health import PortChanges, ServiceHealthCheck, port_changes

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
    assert port_changes(listening, desired) == changes
