"""Real flows in a namespace of their own, translated by nftables; conntrack(8) is the oracle."""

import errno
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.fakes.own_network import own_network, run

from vipwire.linux.conntrack.flows import FlowDeletions, FlowTable
from vipwire.linux.conntrack.stale import Staleness, UdpFrontends, Unanswered, Untranslated
from vipwire.linux.netlink.conntrack import (
    CT_GET,
    GROUP_DESTROY,
    GROUP_NEW,
    STATUS_SEEN_REPLY,
    Flow,
    FlowChange,
    FlowEvent,
    decode,
    decode_event,
    encode_lookup,
)
from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket
from vipwire.linux.netlink.socket_filter import pass_new_and_ended_flows
from vipwire.model.net import Address, Family, Protocol, parse_address

pytestmark = pytest.mark.kernel

# Client source ports that the rules send to the first and to the second endpoint.
TO_FIRST, TO_SECOND = range(4000, 4100), range(4100, 4200)
NODE_PORT = 30053


@dataclass
class Network:
    """One family's part of the namespace: a client, a node address, two endpoints, and VIPs that nobody has."""

    family: Family
    client: str
    node: str
    endpoints: tuple[str, str]
    vip: str
    orphan: str
    elsewhere: str
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def table(self) -> str:
        return "ip" if self.family is Family.IPV4 else "ip6"

    def set_up(self) -> None:
        bits = self.family.bits
        for address in (self.client, self.node, *self.endpoints):
            run(f"ip address add {address}/{bits} dev lo" + (" nodad" if bits == 128 else ""))
        run("ip link add v0 type veth peer name v1")
        run("ip link set v0 up")
        run("ip link set v1 up")
        for address in (self.vip, self.orphan, self.elsewhere):
            run(f"ip route add {address}/{bits} dev v0 src {self.client}")
            run(f"ip neighbour add {address} lladdr 02:00:00:00:00:99 dev v0 nud permanent")
        # The kernel tracks connections in a namespace only once a rule there wants to know.
        run("nft -f -", "table inet track { chain o { type filter hook output priority 0; ct state new; }; }\n")
        run("sysctl -q -w net.netfilter.nf_conntrack_udp_timeout=600")  # a loaded machine takes its time

    def translate(self, first: int = 0, second: int = 1) -> None:
        """Load rules under which the two ranges of client ports go to these endpoints."""
        first_to, second_to = (
            f"[{address}]:53" if self.family is Family.IPV6 else f"{address}:53"
            for address in (self.endpoints[first], self.endpoints[second])
        )
        chosen = f"{{ {self.vip} . 53, {self.orphan} . 53, {self.node} . {NODE_PORT} }}"
        rules = "\n".join(
            f"{self.table} daddr . th dport {chosen} th sport {ports.start}-{ports.stop - 1} "
            f"meta l4proto {{ tcp, udp }} dnat to {to};"
            for ports, to in ((TO_FIRST, first_to), (TO_SECOND, second_to))
        )
        run(
            "nft -f -",
            f"table {self.table} t\ndelete table {self.table} t\n"
            f"table {self.table} t {{ chain o {{ type nat hook output priority -100;\n{rules}\n}}\n}}\n",
        )

    def open(self, address: str, port: int, kind: int = socket.SOCK_DGRAM) -> socket.socket:
        opened = socket.socket(socket.AF_INET if self.family is Family.IPV4 else socket.AF_INET6, kind)
        self.sockets.append(opened)
        opened.settimeout(60)
        opened.bind((address, port))
        return opened

    def serve(self) -> tuple[socket.socket, socket.socket]:
        return self.open(self.endpoints[0], 53), self.open(self.endpoints[1], 53)

    def key(self, name: str) -> Address:
        return parse_address(getattr(self, name))

    def serving(self, *indexes: int) -> frozenset[tuple[Address, int]]:
        return frozenset((parse_address(self.endpoints[index]), 53) for index in indexes)

    def staleness(self, *indexes: int) -> Staleness:
        """Say that these endpoints serve the VIP and the node port."""
        serving = self.serving(*indexes)
        return Staleness({(self.key("vip"), 53): serving, (None, NODE_PORT): serving}, frozenset({self.key("node")}))


