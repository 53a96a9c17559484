"""Follows a packet in ipvs mode: chains with their sets, the virtual server, its real servers, masquerading. Pure.

    remote client       mangle and nat PREROUTING ▸ routing: local address or mark ▸ mangle, filter INPUT ▸ IPVS
    local process       mangle and nat OUTPUT ▸ IPVS, or else filter OUTPUT and, for this node, INPUT
    chosen server       nat POSTROUTING, with the server's address

Each real server that accepts new connections is one path. Its share follows from the scheduler and the weights alone:

    rr, lc, dh, lblc, lblcr, twos    equal shares: in turn, by open connections, or (dh) by the VIP
    wrr, wlc, sed, nq, mh            by weight: in turn, by open connections, or by the client's address and port
    sh                               by the client's address alone: one real server, computed here
    fo, ovf                          the one of greatest weight (ovf: with room)

Schedulers that count connections deviate for a moment; over time the shares are these. Source:
net/netfilter/ipvs/ip_vs_*.c.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from operator import xor
from typing import Any, Final

from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, format_address, format_endpoint
from vipwire.modes.ipvs.explain.objects import IpvsNode
from vipwire.modes.ipvs.objects.names import DEVICE, describe_server
from vipwire.modes.xtables.match import PacketHeader
from vipwire.modes.xtables.traversal import Traversal
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, IN_TURN, Path
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict, compare_object

_METHODS = {Method.MASQUERADE: "by translation", Method.ROUTE: "as it is", Method.TUNNEL: "in a tunnel"}


def trace_packet(node: IpvsNode, packet: Packet) -> tuple[VirtualServer | None, list[Path]]:
    walker = _Walker(node, packet)
    server = walker.pass_hooks()
    if server is None:
        return None, [walker.build_path(end=walker.end)]
    return server, list(walker.follow_balancing(server))


class _Walker:
    """Takes a packet from hook to hook. `end` is set when a rule refuses the packet."""

    def __init__(self, node: IpvsNode, packet: Packet) -> None:
        self.node, self.packet, self.header = node, packet, PacketHeader.of(packet)
        self.tables = Traversal(node, self.header)
        self.end = End.UNTOUCHED

    def build_path(self, **more: Any) -> Path:
        return Path(list(self.tables.steps), uncertain=self.tables.uncertain, **more)

    def pass_hooks(self) -> VirtualServer | None:
        """Pass the hooks until one decides; return the virtual server that takes the packet."""
        first = "OUTPUT" if self.packet.from_node else "PREROUTING"
        if self.is_refused("mangle", first) or self.is_refused("nat", first):
            return None
        local = self.is_delivered_here()
        if self.packet.from_node:
            server = self.find_virtual_server()
            if server is None and not self.is_refused("filter", "OUTPUT") and local:
                self.is_refused("filter", "INPUT")
            return server
        if not local:
            self.is_refused("filter", "FORWARD")
        elif not self.is_refused("mangle", "INPUT") and not self.is_refused("filter", "INPUT"):
            return self.find_virtual_server()
        return None

    def is_refused(self, table: str, chain: str) -> bool:
        verdict = self.tables.run_hook(table, chain)
        if verdict is None or verdict.end is None:
            return False
        self.end = verdict.end
        return True

    def is_delivered_here(self) -> bool:
        """Report whether routing delivers the packet locally; note the object that decides and the missing ones."""
        node, address, mark = self.node, self.packet.destination, self.header.mark
        marked = [mark in each.marks and address in each.routes for each in (node.held, node.wanted)]
        owned = [address in each.vips for each in (node.held, node.wanted)]
        ways = ((f"ip rule fwmark {mark:#x}", marked, Verdict.ROUTE), (DEVICE, owned, Verdict.DELIVER))
        for name, (held, wanted), verdict in ways:
            if held:
                state = ObjectState.PLANNED if wanted else ObjectState.DIFFERENT
                self.tables.note(name, format_address(address), state, Effect(verdict))
                return True
            if wanted:
                self.tables.note(name, format_address(address))
        return self.packet.to_node or address in node.own

    def find_virtual_server(self) -> VirtualServer | None:
        """Find the virtual server, by mark first, and note it; note the missing ones if none is found."""
        place = VirtualServer(self.packet.protocol, self.packet.destination, self.packet.port)
        marked = VirtualServer(0, Address(b""), 0, self.header.mark)
        candidates = [marked, place] if self.header.mark else [place]
        held, wanted = self.node.held.servers, self.node.wanted.servers
        for server in candidates:
            if server in held:
                persistence = f" persistent {held[server].persistence} s" if held[server].persistence else ""
                state, words = compare_object(server, held, wanted), held[server].scheduler + persistence
                self.tables.note(describe_server(server), words, state, Effect(Verdict.BALANCE))
                return server
        for server in candidates:
            if server in wanted:
                self.tables.note(describe_server(server))
        return None

    def follow_balancing(self, server: VirtualServer) -> Iterator[Path]:
        """Follow the packet to each real server; local delivery and direct return skip POSTROUTING."""
        reals, shares = self.node.held.reals.get(server, {}), self.compute_shares(server)
        self.tables.steps += self.describe_real_servers(server, shares)
        how_chosen = describe_choice(self.node.held.servers[server])
        if not shares:
            nobody = not any(how.weight for how in self.node.wanted.reals.get(server, {}).values())
            state = ObjectState.PLANNED if nobody else ObjectState.DIFFERENT
            self.tables.note(describe_server(server), "", state, Effect(Verdict.EMPTY))
            yield self.build_path(end=End.REJECTED, choice=how_chosen)
        steps, mark = self.tables.steps, self.header.mark
        for real, share in shares.items():
            self.tables.steps, masqueraded = list(steps), False
            target = real.address, real.port or self.packet.port
            stays = real.address in self.node.own and not self.packet.from_node
            if reals[real].method is Method.MASQUERADE and not stays:
                self.header.destination, self.header.port, self.header.mark = *target, mark
                masqueraded = self.tables.run_hook("nat", "POSTROUTING") is Verdict.MASQUERADE
            yield self.build_path(share=share, target=target, masqueraded=masqueraded, choice=how_chosen)

    def compute_shares(self, server: VirtualServer) -> dict[RealServer, Fraction]:
        """Return the shares of real servers.

        A local process without a bound source sends to a VIP from the VIP itself. The rules treat both sources alike,
        but a hash does not: the packet may have either one.
        """
        how, sources = self.node.held.servers[server], {self.packet.source}
        if self.packet.from_node and self.packet.destination in self.node.held.vips:
            sources.add(self.packet.destination)
        found: dict[RealServer, Fraction] = {}
        for source in sources:
            for real, share in compute_connection_shares(how, self.node.held.reals.get(server, {}), source).items():
                found[real] = found.get(real, Fraction(0)) + share / len(sources)
        return found

    def describe_real_servers(self, server: VirtualServer, shares: dict[RealServer, Fraction]) -> Iterator[Step]:
        """Yield each real server with its weight and share, then the missing ones."""
        held, wanted = (each.reals.get(server, {}) for each in (self.node.held, self.node.wanted))
        for real, how in (held | {real: how for real, how in wanted.items() if real not in held}).items():
            state, effect = compare_object(real, held, wanted), Effect(Verdict.IDLE)
            if share := shares.get(real):
                method = _METHODS.get(how.method, how.method.name.lower())
                effect = Effect(Verdict.SHARE, f"{float(share) * 100:.3g} %, {method}")
            elif state is ObjectState.FOREIGN and not how.weight:
                state, effect = ObjectState.PLANNED, Effect(Verdict.FINISH)
            effects = () if state is ObjectState.MISSING else (effect,)
            yield Step("", f"-> {format_endpoint(real.address, real.port)}", f"weight {how.weight}", state, effects)


_EQUAL = frozenset({"rr", "lc", "dh", "lblc", "lblcr", "twos"})
_HEAVIEST = frozenset({"fo", "ovf"})
_BUCKETS, _GOLDEN = 256, 0x61C88647  # IP_VS_SH_TAB_SIZE, GOLDEN_RATIO_32
_SHIFT = 24  # hash_32 keeps the top 8 bits
_CHOICES: Final = {
    "rr": IN_TURN,
    "wrr": IN_TURN,
    "lc": "each new connection goes to the endpoint with the fewest connections",
    "wlc": "each new connection goes to the endpoint with the fewest connections for its weight",
    "sed": "each new connection goes to the endpoint with the shortest expected delay",
    "nq": "each new connection goes to an idle endpoint, else to the one with the shortest expected delay",
    "lblc": "new connections go to the endpoint of this address's earlier connections, unless it is overloaded",
    "lblcr": "new connections go to the endpoints of this address's earlier connections, unless these are overloaded",
    "dh": "this address decides the endpoint for all clients",
    "sh": BY_ADDRESS,
    "mh": BY_ADDRESS,
    "fo": "all new connections go to the endpoint with the greatest weight",
    "ovf": (
        "new connections go to the endpoint with the greatest weight among those with fewer connections than weight"
    ),
    "twos": "each new connection goes to the less loaded of two random endpoints",
}
_WITH_PORT: Final = {"mh": ServiceFlag.SCHEDULER_2, "sh": ServiceFlag.SCHEDULER_2}


def describe_choice(scheduling: Scheduling) -> str:
    """Describe in one sentence how a virtual server chooses a real server; "" for an unknown scheduler."""
    name = scheduling.scheduler
    if scheduling.flags & _WITH_PORT.get(name, ServiceFlag(0)):
        return BY_ADDRESS_AND_PORT
    return _CHOICES.get(name, "")


def compute_connection_shares(
    scheduling: Scheduling, reals: Mapping[RealServer, Forwarding], client: Address
) -> dict[RealServer, Fraction]:
    """Return each real server's share of a client's new connections; empty if no real server accepts any.

    `sh` needs `reals` in the kernel's order.
    """
    taking = {real: how.weight for real, how in reals.items() if how.weight}
    if not taking:
        return {}
    if scheduling.scheduler == "sh" and not scheduling.flags & ServiceFlag.SCHEDULER_2:
        found = _choose_by_source(
            list(reals.items()), client, falls_back=bool(scheduling.flags & ServiceFlag.SCHEDULER_1)
        )
        return {} if found is None else {found: Fraction(1)}
    if scheduling.scheduler in _HEAVIEST:
        return {max(taking, key=lambda real: taking[real]): Fraction(1)}
    if scheduling.scheduler in _EQUAL:
        return dict.fromkeys(taking, Fraction(1, len(taking)))
    total = sum(taking.values())
    return {real: Fraction(weight, total) for real, weight in taking.items()}


def _choose_by_source(
    reals: Sequence[tuple[RealServer, Forwarding]], client: Address, *, falls_back: bool
) -> RealServer | None:
    """Hash as ip_vs_sh_hashkey does, into buckets that ip_vs_sh_reassign assigned to the real servers by weight."""
    buckets = [real for real, how in reals for _ in range(max(1, how.weight))]
    weights = dict(reals)
    words = (int.from_bytes(client[at : at + 4]) for at in range(0, len(client), 4))
    first = (reduce(xor, words) * _GOLDEN & 0xFFFFFFFF) >> _SHIFT

    def bucket(offset: int) -> RealServer:
        return buckets[((offset + first) % _BUCKETS) % len(buckets)]

    if weights[bucket(0)].weight:
        return bucket(0)
    if not falls_back:
        return None
    for step in range(_BUCKETS):
        if weights[found := bucket((step + first) % _BUCKETS)].weight:
            return found
    return None
