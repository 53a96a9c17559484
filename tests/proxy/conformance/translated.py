"""Checks ebpf mode's counters on each probe: programs must translate the connections that they should.

Otherwise the suite could pass by nftables mode's rules alone.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.proxy.conformance.packets import family_of

from vipwire.linux.bpf.namespaces import read_netns_cookie
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.layout import FRONTENDS, HEAD, Flag, endpoints, frontend_key, read_endpoint
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.tables import Tables
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import Target


class Seen(NamedTuple):
    """The programs' view of a frontend: its object (b"" if unknown), and the count of translations."""

    held: bytes
    connections: int

    @property
    def flags(self) -> int:
        """The kinds of clients that it serves."""
        return int(HEAD.unpack_from(self.held)[0]) if self.held else 0


def look(lab: Lab, node: str, target: Target) -> Seen:
    """Read a node's programs' view of a frontend."""
    family = family_of(target)
    key = frontend_key(parse_address(target.address), target.protocol, target.port)
    with lab.enter_namespace(node):
        pins = NodePins(find_node_folder(), None)
    with contextlib.closing(pins):
        tables = Tables(family, pins)
        held = tables.observe().get((FRONTENDS, key), b"")
        return Seen(held, sum(count for pair, count in tables.counted.read() if pair.startswith(key)))


@contextlib.contextmanager
def translated(lab: Lab, node: str, caller: str, target: Target, count: int) -> Iterator[None]:
    """Check that all of a Pod's translatable connections are translated, including repetitions.

    A process on the node is bound to one of its addresses here, which leaves it to the rules; so is a Pod that may be
    its own endpoint.
    """
    before = look(lab, node, target)
    yield
    after = look(lab, node, target)
    if before.held != after.held or target.protocol is not Protocol.TCP or not after.flags & Flag.POD:
        return
    if _is_client(lab, node, caller) and not _may_meet_itself(lab, caller, family_of(target), after.held):
        grown = after.connections - before.connections
        assert grown >= count, f"{caller} to {target}: of {count} connections the programs translated {grown}"


def _is_client(lab: Lab, node: str, caller: str) -> bool:
    """Report whether a host is one of the node's Pods in the proxy's flags."""
    with lab.enter_namespace(node):
        pins = NodePins(find_node_folder(), None)
    with contextlib.closing(pins), lab.enter_namespace(caller):
        clients = pins.find("clients")
        return clients is not None and clients.lookup(read_netns_cookie().to_bytes(8, sys.byteorder)) is not None


def _may_meet_itself(lab: Lab, caller: str, family: Family, held: bytes) -> bool:
    """Report whether a host is an endpoint itself, or listens at all its addresses as if it were."""
    own = set(map(parse_address, lab.find_host(caller).addresses))
    dealt = [read_endpoint(each) for each in endpoints(family, held)]
    with lab.enter_namespace(caller):
        listed = [Path(f"/proc/thread-self/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    sockets = [line.split() for text in listed for line in text.splitlines()[1:]]
    everywhere = {
        int(words[1].split(":")[1], 16)
        for words in sockets
        if words[3] == "0A" and not words[1].strip("0").index(":")
    }
    return any(address in own or port in everywhere for address, port in dealt)
