import pytest
from bench import kubeproxy
from bench.report import Figure, rows

from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort


def figures(*values: float, target: float | None = 2.0) -> list[list[Figure]]:
    return [[Figure("total", value, "s", target)] for value in values]


@pytest.mark.parametrize(
    ("values", "target", "verdict"),
    [
        ((1.0, 2.0, 9.0), 2.0, "met"),
        ((1.0, 2.1, 9.0), 2.0, "met by the best run"),
        ((2.1, 2.1, 9.0), 2.0, "MISSED"),
        ((9.0,), None, ""),
    ],
)
def test_a_figure_is_judged_by_its_median_and_its_best_run(
    values: tuple[float, ...], target: float | None, verdict: str
) -> None:
    (row,) = rows(figures(*values, target=target))
    assert row.verdict == verdict


def test_the_rival_rules_carry_the_names_that_kube_proxy_gives() -> None:
    service = Service(
        ObjectName("ns1", "svc1"), (ServicePort("p80", Protocol.TCP, 80),), (parse_address("172.30.0.41"),)
    )
    piece = EndpointSlice(
        ObjectName("ns1", "svc1-a"),
        service.name,
        Family.IPV4,
        (EndpointPort("p80", Protocol.TCP, 80),),
        (Endpoint(parse_address("10.180.0.1")),),
    )
    script = "".join(kubeproxy.script([service], [piece], "192.168.0.2", "10.0.0.0/8", ["172.30.0.0/16"]))
    chain = "service-ULMVA6XW-ns1/svc1/tcp/p80"
    assert f"add element ip kube-proxy service-ips {{ 172.30.0.41 . tcp . 80 : goto {chain} }}\n" in script
    spread = "numgen random mod 1 map { 0 : 10.180.0.1 . 80 }"
    assert f"add rule ip kube-proxy {chain} meta l4proto tcp dnat ip addr . port to {spread}\n" in script
