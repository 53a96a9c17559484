"""Computes each real server's share of new connections from the scheduler and the weights alone. Pure.

    rr, lc, dh, lblc, lblcr, twos    equal shares: in turn, by open connections, or (dh) by the VIP
    wrr, wlc, sed, nq, mh            by weight: in turn, by open connections, or by the client's address and port
    sh                               by the client's address alone: one real server, computed here
    fo, ovf                          the one of greatest weight (ovf: with room)

Schedulers that count connections deviate for a moment; over time the shares are these. Source:
net/netfilter/ipvs/ip_vs_*.c.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from operator import xor
from typing import Final

from vipwire.linux.netlink.ipvs import Forwarding, RealServer, Scheduling, ServiceFlag
from vipwire.model.net import Address
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, IN_TURN

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


def choice(scheduling: Scheduling) -> str:
    """Describe in one sentence how a virtual server chooses a real server; "" for an unknown scheduler."""
    name = scheduling.scheduler
    if scheduling.flags & _WITH_PORT.get(name, ServiceFlag(0)):
        return BY_ADDRESS_AND_PORT
    return _CHOICES.get(name, "")


def connection_shares(
    scheduling: Scheduling, reals: Mapping[RealServer, Forwarding], client: Address
) -> dict[RealServer, Fraction]:
    """Return each real server's share of a client's new connections; empty if no real server accepts any.

    `sh` needs `reals` in the kernel's order.
    """
    taking = {real: how.weight for real, how in reals.items() if how.weight}
    if not taking:
        return {}
    if scheduling.scheduler == "sh" and not scheduling.flags & ServiceFlag.SCHEDULER_2:
        found = _by_source(list(reals.items()), client, falls_back=bool(scheduling.flags & ServiceFlag.SCHEDULER_1))
        return {} if found is None else {found: Fraction(1)}
    if scheduling.scheduler in _HEAVIEST:
        return {max(taking, key=lambda real: taking[real]): Fraction(1)}
    if scheduling.scheduler in _EQUAL:
        return dict.fromkeys(taking, Fraction(1, len(taking)))
    total = sum(taking.values())
    return {real: Fraction(weight, total) for real, weight in taking.items()}


def _by_source(
    reals: Sequence[tuple[RealServer, Forwarding]], client: Address, *, falls_back: bool
) -> RealServer | None:
    """Hash as ip_vs_sh_hashkey does, into buckets that ip_vs_sh_reassign assigned to the real servers by weight."""
    buckets = [real for real, how in reals for _ in range(max(1, how.weight))]
    weights = dict(reals)
    first = (_fold(client) * _GOLDEN & 0xFFFFFFFF) >> _SHIFT

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


def _fold(address: Address) -> int:
    """Fold an address into 32 bits: the exclusive or of its words."""
    return reduce(xor, (int.from_bytes(address[at : at + 4]) for at in range(0, len(address), 4)))
