"""Reading a packet's words: what is meant, and what is said when they mean nothing."""

from pathlib import Path

import pytest
from tests.proxy.unit.inspected import Shelf, example, look, make_config

from vipwire.errors import ConfigError
from vipwire.inspect.explain.packet import find_services, read_packet
from vipwire.inspect.node.situation import Situation
from vipwire.model.net import Protocol, format_address


@pytest.fixture
def situation(tmp_path: Path) -> Situation:
    return look(make_config(tmp_path, example()), Shelf({}))


@pytest.mark.parametrize(
    ("text", "address", "port", "protocol"),
    [
        ("10.96.0.10:80", "10.96.0.10", 80, Protocol.TCP),
        ("10.96.0.10:80/udp", "10.96.0.10", 80, Protocol.UDP),
        ("web", "10.96.0.10", 80, Protocol.TCP),
        ("web:http", "10.96.0.10", 80, Protocol.TCP),
        ("default/web:80/tcp", "10.96.0.10", 80, Protocol.TCP),
        ("kube-system/away", "10.96.0.2", 53, Protocol.TCP),
    ],
)
def test_a_destination_is_an_address_or_a_service(
    situation: Situation, text: str, address: str, port: int, protocol: Protocol
) -> None:
    packet = read_packet(situation, "10.244.2.12", text)
    assert (format_address(packet.destination), packet.port, packet.protocol) == (address, port, protocol)
    assert not packet.from_node


@pytest.mark.parametrize(
    ("source", "destination", "interface", "said"),
    [
        ("", "wep", "", "there is no Service 'wep'; near it: web"),
        ("", "web:htp", "", "default/web has no port 'htp'; near it: http"),
        ("", "web:81", "", "default/web has no port '81'; there is http, 80"),
        ("", "10.96.0.10", "", "'10.96.0.10' is not a destination: write ADDRESS:PORT"),
        ("", "10.96.0.10:0", "", "'0' is not a port from 1 to 65535"),
        ("", "10.96.0.10:80/icmp", "", "must be tcp, udp or sctp"),
        ("", "fd00::1:80", "", "an IPv6 address needs brackets"),
        ("10.0.0.300", "web", "", "--from: '10.0.0.300' is not an IP address"),
        ("fd00::1", "10.96.0.10:80", "", "a packet has one family"),
        ("fd00::1", "web", "", "default/web has no IPv6 ClusterIP"),
        ("", "web", "eth0", "--interface: 192.168.0.1 is this node's own"),
    ],
)
def test_what_cannot_be_meant_says_what_can(
    situation: Situation, source: str, destination: str, interface: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_packet(situation, source, destination, interface)
    assert said in str(caught.value)


def test_services_are_found_by_name_by_namespace_and_all(situation: Situation) -> None:
    def names(text: str) -> list[str]:
        return [str(service.name) for service in find_services(situation.store.services, text)]

    assert names("") == ["default/empty", "default/web", "default/wrong", "kube-system/away"]
    assert names("web") == names("default/web:http") == ["default/web"]
    assert names("kube-system/") == ["kube-system/away"]
    with pytest.raises(ConfigError, match="near it: default/web"):
        names("defaul/web")
    with pytest.raises(ConfigError, match=r"there is default/empty, default/web, default/wrong, kube-system/away$"):
        names("xyzzy")
