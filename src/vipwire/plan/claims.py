"""Who holds a frontend that several Services ask for: the oldest, and of equally old ones the first by name.

A ClusterIP belongs to its Service wholly: another Service's external or load balancer IP never takes a port of it,
however old, so that nobody can put himself in a ClusterIP's way (CVE-2020-8554).
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.plan.plan import FrontendKey


class Claimant(NamedTuple):
    """A Service in the order of precedence."""

    created: float
    name: ObjectName


class _Claim(NamedTuple):
    """Each key and address once."""

    claimant: Claimant
    keys: tuple[FrontendKey, ...]
    owned: tuple[Address, ...]
    borrowed: tuple[Address, ...]


class Claims:
    """Every claim of one family. Changing one Service's claims costs what that Service has."""

    def __init__(self) -> None:
        self._of: dict[ObjectName, _Claim] = {}
        self._claimants: dict[FrontendKey, tuple[Claimant, ...]] = {}
        self._owners: dict[Address, tuple[Claimant, ...]] = {}
        self._borrowers: dict[Address, tuple[Claimant, ...]] = {}

    def replace(
        self, claimant: Claimant, keys: Iterable[FrontendKey], cluster_ips: Iterable[Address]
    ) -> set[ObjectName]:
        """Replace a Service's claims; return the other Services whose frontends this may concern."""
        keys, owned = tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(cluster_ips))
        borrowed = {key.address: None for key in keys if key.address is not None and key.address not in owned}
        claim = _Claim(claimant, keys, owned, tuple(borrowed))
        if self._of.get(claimant.name) == claim:
            return set()
        concerned = self.remove(claimant.name)
        if keys or owned:
            self._of[claimant.name] = claim
        concerned |= self._rivals(claim)
        for key in keys:
            _join(self._claimants, key, claimant)
        for address in owned:
            _join(self._owners, address, claimant)
        for address in borrowed:
            _join(self._borrowers, address, claimant)
        return concerned

    def remove(self, name: ObjectName) -> set[ObjectName]:
        """Forget a Service's claims; return the other Services whose frontends this may concern."""
        claim = self._of.pop(name, None)
        if claim is None:
            return set()
        for key in claim.keys:
            _leave(self._claimants, key, claim.claimant)
        for address in claim.owned:
            _leave(self._owners, address, claim.claimant)
        for address in claim.borrowed:
            _leave(self._borrowers, address, claim.claimant)
        return self._rivals(claim)

    def holder(self, name: ObjectName, key: FrontendKey) -> ObjectName | None:
        """Tell which other Service holds a key that `name` claims; None when `name` holds it itself."""
        owners = self._owners.get(key.address) if key.address is not None else None
        first = (owners or self._claimants[key])[0].name
        return None if first == name else first

    def owns(self, name: ObjectName, address: Address) -> bool:
        """Tell whether a ClusterIP that `name` has is not an older Service's."""
        return self._owners[address][0].name == name

    def _rivals(self, claim: _Claim) -> set[ObjectName]:
        """Find everyone else who claims something of this."""
        found: set[ObjectName] = set()
        for key in claim.keys:
            found.update(rival.name for rival in self._claimants.get(key, ()))
        for address in claim.owned:
            found.update(rival.name for rival in self._owners.get(address, ()))
            found.update(rival.name for rival in self._borrowers.get(address, ()))
        for address in claim.borrowed:
            found.update(rival.name for rival in self._owners.get(address, ()))
        found.discard(claim.claimant.name)
        return found


_Key = TypeVar("_Key")


def _join(table: dict[_Key, tuple[Claimant, ...]], key: _Key, claimant: Claimant) -> None:
    others = table.get(key)
    table[key] = tuple(sorted((*others, claimant))) if others else (claimant,)


def _leave(table: dict[_Key, tuple[Claimant, ...]], key: _Key, claimant: Claimant) -> None:
    others = tuple(other for other in table[key] if other != claimant)
    if others:
        table[key] = others
    else:
        del table[key]
