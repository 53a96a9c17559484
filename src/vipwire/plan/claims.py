"""Decides which of several Services gets a frontend: the oldest one, then the first by name.

A ClusterIP belongs to its Service alone: another Service's external or load balancer IP never gets a port of it,
however old, so no Service can intercept a ClusterIP (CVE-2020-8554). The API server's address and port belong to the
API server's Service, so that no object can cut vipwire off from the API server.

A port range contends with every port and range that it overlaps, and is held completely or not at all. Age decides
here too; a range that lost to an older Service still keeps out younger ones.

A node port does not contend with a Service's claim to a node address at that port: the endpoints of both decide the
answer. Modes that name each address learn that the node port is `contested` there, as do modes that connect sockets
to an endpoint's address and port that a Service claims.
"""

import bisect
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from vipwire.model.names import KUBERNETES, ObjectName
from vipwire.model.net import Address, Protocol
from vipwire.plan.plan import FrontendKey, RangeKey


class Claimant(NamedTuple):
    """A Service in the order of precedence."""

    created: float
    name: ObjectName


class _Claim(NamedTuple):
    """A Service's claims, without duplicates."""

    claimant: Claimant
    keys: tuple[FrontendKey, ...]
    owned: tuple[Address, ...]
    borrowed: tuple[Address, ...]
    ranges: tuple[RangeKey, ...] = ()


_Place = tuple[Address, Protocol]


