"""ipvs mode for people: its objects as the tools write them, and a packet's way through those that were observed."""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from vipwire.linux.netlink.ipvs import Forwarding, RealServer, VirtualServer
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.explain.objects import KernelObjects
from vipwire.modes.ipvs.explain.rules import Node
from vipwire.modes.ipvs.explain.shares import choice
from vipwire.modes.ipvs.explain.templates import find_template
from vipwire.modes.ipvs.explain.walk import Way, follow
from vipwire.modes.ipvs.objects.commands import commands
from vipwire.modes.ipvs.objects.names import DEVICE, Object, ObjectKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import End, ObjectState, Step, Walk

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
            missing = Step(DEVICE, "", "nothing of ipvs mode is in the kernel", ObjectState.MISSING)
            return Walk(End.UNTOUCHED, (missing,))
        if self._seen is None or self._seen[0] is not observed or self._seen[1] is not wanted:
            held = KernelObjects.of(observed)
            held.reals.update((server, dict(reals)) for server, reals in self._resting().items())
            self._seen = observed, wanted
            self._node = Node(self.family, held, KernelObjects.of(wanted))
        assert self._node is not None  # noqa: S101 - it was made together with what was seen
        node = Node(self.family, self._node.held, self._node.wanted, own)
        return _told(follow(node, packet), node, packet)


def _told(way: Way, node: Node, packet: Packet) -> Walk:
    """Convert what the packet met into steps of an explanation."""
    end = End.UNKNOWN if way.uncertain else way.end
    shares: dict[tuple[Address, int] | None, Fraction] = {
        (real.address, real.port or packet.port): share for real, share in way.shares.items()
    }
    if end is not End.ANSWERED or way.server is None:
        as_planned = all(step.state is ObjectState.PLANNED for step in way.steps)
        strays = end is End.REJECTED and way.server is None and packet.destination in node.wanted.vips and as_planned
        return Walk(end, tuple(way.steps), refuses_strays=strays)
    remembered, scheduling = None, node.held.servers[way.server]
    if scheduling.persistence:
        taking = {real.address: real.port for real, how in node.held.reals[way.server].items() if how.weight}
        remembered = find_template(_connections(), way.server, packet.source, taking)
    affinity = (
        "" if scheduling.persistence else "clients are not remembered: only that choice keeps them where they are"
    )
    return Walk(
        end,
        tuple(way.steps),
        shares,
        frozenset(way.masqueraded),
        remembered,
        choice=choice(scheduling),
        affinity=affinity,
    )


def _connections() -> Iterable[str]:
    try:
        with _CONNECTIONS.open(encoding="ascii") as lines:
            yield from lines
    except OSError:  # it went while it was read: then nothing is remembered
        return
