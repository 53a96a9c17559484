"""A packet's way in ipvs mode: chains with their sets, the virtual server, its real servers, masquerading. Pure.

    from elsewhere      mangle and nat PREROUTING ▸ is the address ours, or its mark's? ▸ mangle, filter INPUT ▸ IPVS
    a process here      mangle and nat OUTPUT ▸ IPVS; what IPVS does not take: filter OUTPUT, for this node INPUT
    a chosen server     nat POSTROUTING, with the server's address

The rules are interpreted as they were observed. One that cannot be understood is passed over, and what comes out is
not certain.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, VirtualServer
from vipwire.model.net import Address, format_address, format_endpoint
from vipwire.modes.ipvs.explain.rules import Node, planned
from vipwire.modes.ipvs.explain.shares import connection_shares
from vipwire.modes.ipvs.objects.describe import describe_server
from vipwire.modes.ipvs.objects.names import DEVICE
from vipwire.modes.xtables.match import Header
from vipwire.modes.xtables.traversal import Traversal
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import End, ObjectState, Step

_REFUSALS = {"DROP": End.DROPPED, "REJECT": End.REJECTED}
_METHODS = {Method.MASQUERADE: "by translation", Method.ROUTE: "as it is", Method.TUNNEL: "in a tunnel"}


@dataclass(slots=True)
class Way:
    """What the packet has met. `server` is the virtual server that took it, `shares` where it goes from there."""

    end: End = End.UNTOUCHED
    server: VirtualServer | None = None
    shares: dict[RealServer, Fraction] = field(default_factory=dict)
    masqueraded: set[Address] = field(default_factory=set)
    uncertain: bool = False
    steps: list[Step] = field(default_factory=list)


def follow(node: Node, packet: Packet) -> Way:
    """Follow the first packet of a connection."""
    walker = _Walker(node, packet)
    walker.go()
    walker.way.uncertain = walker.tables.uncertain
    return walker.way


class _Walker:
    """Takes a packet from hook to hook."""

    def __init__(self, node: Node, packet: Packet) -> None:
        self.node, self.packet, self.header = node, packet, Header.of(packet)
        self.tables = Traversal(node, node, self.header)
        self.way = Way(steps=self.tables.steps)

    def go(self) -> None:
        """Pass the hooks in order until one of them decides."""
        first = "OUTPUT" if self.packet.from_node else "PREROUTING"
        if self.refused("mangle", first) or self.refused("nat", first):
            return
        local = self.is_local()
        if self.packet.from_node:
            if not self.served() and not self.refused("filter", "OUTPUT") and local:
                self.refused("filter", "INPUT")
        elif not local:
            self.refused("filter", "FORWARD")
        elif not self.refused("mangle", "INPUT") and not self.refused("filter", "INPUT"):
            self.served()

    def refused(self, table: str, chain: str) -> bool:
        """Pass a built-in chain; tell whether the packet ended there."""
        refused = _REFUSALS.get(self.tables.hook(table, chain))
        if refused is not None:
            self.way.end = refused
        return refused is not None

    def is_local(self) -> bool:
        """Report whether routing delivers the packet here; note by what, and what is missing."""
        held, wanted, address = self.node.held, self.node.wanted, self.packet.destination
        mark, text = self.header.mark, format_address(address)
        if mark in held.marks and address in held.routes:
            state = planned(mark in wanted.marks and address in wanted.routes)
            self.tables.note(f"ip rule fwmark {mark:#x}", text, "leads to IPVS on this node", state)
            return True
        if mark in wanted.marks and address in wanted.routes:
            self.tables.note(f"ip rule fwmark {mark:#x}", text, "does not lead to IPVS", ObjectState.MISSING)
        if address in held.vips:
            self.tables.note(DEVICE, text, "has the address: taken in", planned(address in wanted.vips))
            return True
        if address in wanted.vips:
            self.tables.note(DEVICE, text, "lacks the address", ObjectState.MISSING)
        return self.packet.to_node or address in self.node.own

    def served(self) -> bool:
        """Find the virtual server, by mark first, and follow its real servers. Report whether there is one."""
        place = VirtualServer(self.packet.protocol, self.packet.destination, self.packet.port)
        marked = VirtualServer(0, Address(b""), 0, self.header.mark)
        candidates = [marked, place] if self.header.mark else [place]
        found = next((server for server in candidates if server in self.node.held.servers), None)
        if found is None:
            for server in candidates:
                if server in self.node.wanted.servers:
                    self.tables.note(describe_server(server), "", "does not exist", ObjectState.MISSING)
            return False
        self.note_server(found)
        reals = self.node.held.reals.get(found, {})
        self.way.server = found
        self.way.shares = self.shares(found, reals)
        self.way.end = End.ANSWERED if self.way.shares else End.REJECTED
        self.way.steps += self.real_steps(found, reals)
        if not self.way.shares:
            nobody = not any(how.weight for how in self.node.wanted.reals.get(found, {}).values())
            self.tables.note(
                describe_server(found), "", "has nobody for it, so the client is refused", planned(nobody)
            )
        self.leave(reals)
        return True

    def shares(self, server: VirtualServer, reals: Mapping[RealServer, Forwarding]) -> dict[RealServer, Fraction]:
        """Return the shares of real servers.

        A process here that chose no source sends to a VIP from the VIP itself. The rules do the same to it as to this
        node's address, which is the packet's source then, but a hash does not: either may be meant.
        """
        how, sources = self.node.held.servers[server], {self.packet.source}
        if self.packet.from_node and self.packet.destination in self.node.held.vips:
            sources.add(self.packet.destination)
        found: dict[RealServer, Fraction] = {}
        for source in sources:
            for real, share in connection_shares(how, reals, source).items():
                found[real] = found.get(real, Fraction(0)) + share / len(sources)
        return found

    def note_server(self, server: VirtualServer) -> None:
        """Note the virtual server that takes the packet."""
        how, same = self.node.held.servers[server], self.node.wanted.servers.get(server)
        words = [how.scheduler, *([f"persistent {how.persistence} s"] if how.persistence else [])]
        state = ObjectState.FOREIGN if same is None else planned(same == how)
        self.tables.note(describe_server(server), " ".join(words), "takes the packet", state)

    def real_steps(self, server: VirtualServer, reals: Mapping[RealServer, Forwarding]) -> Iterator[Step]:
        """Yield each real server with its weight and its share, and those that are missing."""
        wanted = self.node.wanted.reals.get(server, {})
        for real, how in reals.items():
            effect, state = "gets nothing new", ObjectState.FOREIGN
            if share := self.way.shares.get(real):
                effect = f"gets {float(share) * 100:.3g} %, {_METHODS.get(how.method, how.method.name.lower())}"
            if real in wanted:
                state = planned(wanted[real] == how)
            elif not how.weight:
                effect, state = "finishes its connections", ObjectState.PLANNED
            yield _real_step(real, how, effect, state)
        for real, how in wanted.items():
            if real not in reals:
                yield _real_step(real, how, "does not exist", ObjectState.MISSING)

    def leave(self, reals: Mapping[RealServer, Forwarding]) -> None:
        """Pass POSTROUTING for each server; what returns directly or stays on this node keeps its source.

        How it is for the first is told; of the others only what differs.
        """
        tables, header, told = self.tables, self.header, len(self.way.steps)
        mark = header.mark
        for real, how in reals.items():
            stays = real.address in self.node.own and not self.packet.from_node
            if real not in self.way.shares or how.method is not Method.MASQUERADE or stays:
                continue
            before = len(tables.steps)
            header.destination, header.port, header.mark = real.address, real.port or self.packet.port, mark
            if tables.hook("nat", "POSTROUTING") == "MASQUERADE":
                self.way.masqueraded.add(real.address)
            known = tables.steps[told:before]
            tables.steps[before:] = [step for step in tables.steps[before:] if step not in known]


def _real_step(real: RealServer, how: Forwarding, effect: str, state: ObjectState) -> Step:
    return Step(f"-> {format_endpoint(real.address, real.port)}", f"weight {how.weight}", effect, state)
