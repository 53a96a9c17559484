"""Writes `status.loadBalancer` of this controller's Ingresses: the addresses where clients reach them. Pure."""

import ipaddress
from collections.abc import Callable, Collection, Iterable

from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.watch.objects import IngressKind, Json
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot


class IngressStatuses:
    """The statuses of Ingresses. `addresses` returns the published ones, None while their Service does not exist."""

    def __init__(
        self, planner: IngressPlanner, snapshot: Snapshot, addresses: Callable[[], tuple[str, ...] | None]
    ) -> None:
        self._planner, self._snapshot, self._addresses = planner, snapshot, addresses
        self._published: tuple[str, ...] | None = None

    @property
    def revision(self) -> int | None:
        """A count of changes; None before the first plan, and without addresses."""
        if self._addresses() is None or self._planner.revision is None:
            return None
        return self._planner.revision + self._snapshot.events((IngressKind.SERVICE,))

    def all(self) -> Iterable[ObjectRef]:
        return self._planner.ours()

    def take_changed(self) -> Collection[ObjectRef]:
        """Return the Ingresses that were planned since the last call; all of them if the addresses changed."""
        before, self._published = self._published, self._addresses()
        told = self._planner.take_told()
        return told if before == self._published else {*self.all()}

    def patch(self, ref: ObjectRef, _now: str) -> Json | None:
        """Return the merge patch for a status with other addresses."""
        ingress, addresses = self._snapshot.ingresses.get(ref[1]), self._published
        if ingress is None or addresses is None or ingress.addresses == addresses or not self._planner.serves(ref):
            return None
        entries = [{"ip" if _is_address(text) else "hostname": text} for text in addresses]
        status = {"loadBalancer": {"ingress": entries}}
        return {"metadata": {"resourceVersion": ingress.version}, "status": status}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
