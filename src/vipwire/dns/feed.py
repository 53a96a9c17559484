"""A store of objects in this process as a source: `vipwire up` has one, and it is followed without HTTP.

The store is anything that can be scanned and watched like `vipwire.cluster.store.store.Store`; DNS lies below the
cluster and does not know it by name.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from vipwire.dns.watch import SERVICES, SLICES, BytesReader
from vipwire.kube.resource import Resource
from vipwire.state.event import Event

PLACES = ((SERVICES, "services"), (SLICES, "endpointslices.discovery.k8s.io"))
"""Where the objects are in the store."""


class Key(Protocol):
    """Where an object is."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def name(self) -> str:
        """Its name."""


class Record(Protocol):
    """One state of an object."""

    @property
    def key(self) -> Key:
        """Where it is."""

    @property
    def value(self) -> bytes:
        """The object as JSON."""


class Change(Protocol):
    """A change of an object."""

    @property
    def record(self) -> Record:
        """What it is now, or was last."""

    @property
    def deleted(self) -> bool:
        """Whether it is gone."""


class Objects(Protocol):
    """A store of objects."""

    @property
    def revision(self) -> int:
        """The number of the last change."""

    def scan(self, resource: str) -> Sequence[Record]:
        """List all objects of a resource as they are now."""

    def watch(self, resource: str, since: int) -> AsyncIterator[Sequence[Change]]:
        """Follow the changes of a resource after a revision, without end; raise when they are known no more."""


class StoreFeed:
    """Tells of a store's Services and EndpointSlices. `lost` is what its `watch` raises when it has forgotten."""

    def __init__(self, store: Objects, lost: type[Exception]) -> None:
        self._store, self._lost = store, lost

    async def run(self, emit: Callable[[Event], None]) -> None:
        """Tell of everything, then of every change as it comes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for resource, place in PLACES:
                tasks.create_task(self._follow(resource, place, emit), name=f"dns {place}")

    async def _follow(self, resource: Resource, place: str, emit: Callable[[Event], None]) -> None:
        reader = BytesReader(resource)
        while True:
            since = self._store.revision
            emit(reader.listed(record.value for record in self._store.scan(place)))
            try:
                async for changes in self._store.watch(place, since):
                    for change in changes:
                        emit(_event(reader, change))
            except self._lost:
                continue


def _event(reader: BytesReader, change: Change) -> Event:
    key = change.record.key
    return reader.deleted(key.namespace, key.name) if change.deleted else reader.changed(change.record.value)