def ipv4() -> Network:
    return Network(
        Family.IPV4, "10.1.0.100", "10.1.0.50", ("10.1.0.1", "10.1.0.2"), "10.96.0.10", "10.96.0.99", "10.9.9.9"
    )


def ipv6() -> Network:
    return Network(Family.IPV6, "fd01::100", "fd01::50", ("fd01::1", "fd01::2"), "fd96::10", "fd96::99", "fd09::9")


@pytest.fixture(params=[ipv4, ipv6], ids=["IPv4", "IPv6"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    made: Network = request.param()
    with own_network():
        made.set_up()
        try:
            yield made
        finally:
            for opened in made.sockets:
                opened.close()


@pytest.fixture
def table(network: Network) -> Iterator[FlowTable]:
    assert network.sockets == []  # the table is opened in the network's namespace
    with FlowTable() as opened:
        yield opened


def talk(client: socket.socket, to: tuple[str, int], server: socket.socket) -> None:
    """Send a packet by way of a VIP, and its answer back."""
    client.sendto(b"ping", to)
    data, sender = server.recvfrom(100)
    server.sendto(data, sender)
    assert client.recvfrom(100)[0] == b"ping"


def all_flows(table: FlowTable, network: Network) -> dict[int, Flow]:
    """Read the flows by client port, without those that the namespace makes by itself (ICMPv6)."""
    return {flow.source_port: flow for flow in table.list_flows(network.family) if flow.protocol in (6, 17)}


LINE = re.compile(
    r"^(?P<protocol>\w+) +\d+ +(?P<timeout>\d+) .*?src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+) (?:\[UNREPLIED\] )?"
    r"src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+) .*?mark=(\d+)(?: zone=(\d+))?.* id=(\d+)"
)


def as_conntrack_prints(network: Network) -> set[Flow]:
    """Ask conntrack(8) for all flows; timeouts go on meanwhile and status bits are words there, so both are 0."""
    found = set()
    for line in run(f"conntrack -L -o id -f {network.family.name.lower()}").splitlines():
        match = LINE.match(line)
        if match is None:
            assert line.startswith("icmp"), line
            continue
        name, _, *tuples, mark, zone, identifier = match.groups()
        ends: list[Address | int] = []
        for source, destination, source_port, destination_port in (tuples[:4], tuples[4:]):
            ends += [parse_address(source), int(source_port), parse_address(destination), int(destination_port)]
        protocol = Protocol[name.upper()]
        found.add(Flow._make((protocol, *ends, 0, 0, int(mark), int(identifier), int(zone or 0))))
    return found


def test_a_dump_is_what_conntrack_prints(network: Network, table: FlowTable) -> None:
    network.translate()
    servers = network.serve()
    for ports, server in ((TO_FIRST, servers[0]), (TO_SECOND, servers[1])):
        for port in ports[:20]:
            talk(network.open(network.client, port), (network.vip, 53), server)
    network.open(network.client, 5000).sendto(b"?", (network.elsewhere, 9))
    with network.open(network.endpoints[0], 53, socket.SOCK_STREAM) as listener:
        listener.listen()
        network.open(network.client, TO_FIRST[50], socket.SOCK_STREAM).connect((network.vip, 53))
    flows = all_flows(table, network)
    assert len(flows) == 42
    assert {flow._replace(status=0, timeout=0) for flow in flows.values()} == as_conntrack_prints(network)
    assert bool(flows[TO_FIRST[0]].status & STATUS_SEEN_REPLY)
    assert not flows[5000].status & STATUS_SEEN_REPLY
    assert 0 < flows[TO_FIRST[0]].timeout <= 600
    udp = set(table.list_flows(network.family, Protocol.UDP))
    assert {flow.source_port for flow in udp} == flows.keys() - {TO_FIRST[50]}
    assert [flow.source_port for flow in table.list_flows(network.family, Protocol.UDP, 9)] == [5000]


def test_exactly_the_stale_flows_go_and_their_clients_reach_a_living_endpoint(
    network: Network, table: FlowTable
) -> None:
    servers = network.serve()
    early = network.open(network.client, TO_FIRST[9])
    early.sendto(b"too early", (network.vip, 53))  # there are no rules yet
    network.translate()
    clients = {port: network.open(network.client, port) for port in (*TO_FIRST[:3], *TO_SECOND[:3])}
    for index, ports in enumerate((TO_FIRST, TO_SECOND)):
        talk(clients[ports[0]], (network.vip, 53), servers[index])
        talk(clients[ports[1]], (network.node, NODE_PORT), servers[index])
        talk(clients[ports[2]], (network.orphan, 53), servers[index])
    elsewhere = network.open(network.client, 5001)
    elsewhere.sendto(b"another machine's", (network.elsewhere, NODE_PORT))
    before = all_flows(table, network)
    network.translate(0, 0)  # the second endpoint is gone
    talk(clients[TO_SECOND[0]], (network.vip, 53), servers[1])  # and yet the flow still goes there

    assert table.delete_judged(network.staleness(0)) == FlowDeletions(examined=len(before), deleted=3)

    after = all_flows(table, network)
    assert before.keys() - after.keys() == {TO_FIRST[9], TO_SECOND[0], TO_SECOND[1]}
    assert {port: flow.identifier for port, flow in after.items()} == {
        port: before[port].identifier for port in after
    }
    talk(clients[TO_SECOND[0]], (network.vip, 53), servers[0])
    talk(clients[TO_SECOND[1]], (network.node, NODE_PORT), servers[0])
    talk(early, (network.vip, 53), servers[0])


def test_what_waits_for_an_ejected_endpoint_goes_to_another(network: Network, table: FlowTable) -> None:
    network.translate()
    servers = network.serve()
    silent = network.open(network.client, TO_SECOND[0])
    silent.sendto(b"lost", (network.vip, 53))
    servers[1].recv(100)
    answered = network.open(network.client, TO_SECOND[1])
    talk(answered, (network.vip, 53), servers[1])
    direct = network.open(network.client, 5000)
    direct.sendto(b"past the Service", (network.endpoints[1], 53))
    network.open(network.client, TO_FIRST[0]).sendto(b"another's", (network.vip, 53))
    network.translate(0, 0)  # the second endpoint is ejected
    place = (17, parse_address(network.endpoints[1]), 53)
    assert table.delete_judged(Unanswered(frozenset({place}), frozenset({53}))).deleted == 1
    assert all_flows(table, network).keys() == {TO_SECOND[1], 5000, TO_FIRST[0]}
    servers[0].recv(100)
    talk(silent, (network.vip, 53), servers[0])


def test_a_connection_that_began_without_rules_is_translated_at_its_next_packet(
    network: Network, table: FlowTable
) -> None:
    early = network.open(network.client, TO_FIRST[0], socket.SOCK_STREAM)
    early.settimeout(0)
    early.connect_ex((network.vip, 53))  # there are no rules yet
    other = network.open(network.client, TO_FIRST[1], socket.SOCK_STREAM)
    other.settimeout(0)
    other.connect_ex((network.elsewhere, 53))
    network.translate()
    server = network.open(network.endpoints[0], 53, socket.SOCK_STREAM)
    server.listen()
    answered = network.open(network.client, TO_FIRST[2], socket.SOCK_STREAM)
    answered.connect((network.vip, 53))
    deletions = table.delete_judged(Untranslated(frozenset({network.key("vip")})))
    assert (deletions.examined, deletions.deleted) == (2, 1)
    accepted = [server.accept(), server.accept()]
    network.sockets.extend(connection for connection, _ in accepted)
    assert {client[1] for _, client in accepted} == {TO_FIRST[0], TO_FIRST[2]}


def test_a_flow_is_deleted_once_and_never_its_successor(network: Network, table: FlowTable) -> None:
    client = network.open(network.client, 5000)
    client.sendto(b"?", (network.elsewhere, 9))
    (first,) = table.list_flows(network.family, Protocol.UDP)
    assert table.delete([first]) == 1
    assert table.delete([first, first]) == 0
    client.sendto(b"?", (network.elsewhere, 9))
    (second,) = table.list_flows(network.family, Protocol.UDP)
    assert second[:9] == first[:9]
    if second.identifier != first.identifier:  # the kernel hashes its address: the same memory has the same number
        assert table.delete([first]) == 0
    assert table.delete([second]) == 1


class Older(NetlinkSocket):
    """A kernel before 6.4 in which somebody's flowtable has the first flow of each request."""

    first = 0

    def reserve_sequence_numbers(self, count: int = 1) -> int:
        self.first = super().reserve_sequence_numbers(count)
        return self.first

    def read_acknowledgements(self, last: int | None = None) -> list[Acknowledgement]:
        return [*super().read_acknowledgements(last), Acknowledgement(errno.EBUSY, self.first)]


def test_a_flow_that_a_flowtable_has_keeps_no_other(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.translate()
    servers = network.serve()
    for number in TO_FIRST[:3]:
        talk(network.open(network.client, number), (network.vip, 53), servers[0])
    monkeypatch.setattr("vipwire.linux.conntrack.flows.NetlinkSocket", Older)
    with FlowTable() as table:
        assert table.delete_judged(network.staleness(1)) == FlowDeletions(examined=3, deleted=2, held=1)


def test_of_many_flows_those_that_are_to_go_are_deleted(network: Network, table: FlowTable) -> None:
    client = network.open(network.client, 5000)
    for port in range(10000, 15000):
        client.sendto(b"?", (network.vip, port))
    frontends: UdpFrontends = {(network.key("vip"), port): network.serving(0) for port in range(10000, 14500)}
    assert table.delete_judged(Staleness(frontends)).deleted == 4500
    assert sorted(flow.destination_port for flow in table.list_flows(network.family, Protocol.UDP)) == [
        *range(14500, 15000)
    ]


def test_a_dump_that_was_left_half_way_does_not_disturb_the_next(network: Network, table: FlowTable) -> None:
    client = network.open(network.client, 5000)
    for port in range(10000, 12000):
        client.sendto(b"?", (network.vip, port))
    next(table.list_flows(network.family))
    assert sum(flow.protocol == Protocol.UDP for flow in table.list_flows(network.family)) == 2000


def test_a_flow_in_a_zone_is_left_by_a_sweep_and_found_by_a_deletion(network: Network, table: FlowTable) -> None:
    run("nft -f -", "table inet z { chain o { type filter hook output priority raw; ct original zone set 5; }; }\n")
    network.open(network.client, 5000).sendto(b"?", (network.vip, 53))
    (flow,) = table.list_flows(network.family, Protocol.UDP)
    assert flow.zone == 5
    assert table.delete_judged(network.staleness(0)) == FlowDeletions(1, 0)
    assert table.delete([flow]) == 1
    assert list(table.list_flows(network.family, Protocol.UDP)) == []


def test_the_kernel_tells_of_new_and_destroyed_flows(network: Network, table: FlowTable) -> None:
    with NetlinkSocket(NETLINK_NETFILTER) as events:
        events.join(GROUP_NEW)
        events.join(GROUP_DESTROY)
        network.open(network.client, 5000).sendto(b"?", (network.elsewhere, 9))
        (flow,) = table.list_flows(network.family, Protocol.UDP)
        table.delete([flow])
        heard: list[FlowEvent] = []
        while len(heard) < 2 and select.select([events], [], [], 60)[0]:
            told = [decode_event(message) for message in events.read_pending_messages()]
            heard += [event for event in told if event is not None and event.flow.protocol == Protocol.UDP]
    assert [(event.change, event.flow.identifier) for event in heard] == [
        (FlowChange.NEW, flow.identifier),
        (FlowChange.DESTROYED, flow.identifier),
    ]


def test_only_beginnings_and_bad_ends_come_of_the_endpoints_that_are_watched(
    network: Network, table: FlowTable
) -> None:
    network.translate()
    tcp = socket.SOCK_STREAM
    listener = network.open(network.endpoints[0], 53, tcp)
    listener.listen()
    servers = network.serve()
    others = [parse_address(f"10.9.{number // 200}.{number % 200}") for number in range(600)]
    endpoints = [parse_address(address) for address in network.endpoints]
    with NetlinkSocket(NETLINK_NETFILTER) as events:
        events.filter(pass_new_and_ended_flows([*others, *endpoints], {Protocol.TCP}))
        for group in (GROUP_NEW, GROUP_DESTROY):
            events.join(group)
        talk(network.open(network.client, TO_FIRST[1]), (network.vip, 53), servers[0])  # UDP is not asked for
        with network.open(network.client, TO_FIRST[0], tcp) as answered:
            answered.connect((network.vip, 53))
            listener.accept()[0].close()
            assert answered.recv(1) == b""
        with pytest.raises(ConnectionRefusedError), network.open(network.client, TO_SECOND[0], tcp) as refused:
            refused.connect((network.vip, 53))
        silent = network.open(network.client, 5000, tcp)
        silent.settimeout(0)
        silent.connect_ex((network.elsewhere, 9))  # another address than those that are watched
        events.filter(pass_new_and_ended_flows([network.key("elsewhere")], set(Protocol)))
        network.open(network.client, 5001).sendto(b"?", (network.elsewhere, 9))
        heard: list[FlowEvent] = []
        while len(heard) < 4 and select.select([events], [], [], 60)[0]:
            heard += [
                event for message in events.read_pending_messages() if (event := decode_event(message)) is not None
            ]
    assert [(event.change, event.flow.source_port) for event in heard] == [
        (FlowChange.NEW, TO_FIRST[0]),
        (FlowChange.NEW, TO_SECOND[0]),
        (FlowChange.DESTROYED, TO_SECOND[0]),
        (FlowChange.NEW, 5001),
    ]
    with NetlinkSocket(NETLINK_NETFILTER) as asker:
        (found,) = asker.request(CT_GET, encode_lookup(heard[0].flow))
        flow = decode(found.payload)
        assert (flow.identifier, flow.status & STATUS_SEEN_REPLY) == (heard[0].flow.identifier, STATUS_SEEN_REPLY)
        with pytest.raises(NetlinkError) as error:
            asker.request(CT_GET, encode_lookup(heard[1].flow))
        assert error.value.errno == errno.ENOENT
    table.delete(table.list_flows(network.family, Protocol.UDP))


def test_without_the_capability_the_error_names_it() -> None:
    program = """
import vipwire.linux.conntrack.flows, vipwire.errors, vipwire.linux.host.kernel, vipwire.model.net
for attempt in (
    vipwire.linux.host.kernel.require_nftables,
    lambda: list(vipwire.linux.conntrack.flows.FlowTable().list_flows(vipwire.model.net.Family.IPV4)),
):
    try:
        attempt()
    except vipwire.errors.UnsupportedError as error:
        print(error)
"""
    with own_network():
        said = subprocess.run(
            ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
        )
    assert [line for line in said.stdout.splitlines() if "CAP_NET_ADMIN" in line] == said.stdout.splitlines()
    assert len(said.stdout.splitlines()) == 2
