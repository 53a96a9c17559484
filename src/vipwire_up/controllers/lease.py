"""A Lease in the registry of this process."""

from collections.abc import Callable
from typing import Final

from vipwire.kube.lease import LeaseObserver
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.object import key_of, readable
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry

NAMESPACE: Final = "kube-system"
_OPTIONS: Final = Options(manager="vipwire-leases", validation="Ignore")


class LocalLease:
    """The Lease of a name in kube-system."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry, self._name = registry, name

    async def create(self, value: Object) -> None:
        """Create it."""
        await self._registry.create(LEASES, NAMESPACE, value, _OPTIONS)

    async def update(self, edit: Callable[[Object], Object]) -> None:
        """Edit its current state."""
        await self._registry.change(LEASES, NAMESPACE, self._name, edit, _OPTIONS)

    def seconds_left(self, observer: LeaseObserver, now: float) -> float:
        """Return in how many seconds it expires unless it changes; 0 if nobody holds it."""
        record = self._registry.store.read(key_of(LEASES, NAMESPACE, self._name))
        return 0.0 if record is None else observer.seconds_left(self._name, readable(record), now)
