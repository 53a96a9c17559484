"""Chooses the endpoint for a new connection of a listener. Pure: the time and chance are parameters.

    affinity       the client's last endpoint, until the timeout or a failed dial
    round robin    in turn, in a random order of its own after each change of endpoints; weighted: interleaved
    random         by chance, weighted
    least conn.    the fewest open connections for its weight; of equals, the next in turn
    hashes         a table of slots by the client's address (Maglev: and port), the same on every node

An endpoint that fails `EJECT_AFTER` dials in succession gets no new connections for `EJECT_SECONDS`, unless all have
failed. A repeated dial goes to an endpoint that was not tried, if there is one.
"""

import enum
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from vipwire.model.net import Address, format_address
from vipwire.model.spread import Algorithm, Spread, fill_slots
from vipwire.relay.messages import NOWHERE, Listener, SocketAddress

EJECT_AFTER: Final = 3
EJECT_SECONDS: Final = 10.0
MOST_CLIENTS: Final = 65536
"""Clients whose endpoints are remembered; beyond that the table forgets the least recently seen client."""
_MOST_SLOTS: Final = 4096


class BalancingAlgorithm(enum.Enum):
    """The algorithm that chooses an endpoint; the value is the annotation's."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    LEAST_CONNECTIONS = "least-connections"
    SOURCE_HASH = "source-hash"
    MAGLEV = "maglev"


class BalancedEndpoint:
    """An endpoint, its traffic, and whether it is ejected after failures. `sockaddr` is for socket calls."""

    __slots__ = (
        "connections",
        "ejected_until",
        "failed",
        "failures",
        "open",
        "place",
        "received",
        "sent",
        "sockaddr",
        "weight",
    )

    def __init__(self, place: SocketAddress, weight: int) -> None:
        self.place, self.weight = place, weight
        self.sockaddr = (format_address(Address(place.address)) if place != NOWHERE else "nowhere", place.port)
        self.connections = self.open = self.sent = self.received = self.failed = self.failures = 0
        self.ejected_until = 0.0

    def read_totals(self) -> tuple[int, int, int, int, int]:
        """Return the counters: connections, open connections, bytes sent and received, failed dials."""
        return self.connections, self.open, self.sent, self.received, self.failed

    def choose_destination(self, asked: int) -> tuple[str, int]:
        """Return the address and port to dial; an endpoint without a port gets the client's port `asked`."""
        host, port = self.sockaddr
        return (host, asked) if not port else self.sockaddr

    def __str__(self) -> str:
        host, port = self.sockaddr
        if not port:
            return host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ClientMemory:
    """The endpoint of each client, and its last use. `whole`: all ports of an endpoint count as one."""

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
        self._clients: dict[str, tuple[bytes | SocketAddress, float]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def endpoint_key(self, place: SocketAddress) -> bytes | SocketAddress:
        return place.address if self.whole else place

    def recall(self, client: str, now: float, seconds: float) -> bytes | SocketAddress | None:
        """Return a client's endpoint, unless its last use is older than `seconds`."""
        found = self._clients.get(client)
        return found[0] if found is not None and now - found[1] < seconds else None

    def note(self, client: str, place: SocketAddress, now: float) -> None:
        self._clients.pop(client, None)
        self._clients[client] = (self.endpoint_key(place), now)
        if len(self._clients) > MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def forget(self, now: float, seconds: float) -> None:
        """Drop clients older than `seconds`; the dictionary is in order of their last use."""
        stale = 0
        for _, when in self._clients.values():
            if now - when < seconds:
                break
            stale += 1
        for client in [client for client, _ in zip(self._clients, range(stale), strict=False)]:
            del self._clients[client]


class Pool:
    """The endpoints of one listener."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._shares: Sequence[object] = ()
        self.targets: dict[SocketAddress, BalancedEndpoint] = {}
        self.memory = ClientMemory()
        self._beside: ClientMemory | None = None
        self._identities: dict[bytes | SocketAddress, BalancedEndpoint] = {}
        self._order: list[BalancedEndpoint] = []
        self._next = 0
        self._affinity = 0.0
        self._choice = BalancingAlgorithm.ROUND_ROBIN

    def set_listener(self, listener: Listener, memory: ClientMemory, beside: ClientMemory | None = None) -> None:
        """Set a listener's endpoints and its algorithm. Endpoints that stay keep their counters.

        `beside` is asked for clients without a usable endpoint in `memory`.
        """
        known = self.targets
        self.targets = {}
        for share in listener.shares:
            target = known.get(share.place) or BalancedEndpoint(share.place, share.weight)
            target.weight = share.weight
            self.targets[share.place] = target
        self.memory, self._beside, self._affinity = memory, beside, float(listener.affinity)
        self._identities = {memory.endpoint_key(place): target for place, target in reversed(self.targets.items())}
        choice = BalancingAlgorithm(listener.algorithm)
        if choice is not self._choice or listener.shares != self._shares:
            self._choice, self._shares = choice, listener.shares
            self._order, self._next = self._order_endpoints(), 0

    def choose(
        self, client: str, port: int, now: float, tried: Sequence[BalancedEndpoint] = ()
    ) -> BalancedEndpoint | None:
        """Choose an endpoint for a client (address and port), not one of `tried`; None without endpoints."""
        if not self._order:
            return None
        target = self._find_remembered(client, now) if self._affinity and not tried else None
        if target is None:
            target = self._choose_new(client, port, now, tried)
        if self._affinity:
            self.memory.note(client, target.place, now)
        return target

    def _find_remembered(self, client: str, now: float) -> BalancedEndpoint | None:
        """Return a client's remembered endpoint, if it is in this pool and not ejected; else None."""
        for memory in (self.memory, self._beside):
            had = memory.recall(client, now, self._affinity) if memory is not None else None
            target = self._identities.get(had) if had is not None else None
            if target is not None and target.ejected_until <= now:
                return target
        return None

    def record_connection(self, target: BalancedEndpoint) -> None:
        target.failures = 0
        target.connections += 1

    def record_failed_dial(self, target: BalancedEndpoint, now: float) -> bool:
        """Record a failed dial; report whether that ejected the endpoint; a longer ejection does not count."""
        target.failed += 1
        target.failures += 1
        if target.failures < EJECT_AFTER or len(self.targets) < 2:
            return False
        is_new = target.ejected_until <= now
        target.ejected_until = now + EJECT_SECONDS
        return is_new

    def sweep(self, now: float) -> None:
        self.memory.forget(now, self._affinity)

    def _choose_new(self, client: str, port: int, now: float, tried: Sequence[BalancedEndpoint]) -> BalancedEndpoint:
        size = len(self._order)
        match self._choice:
            case BalancingAlgorithm.ROUND_ROBIN:
                return self._take_turn(now, tried)
            case BalancingAlgorithm.LEAST_CONNECTIONS:
                candidates = sorted(
                    self._iterate_from(self._choose_beginning()), key=lambda target: target.open / target.weight
                )
                return choose_first(candidates, now, tried)[1]
            case BalancingAlgorithm.RANDOM:
                begin = int(self._chance() * size)
            case BalancingAlgorithm.SOURCE_HASH | BalancingAlgorithm.MAGLEV:
                key = f"{client} {port}" if self._choice is BalancingAlgorithm.MAGLEV else client
                digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
                begin = int.from_bytes(digest) % size
        return choose_first(self._iterate_from(begin), now, tried)[1]

    def _take_turn(self, now: float, tried: Sequence[BalancedEndpoint]) -> BalancedEndpoint:
        begin, size = self._next, len(self._order)
        target = self._order[begin]
        if target.ejected_until <= now and not tried:  # the common case
            self._next = begin + 1 if begin + 1 < size else 0
            return target
        passed, target = choose_first(self._iterate_from(begin), now, tried)
        self._next = (begin + passed + 1) % size
        return target

    def _choose_beginning(self) -> int:
        """Return the index to start at among equals; another one each time."""
        begin, self._next = self._next, (self._next + 1) % len(self._order)
        return begin

    def _iterate_from(self, begin: int) -> Iterator[BalancedEndpoint]:
        """Yield every endpoint once, from index `begin` on."""
        order, size = self._order, len(self._order)
        for at in range(begin, begin + size):
            yield order[at if at < size else at - size]

    def _order_endpoints(self) -> list[BalancedEndpoint]:
        targets = list(self.targets.values())
        if not targets:
            return []
        if self._choice in (BalancingAlgorithm.SOURCE_HASH, BalancingAlgorithm.MAGLEV):
            names = [target.place.address + target.place.port.to_bytes(2) for target in targets]
            return list(
                fill_slots(
                    Spread(Algorithm(self._choice.value), _collect_weights(targets)), targets, names, _MOST_SLOTS
                )
            )
        self._shuffle(targets)
        if self._choice is BalancingAlgorithm.LEAST_CONNECTIONS:
            return targets
        most = max(_MOST_SLOTS, len(targets))
        return list(fill_slots(Spread(Algorithm.ROUND_ROBIN, _collect_weights(targets)), targets, [], most))

    def _shuffle(self, targets: list[BalancedEndpoint]) -> None:
        for last in range(len(targets) - 1, 0, -1):
            other = int(self._chance() * (last + 1))
            targets[last], targets[other] = targets[other], targets[last]


def choose_first(
    candidates: Iterable[BalancedEndpoint], now: float, tried: Sequence[BalancedEndpoint]
) -> tuple[int, BalancedEndpoint]:
    """Find an endpoint. Return the number of candidates before it, and the endpoint.

    The first that was neither tried nor is ejected wins, else the first untried one, else the first.
    """
    first: tuple[int, BalancedEndpoint] | None = None
    untried: tuple[int, BalancedEndpoint] | None = None
    for passed, target in enumerate(candidates):
        if target not in tried:
            if target.ejected_until <= now:
                return passed, target
            untried = untried or (passed, target)
        first = first or (passed, target)
    chosen = untried or first
    assert chosen is not None  # noqa: S101 - there is at least one endpoint, and every one is a candidate
    return chosen


def _collect_weights(targets: Iterable[BalancedEndpoint]) -> tuple[int, ...]:
    """Return the weights; empty if all are equal."""
    weights = tuple(target.weight for target in targets)
    return weights if len(set(weights)) > 1 else ()