class Claims:
    """Every claim of one family. Changing a Service's claims costs time proportional to them.

    `node` are this node's addresses if the mode names each of them; `api_servers` as in `NodePlan`.
    """

    def __init__(
        self, node: Iterable[Address] = (), api_servers: frozenset[tuple[Address | None, int]] = frozenset()
    ) -> None:
        self._node, self._api_servers = frozenset(node), api_servers
        self._of: dict[ObjectName, _Claim] = {}
        self._claimants: dict[FrontendKey, tuple[Claimant, ...]] = {}
        self._owners: dict[Address, tuple[Claimant, ...]] = {}
        self._borrowers: dict[Address, tuple[Claimant, ...]] = {}
        # Only addresses that are no ClusterIP of the claimant; other Services cannot claim those.
        self._ports: dict[_Place, list[int]] = {}
        self._ranges: dict[_Place, tuple[tuple[Claimant, RangeKey], ...]] = {}

    def replace(
        self, claimant: Claimant, keys: Iterable[FrontendKey | RangeKey], cluster_ips: tuple[Address, ...]
    ) -> set[ObjectName]:
        """Replace a Service's claims; return the other Services whose frontends may change."""
        claimed = tuple(dict.fromkeys(keys))
        owned = cluster_ips if len(cluster_ips) == 1 else tuple(dict.fromkeys(cluster_ips))
        single = tuple([key for key in claimed if isinstance(key, FrontendKey)])
        wide = tuple([key for key in claimed if isinstance(key, RangeKey)]) if len(single) < len(claimed) else ()
        borrowed = {key.address: None for key in claimed if key.address is not None and key.address not in owned}
        claim = _Claim(claimant, single, owned, tuple(borrowed), wide)
        before = self._of.get(claimant.name)
        if before == claim:
            return set()
        concerned: set[ObjectName] = set() if before is None else self.remove(claimant.name)
        if claimed or owned:
            self._of[claimant.name] = claim
        concerned |= self._find_rivals(claim)
        alone = (claimant,)  # one tuple for all tables saves memory
        for key in single:
            _add_claimant(self._claimants, key, alone)
        for address in owned:
            _add_claimant(self._owners, address, alone)
        for address in borrowed:
            _add_claimant(self._borrowers, address, alone)
        if borrowed or wide:
            self._add_to_indexes(claim)
        return concerned

    def remove(self, name: ObjectName) -> set[ObjectName]:
        """Remove a Service's claims; return the other Services whose frontends may change."""
        claim = self._of.pop(name, None)
        if claim is None:
            return set()
        for key in claim.keys:
            _remove_claimant(self._claimants, key, claim.claimant)
        for address in claim.owned:
            _remove_claimant(self._owners, address, claim.claimant)
        for address in claim.borrowed:
            _remove_claimant(self._borrowers, address, claim.claimant)
        self._remove_from_indexes(claim)
        return self._find_rivals(claim)

    def _add_to_indexes(self, claim: _Claim) -> None:
        """Index the claims to ports and ranges of addresses that other Services may claim too."""
        for place, port in _open_ports(claim):
            bisect.insort(self._ports.setdefault(place, []), port)
        for key in claim.ranges:
            place = key.address, key.protocol
            self._ranges[place] = (*self._ranges.get(place, ()), (claim.claimant, key))

    def _remove_from_indexes(self, claim: _Claim) -> None:
        for place, port in _open_ports(claim):
            ports = self._ports[place]
            ports.pop(bisect.bisect_left(ports, port))
            if not ports:
                del self._ports[place]
        for key in claim.ranges:
            place = key.address, key.protocol
            left = tuple(each for each in self._ranges[place] if each != (claim.claimant, key))
            if left:
                self._ranges[place] = left
            else:
                del self._ranges[place]

    def _find_overlapping(self, address: Address, protocol: Protocol, first: int, last: int) -> Iterator[Claimant]:
        for claimant, key in self._ranges.get((address, protocol), ()):
            if key.first <= last and first <= key.last:
                yield claimant

    def _find_within_range(self, key: RangeKey) -> Iterator[Claimant]:
        yield from self._find_overlapping(*key)
        ports = self._ports.get((key.address, key.protocol), [])
        for port in ports[bisect.bisect_left(ports, key.first) : bisect.bisect_right(ports, key.last)]:
            yield from self._claimants.get(FrontendKey(key.address, key.protocol, port), ())

    def find_holder(self, name: ObjectName, key: FrontendKey | RangeKey) -> ObjectName | None:
        """Return the other Service that holds a key which `name` claims; None if `name` holds it."""
        if self._api_servers and name != KUBERNETES and self._is_api_server(key):
            return KUBERNETES
        owners = self._owners.get(key.address) if key.address is not None else None
        if owners:
            first = owners[0].name
        elif isinstance(key, RangeKey):
            first = min(self._find_within_range(key)).name
        else:
            first = self._claimants[key][0].name
            if self._ranges and key.address is not None:
                others = self._find_overlapping(key.address, key.protocol, key.port, key.port)
                first = min((self._claimants[key][0], *others)).name
        return None if first == name else first

    def _is_api_server(self, key: FrontendKey | RangeKey) -> bool:
        if key.protocol is not Protocol.TCP:
            return False
        if isinstance(key, FrontendKey):
            return (key.address, key.port) in self._api_servers
        return any(key.address == address and key.first <= port <= key.last for address, port in self._api_servers)

    def owns(self, name: ObjectName, address: Address) -> bool:
        """Report whether the ClusterIP `address` of `name` belongs to no older Service."""
        return self._owners[address][0].name == name

    def find_contested(self, places: Iterable[FrontendKey]) -> Iterator[FrontendKey]:
        """Yield those of `list_places` that a Service claims by address or in a range."""
        for place in places:
            address, protocol, port = place
            if place in self._claimants or (
                self._ranges and address is not None and any(self._find_overlapping(address, protocol, port, port))
            ):
                yield place

    def find_claimed(self, places: Iterable[FrontendKey]) -> Iterator[FrontendKey]:
        """Yield those of `list_places` that a Service claims by address or as a node port."""
        for place in places:
            if any(self.find_contested((place,))) or (
                place.address in self._node and place._replace(address=None) in self._claimants
            ):
                yield place

    def list_places(self, name: ObjectName) -> Iterator[FrontendKey]:
        """Yield each place that a Service claims, its node ports at each address of this node."""
        claim = self._of.get(name)
        for key in claim.keys if claim is not None else ():
            yield from (key,) if key.address is not None else (key._replace(address=each) for each in self._node)
        for address, protocol, first, last in claim.ranges if claim is not None else ():
            yield from (FrontendKey(address, protocol, port) for port in range(first, last + 1))

    def _find_node_port_claimants(self, claim: _Claim) -> Iterator[Claimant]:
        """Yield the Services with a node port where this one claims an address of the node."""
        for key in claim.keys if self._node else ():
            if key.address in self._node:
                yield from self._claimants.get(key._replace(address=None), ())
        for address, protocol, first, last in claim.ranges:
            for port in range(first, last + 1) if address in self._node else ():
                yield from self._claimants.get(FrontendKey(None, protocol, port), ())

    def _find_rivals(self, claim: _Claim) -> set[ObjectName]:
        found: set[ObjectName] = set()
        for key in claim.keys:
            if (claimants := self._claimants.get(key)) is not None:
                found.update(rival.name for rival in claimants)
        for address in (*claim.owned, *claim.borrowed):
            if (claimants := self._owners.get(address)) is not None:
                found.update(rival.name for rival in claimants)
        for address in claim.owned if self._borrowers else ():
            found.update(rival.name for rival in self._borrowers.get(address, ()))
        for key in claim.keys if self._ranges else ():
            if key.address is not None:
                found.update(
                    each.name for each in self._find_overlapping(key.address, key.protocol, key.port, key.port)
                )
        found.update(each.name for each in self._find_node_port_claimants(claim))
        for wide in claim.ranges:
            found.update(each.name for each in self._find_within_range(wide))
            found.update(rival.name for rival in self._owners.get(wide.address, ()))
        found.discard(claim.claimant.name)
        return found


def _open_ports(claim: _Claim) -> Iterator[tuple[_Place, int]]:
    for key in claim.keys if claim.borrowed else ():
        if key.address is not None and key.address not in claim.owned:
            yield (key.address, key.protocol), key.port


_Key = TypeVar("_Key")


def _add_claimant(table: dict[_Key, tuple[Claimant, ...]], key: _Key, alone: tuple[Claimant]) -> None:
    if (others := table.get(key)) is None:
        table[key] = alone
        return
    at = bisect.bisect_left(others, alone[0])  # bisect: thousands may share one external IP
    table[key] = (*others[:at], *alone, *others[at:])


def _remove_claimant(table: dict[_Key, tuple[Claimant, ...]], key: _Key, claimant: Claimant) -> None:
    others = table[key]
    at = bisect.bisect_left(others, claimant)
    if len(others) > 1:
        table[key] = others[:at] + others[at + 1 :]
    else:
        del table[key]
