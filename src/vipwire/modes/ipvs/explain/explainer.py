"""ipvs mode for people: its objects as the tools write them, and a packet's way through those that were observed."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from vipwire.linux.netlink.ipvs import Forwarding, RealServer, VirtualServer
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.explain.objects import KernelObjects
from vipwire.modes.ipvs.explain.rules import Node
from vipwire.modes.ipvs.explain.templates import find_template
from vipwire.modes.ipvs.explain.walk import follow
from vipwire.modes.ipvs.objects.commands import commands
from vipwire.modes.ipvs.objects.names import DEVICE, Object, ObjectKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import Walk, merge
from vipwire.reconcile.steps import End, ObjectState, Step

_CONNECTIONS = Path("/proc/thread-self/net/ip_vs_conn")


Resting = Callable[[], Mapping[VirtualServer, Mapping[RealServer, Forwarding]]]


class IpvsExplainer:
    """Explains ipvs mode's objects of one family, in the network namespace of the calling thread.

    What is observed lacks the real servers that finish their connections. `resting` tells of them, as they were when
    the objects were observed: `IpvsBackend.resting`.
    """

    def __init__(self, family: Family, resting: Resting = dict) -> None:
        self.family, self._resting = family, resting
        self._node: Node | None = None
        self._seen: tuple[Mapping[ObjectKey, Object], Mapping[ObjectKey, Object]] | None = None

    def script(self, delta: Delta[ObjectKey, Object], *, anew: bool = False) -> Iterable[str]:
        """Write a difference as commands of ipset, iptables, ipvsadm and ip; nothing ever has to be made anew."""
        del anew
        return commands(self.family, delta)

    def script_taker(self) -> str:
        """Name a shell: the commands are of ipset, iptables, ipvsadm and ip."""
        return "sh"

    def remains(self) -> str:
        """Return "": everything with our names is read, and nothing else matters."""
        return ""

    def walk(
        self,
        observed: Mapping[ObjectKey, Object],
        wanted: Mapping[ObjectKey, Object],
        packet: Packet,
        own: frozenset[Address] = frozenset(),
    ) -> Walk:
        """Follow a packet through the observed objects."""
        if not observed:
            return Walk(End.UNTOUCHED, (Step("", DEVICE, state=ObjectState.MISSING),))
        if self._seen is None or self._seen[0] is not observed or self._seen[1] is not wanted:
            held = KernelObjects.of(observed)
            held.reals.update((server, dict(reals)) for server, reals in self._resting().items())
            self._seen = observed, wanted
            self._node = Node(self.family, held, KernelObjects.of(wanted))
        assert self._node is not None  # noqa: S101 - it was made together with what was seen
        node = Node(self.family, self._node.held, self._node.wanted, own)
        return walk(node, packet)


def walk(node: Node, packet: Packet) -> Walk:
    """Follow a packet, with what IPVS remembers of its client."""
    server, paths = follow(node, packet)
    if server is None:
        planned = all(step.state is ObjectState.PLANNED for step in paths[0].steps)
        refused = paths[0].end is End.REJECTED and not paths[0].uncertain
        return merge(paths, refuses_strays=refused and planned and packet.destination in node.wanted.vips)
    if not node.held.servers[server].persistence:
        affinity = "clients are not remembered: only that choice keeps them where they are"
        return merge(paths, affinity=affinity)
    taking = {real.address: real.port for real, how in node.held.reals.get(server, {}).items() if how.weight}
    return merge(paths, remembered=find_template(_connections(), server, packet.source, taking))


def _connections() -> Iterable[str]:
    try:
        with _CONNECTIONS.open(encoding="ascii") as lines:
            yield from lines
    except OSError:  # it went while it was read: then nothing is remembered
        return
