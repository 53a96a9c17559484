"""IPVS' memory of a client, in its own table: for S73 in docs/modes. Run by test_ipvs_guest.py.

A virtual server of an address remembers clients for that address only. One of a mark could serve several addresses
and remember for all, but sends a client to the client's port instead of the real server's.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import ip

from vipwire.linux.netlink.ipvs import Command, Forwarding, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.ipvs.objects.servers import IpvsServers, ServerCommand

pytestmark = pytest.mark.kernel

ADDRESSES = ("10.96.0.1", "198.18.0.1")
STICKY = Scheduling("rr", ServiceFlag.PERSISTENT, 300)
MARK, PORT, TARGET = 0x123, 80, 8080


@pytest.fixture(autouse=True)
def _namespace() -> Iterator[None]:
    with own_network():
        run("ip link add pods type dummy")
        run("ip link set pods up")
        run("ip address add 10.244.0.1/24 dev pods")
        for number in range(2, 6):  # they need not answer: a SYN makes a connection
            run(f"ip neighbour add 10.244.0.{number} lladdr 02:00:00:00:00:0{number} dev pods")
        for address in ADDRESSES:
            run(f"ip address add {address}/32 dev pods")
        yield


def connected(*virtual: VirtualServer) -> list[list[str]]:
    """Connect to both addresses; return IPVS' connections and templates."""
    reals = [ip(f"10.244.0.{number}") for number in range(2, 6)]
    with contextlib.closing(IpvsServers(Family.IPV4)) as servers, contextlib.ExitStack() as stack:
        for server in virtual:
            servers.apply([ServerCommand(Command.NEW_SERVICE, server, STICKY)])
            real = (RealServer(server, address, TARGET) for address in reals)
            servers.apply(ServerCommand(Command.NEW_DEST, each, Forwarding(1)) for each in real)
        for address in ADDRESSES:
            client = stack.enter_context(socket.socket())
            client.setblocking(False)  # noqa: FBT003
            client.bind(("10.244.0.1", 0))
            client.connect_ex((address, PORT))
        return [line.split() for line in Path("/proc/thread-self/net/ip_vs_conn").read_text().splitlines()[1:]]


def templates(table: list[list[str]]) -> list[list[str]]:
    return [fields for fields in table if fields[2] == "0000"]


def test_clients_are_remembered_for_each_address_by_itself() -> None:
    table = connected(*(VirtualServer(Protocol.TCP, ip(address), PORT) for address in ADDRESSES))
    assert {fields[3] for fields in templates(table)} == {ip(address).hex().upper() for address in ADDRESSES}
    assert {fields[6] for fields in table} == {f"{TARGET:04X}"}


def test_a_mark_remembers_for_all_addresses_and_leaves_the_port_as_it_is() -> None:
    run(f"iptables-legacy -t mangle -A OUTPUT -p tcp --dport {PORT} -j MARK --set-mark {MARK}")
    table = connected(VirtualServer(0, Address(b""), 0, MARK))
    (_template,) = templates(table)
    flows = [fields for fields in table if fields[2] != "0000"]
    assert len(flows) == len(ADDRESSES)
    assert len({fields[5] for fields in flows}) == 1, "one endpoint for both addresses"
    assert {fields[6] for fields in flows} == {f"{PORT:04X}"}, f"not {TARGET}: only where the ports are the same"
