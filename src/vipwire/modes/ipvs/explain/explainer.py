"""Prints ipvs mode's objects as ipset, iptables and ipvsadm do, and follows a packet through the observed ones."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from vipwire.linux.netlink.ipvs import Forwarding, RealServer, VirtualServer
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.inspection import Inspection
from vipwire.modes.ipvs.explain.objects import IpvsNode, KernelObjects
from vipwire.modes.ipvs.explain.walk import trace_packet
from vipwire.modes.ipvs.objects.commands import list_commands
from vipwire.modes.ipvs.objects.names import DEVICE, Object, ObjectKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import Explainer, Walk, merge
from vipwire.reconcile.steps import End, ObjectState, Step


def find_template(
    lines: Iterable[str], server: VirtualServer, client: Address, taking: Mapping[Address, int]
) -> tuple[Address, int, float] | None:
    """Find the real server to which an IPVS persistence template binds a client, and the seconds that it still lasts.

    `taking` lists the real servers that accept connections: IPVS ignores a template of any other.

    The lines come from /proc/net/ip_vs_conn (ip_vs_conn_seq_show in net/netfilter/ipvs/ip_vs_conn.c), with addresses
    and ports in hex. A template has client port 0. The template of a mark's virtual server has protocol IP and the
    mark in the first four bytes of the VIP.

        Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
        TCP C0A80001 0000 0A600001 0050 0AF4010B 0050 NONE             97
    """
    protocol = "IP" if server.mark else Protocol(server.protocol).name
    for line in lines:
        fields = line.split()
        if len(fields) < 9 or fields[0] != protocol or fields[2] != "0000":
            continue
        try:
            source, place, target = (_parse_address(fields[at]) for at in (1, 3, 5))
            seconds = float(fields[8])
        except ValueError:
            continue
        if server.mark:
            meant = int.from_bytes(place[:4]) == server.mark
        else:
            meant = (place, int(fields[4], 16)) == (server.address, server.port)
        if source == client and target in taking and meant:
            return target, taking[target], seconds
    return None


def _parse_address(text: str) -> Address:
    return Address(bytes.fromhex(text.replace(":", "")))


_CONNECTIONS = Path("/proc/thread-self/net/ip_vs_conn")


Resting = Callable[[], Mapping[VirtualServer, Mapping[RealServer, Forwarding]]]


class IpvsExplainer(Explainer[ObjectKey, Object, IpvsNode]):
    """Explains ipvs mode's objects of one family, in the calling thread's network namespace.

    `observe` leaves out real servers that drain. `resting` (of IpvsBackend) returns them, from the same read of the
    kernel.
    """

    def __init__(self, family: Family, resting: Resting = dict) -> None:
        super().__init__("sh")
        self.family, self._resting = family, resting

    def write_script(self, delta: Delta[ObjectKey, Object]) -> Iterable[str]:
        return list_commands(self.family, delta)

    def arrange(
        self, observed: Mapping[ObjectKey, Object], wanted: Mapping[ObjectKey, Object], own: frozenset[Address]
    ) -> IpvsNode:
        held = KernelObjects.of(observed)
        held.reals.update((server, dict(reals)) for server, reals in self._resting().items())
        return IpvsNode(self.family, held, KernelObjects.of(wanted), own)

    def trace(self, objects: IpvsNode, packet: Packet) -> Walk:
        """Follow a packet, with the persistence that IPVS remembers for its client."""
        held = objects.held
        if held == KernelObjects():
            return Walk(End.UNTOUCHED, (Step("", DEVICE, state=ObjectState.MISSING),))
        server, paths = trace_packet(objects, packet)
        if server is None:
            planned = all(step.state is ObjectState.PLANNED for step in paths[0].steps)
            refused = paths[0].end is End.REJECTED and not paths[0].uncertain
            return merge(paths, refuses_strays=refused and planned and packet.destination in objects.wanted.vips)
        if not held.servers[server].persistence:
            return merge(
                paths,
                affinity="IPVS remembers no clients, and only the scheduler keeps them at an endpoint",
            )
        taking = {real.address: real.port for real, how in held.reals.get(server, {}).items() if how.weight}
        return merge(paths, remembered=find_template(_read_connections(), server, packet.source, taking))


def _read_connections() -> Iterable[str]:
    try:
        with _CONNECTIONS.open(encoding="ascii") as lines:
            yield from lines
    except OSError:  # the file changed during the read: assume no template
        return


INSPECTION: Final = Inspection(lambda family, mode: IpvsExplainer(family, lambda: mode.resting))
