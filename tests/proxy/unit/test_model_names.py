from tests.fakes.values import named, port, service

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Protocol
from vipwire.model.problem import Problem
from vipwire.model.sysctl import Sysctl


def test_objects_print_with_their_namespace_if_they_have_one() -> None:
    assert str(ObjectName("default", "web")) == "default/web"
    assert str(ObjectName("", "node-1")) == "node-1"


def test_a_service_port_prints_as_kube_proxy_prints_it() -> None:
    assert str(ServicePortName(named("web"), "http", Protocol.TCP)) == "default/web:http"
    assert str(ServicePortName(named("web"), "", Protocol.UDP)) == "default/web"


def test_a_service_names_its_ports_with_their_protocol() -> None:
    dns = port(53, "dns", Protocol.UDP)
    assert service("kube-dns", "10.96.0.10", dns).port_name(dns) == ServicePortName(
        named("kube-dns"), "dns", Protocol.UDP
    )


def test_a_problem_says_whose_it_is_where_and_what() -> None:
    problem = Problem("Service", named("web"), "spec.ports[1].port", "is 0 (allowed: 1 to 65535)")
    assert str(problem) == "Service default/web: spec.ports[1].port: is 0 (allowed: 1 to 65535)"


def test_a_kernel_setting_is_named_as_sysctl_names_it() -> None:
    assert Sysctl("net/ipv4/conf/eth0.5/rp_filter", 0).name == "net.ipv4.conf.eth0/5.rp_filter"
