"""The objects of this cluster as a source for the proxy in the same process: read from the store, without HTTP.

It says what a watch of the API server would say, in the same order; the proxy cannot tell them apart.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from vipwire.cluster.store.record import CompactedError, RecordChange
from vipwire.cluster.store.store import Store
from vipwire.kube.contact import Health
from vipwire.kube.resource import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES, Reader, Resource, own_node
from vipwire.model.names import ObjectName
from vipwire.state.event import Deleted, Event, Listed, Upserted

Emit = Callable[[Event], None]
_GROUPS: Final = {
    "endpointslices": "endpointslices.discovery.k8s.io",
    "servicecidrs": "servicecidrs.networking.k8s.io",
}


class StoreSource:
    """Follows what a proxy on the node `node` reads."""

    def __init__(self, store: Store, node: str) -> None:
        self._store, self._node = store, node

    def health(self) -> tuple[Health, ...]:
        """Tell how the contact is: always well, being none."""
        return ()

    async def run(self, emit: Emit) -> None:
        """Tell of everything, then of every change, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for resource in (SERVICES, ENDPOINT_SLICES, SERVICE_CIDRS, own_node(self._node)):
                tasks.create_task(self._follow(resource, emit), name=f"proxy {resource.plural}")

    async def _follow(self, resource: Resource, emit: Emit) -> None:
        reader, place = Reader(resource), _GROUPS.get(resource.plural, resource.plural)
        while True:
            since = self._store.revision
            emit(self._listed(reader, place))
            try:
                async for changes in self._store.watch(place, since):
                    for change in changes:
                        if self._is_read(resource, change.record.key.name):
                            emit(_event(reader, change))
            except CompactedError:
                continue

    def _listed(self, reader: Reader, place: str) -> Listed:
        records = (r for r in self._store.scan(place) if self._is_read(reader.resource, r.key.name))
        readings = [reader.read(record.value, record.key.name) for record in records]
        found = tuple(reading.object for reading in readings if reading.object is not None)
        problems = tuple(problem for reading in readings for problem in reading.problems)
        return Listed(reader.resource.kind, found, problems)

    def _is_read(self, resource: Resource, name: str) -> bool:
        return resource.plural != "nodes" or name == self._node


def _event(reader: Reader, change: RecordChange) -> Event:
    key, kind = change.record.key, reader.resource.kind
    name = ObjectName(key.namespace, key.name)
    if change.deleted:
        return Deleted(kind, name)
    reading = reader.read(change.record.value, key.name)
    return Upserted(reading.object, reading.problems) if reading.object else Deleted(kind, name, reading.problems)
