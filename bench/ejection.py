"""The cost of outlier ejection for a new connection: unused, used by other Services, or by this Service.

As in `datapath`: connections one after the other through a node. The three cases, which listen to conntrack in
different ways, take turns, so that other load affects all alike. Events are read between the turns, timed separately.
"""

import resource
import time
from collections.abc import Iterable, Iterator

from bench.cluster import objects
from bench.datapath import TURNS, _ours, _quantile, inside
from bench.datapath import network as networks
from bench.options import Options
from bench.report import Figure

from vipwire.linux.conntrack.attempts import Attempts
from vipwire.linux.netlink.conntrack import GROUP_DESTROY, GROUP_NEW, FlowDecoder, decode_event
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.linux.netlink.socket_filter import pass_new_and_ended_flows
from vipwire.model.net import Address, Protocol, format_address
from vipwire.plan.ejection import EndpointKey

TITLE = "a new connection, while endpoints that do not answer are looked for"
_ELSEWHERE = tuple(Address((0x0B000000 + number).to_bytes(4)) for number in range(1000))


def measure(options: Options) -> list[Figure]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    services, slices = objects(100, options.endpoints)
    vips = [format_address(service.cluster_ips[0]) for service in services]
    keys = frozenset(
        EndpointKey(Protocol.TCP, endpoint.address, port.port)
        for piece in slices
        for port in piece.ports
        for endpoint in piece.endpoints
    )
    manners: dict[str, Iterable[Address] | None] = {
        "nobody": None,
        "others": _ELSEWHERE,
        "this": [key.address for key in keys],
    }
    times: dict[str, list[float]] = {name: [] for name in manners}
    read: list[float] = []
    with networks(_ours, services, slices) as network:
        for _ in range(TURNS):
            for name, addresses in manners.items():
                listener = None if addresses is None else _listener(network.node, list(addresses))
                network.connect(vips, 80, options.connections // TURNS, times[name])
                if listener is not None:
                    read += _read(listener, keys) if name == "this" else ()
                    listener.close()
    return list(_figures(times, read))


def _listener(node: int, addresses: list[Address]) -> NetlinkSocket:
    with inside(node):
        made = NetlinkSocket(NETLINK_NETFILTER)
    made.filter(pass_new_and_ended_flows(addresses, {Protocol.TCP}))
    for group in (GROUP_NEW, GROUP_DESTROY):
        made.join(group)
    return made


def _read(listener: NetlinkSocket, keys: frozenset[EndpointKey]) -> Iterator[float]:
    """Read the events; yield the seconds for each connection."""
    attempts, decoder, count = Attempts(), FlowDecoder(), 0
    attempts.watch(keys)
    began = time.perf_counter()
    for message in listener.read_pending_messages(4096):
        count += 1
        if (event := decode_event(message, decoder.decode)) is not None:
            attempts.see(event, 0.0)
    if count:
        yield (time.perf_counter() - began) / count


def _figures(times: dict[str, list[float]], read: list[float]) -> Iterator[Figure]:
    for at, what in ((0.1, "fastest tenth within"), (0.5, "median")):
        nobody, others, this = (_quantile(times[name], at) for name in ("nobody", "others", "this"))
        yield Figure(f"{what}: nobody asks", nobody, "µs")
        yield Figure("  other Services ask", others, "µs")
        yield Figure("  other Services ask / nobody asks", others / nobody, "ratio")
        yield Figure("  this Service asks", this, "µs")
        yield Figure("  this Service asks / nobody asks", this / nobody, "ratio")
    yield Figure("to take in a connection, in the proxy", sorted(read)[len(read) // 2] * 1e6, "µs")
