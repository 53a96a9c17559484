"""A port that DNS takes for itself: TCP and UDP of it are free, at all addresses, however few these are."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network

from vipwire.errors import UnsupportedError
from vipwire_up.dns.sockets import TRIES, open_pairs

pytestmark = pytest.mark.kernel
HOSTS = ("127.0.0.1", "127.0.0.2")
PORTS = range(20000, 20016)


@pytest.fixture(autouse=True)
def _few_ports() -> Iterator[None]:
    """Be in a network whose kernel gives these ports only."""
    with own_network():
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(f"{PORTS[0]} {PORTS[-1]}")
        yield


@contextlib.contextmanager
def taken(host: str, kind: socket.SocketKind, *ports: int) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        for port in ports:
            opened.enter_context(socket.socket(socket.AF_INET, kind)).bind((host, port))
        yield


def opened_port(*hosts: str) -> int:
    pairs = open_pairs(hosts, 0)
    ports = {each.getsockname()[1] for pair in pairs for each in (pair.stream, pair.datagrams)}
    for pair in pairs:
        pair.stream.close()
        pair.datagrams.close()
    assert len(pairs) == len(hosts)
    (port,) = ports
    return int(port)


@pytest.mark.parametrize("free", [PORTS[0], PORTS[7], PORTS[-1]])
def test_the_only_port_that_both_have_free_is_found(free: int) -> None:
    with taken(HOSTS[0], socket.SOCK_DGRAM, *(port for port in PORTS if port != free)):
        assert opened_port(*HOSTS) == free
    with taken(HOSTS[1], socket.SOCK_STREAM, *(port for port in PORTS if port != free)):
        assert opened_port(*HOSTS) == free


def test_without_any_it_gives_up() -> None:
    assert len(PORTS) < TRIES
    with (
        taken(HOSTS[1], socket.SOCK_DGRAM, *PORTS),
        pytest.raises(UnsupportedError, match=r"cannot listen on 127\.0"),
    ):
        open_pairs(HOSTS, 0)
    assert opened_port(*HOSTS) in PORTS  # nothing was left open


def test_a_port_that_was_said_is_tried_alone() -> None:
    with (
        taken(HOSTS[0], socket.SOCK_DGRAM, 1053),
        pytest.raises(UnsupportedError, match=r"^cannot listen on 127\.0\.0\.1 port 1053: Address already in use$"),
    ):
        open_pairs(HOSTS, 1053)
