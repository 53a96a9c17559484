"""The objects of this cluster as a source in the same process: read from the store, without HTTP.

It emits the same events as a watch of the API server, in the same order; its readers (the proxy, DNS) need not
distinguish them. It applies no selectors, except of a single name: the conversion leaves out the other objects.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeAlias

from vipwire.kube.contact import Health
from vipwire.kube.resource import ObjectReader, Resource
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Deleted, EventOf, K, T
from vipwire_up.store.record import CompactedError, FutureRevisionError, Record, RecordChange
from vipwire_up.store.store import Store

Emit: TypeAlias = Callable[[EventOf[K, T]], None]


class StoreSource(Generic[K, T]):
    """Follows the resources that it is given."""

    def __init__(self, store: Store, resources: Iterable[Resource[K, T]]) -> None:
        self._store, self._resources = store, tuple(resources)

    def health(self) -> tuple[Health, ...]:
        """Return the health of the connection to etcd; a store in a file has none."""
        trouble, note = self._store.trouble, self._store.note
        state = Health("etcd", synced=True, error=trouble or note, logged=not trouble and bool(note))
        return (state,) if self._store.shared else ()

    async def run(self, emit: Emit[K, T]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for resource in self._resources:
                tasks.create_task(
                    self._follow_resource(ObjectReader(resource), emit), name=f"store {resource.plural}"
                )

    async def _follow_resource(self, reader: ObjectReader[K, T], emit: Emit[K, T]) -> None:
        place, only = reader.resource.id, reader.resource.only
        while True:
            since = self._store.revision
            emit(reader.build_listed_event(_select_values(self._store.scan(place), only)))
            try:
                async for changes in self._store.watch(place, since):
                    for change in changes:
                        if only in ("", change.record.key.name):
                            emit(_build_event(reader, change))
            except (CompactedError, FutureRevisionError):
                continue


def _select_values(records: Iterable[Record], only: str) -> Iterator[tuple[str, bytes]]:
    return ((record.key.name, record.value) for record in records if only in ("", record.key.name))


def _build_event(reader: ObjectReader[K, T], change: RecordChange) -> EventOf[K, T]:
    name = ObjectName(change.record.key.namespace, change.record.key.name)
    return (
        Deleted(reader.resource.kind, name)
        if change.deleted
        else reader.build_change_event(name, change.record.value)
    )
