"""Notes of node ports in a shared store: the store refuses a port that two servers allocate at once.

A note is a record of its own, nodeports.vipwire.io/PORT, written and deleted in the transaction of the Service that
takes or frees the port. The API does not serve notes. A store of one process needs none: its allocator sees all
Services.

`PortNoteRepair` writes missing notes, such as after a migration, and deletes those without a Service.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.objects.object import decode_damaged_record, encode, key_of, value_at
from vipwire_up.api.registry import FencedRegistry
from vipwire_up.controllers.allocation.node_ports import Owner, allocated_ports_of
from vipwire_up.store.record import Check, ConflictError, Key, Record, Step, StoreError, Write
from vipwire_up.store.store import Store
from vipwire_up.watchdog.guard import Guard

NOTES: Final = "nodeports.vipwire.io"
_EVERY: Final = 60.0
Ports: TypeAlias = Iterable[int]


class PortNotes:
    """The notes of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def holder_of_port(self, port: int) -> Owner | None:
        """Return the Service that a port is noted for, including writes on their way to disk."""
        record = self._store.head(_note_key(port)) if self._store.shared else None
        return holder_of(record) if record else None

    def write_notes(self, owner: Owner, ports: Ports) -> Iterator[Write]:
        if self._store.shared:
            for port in sorted(ports):
                if self.holder_of_port(port) != owner:
                    yield _write_port_note(port, owner)

    def delete_notes(self, owner: Owner, ports: Ports) -> Iterator[Write]:
        for port in sorted(ports) if self._store.shared else ():
            record = self._store.head(_note_key(port))
            if record is not None and holder_of(record) == owner:
                yield _delete_record(record)


class PortNoteRepair:
    """Compares notes and Services at intervals."""

    def __init__(self, registry: FencedRegistry, guard: Guard[Key] | None = None) -> None:
        self._store, self._fence, self._guard = registry.store, registry.fence, guard or Guard("node ports")

    async def run(self) -> None:
        while True:
            with self._guard.step():
                await self.step()
            await asyncio.sleep(_EVERY)

    async def step(self) -> None:
        """Compare all notes and Services once. Writes that lose a race are left for the next time."""
        for steps in self._find_repairs():
            with self._guard.of(steps[0].key):
                try:
                    await self._store.write(*steps, self._fence)
                except (ConflictError, StoreError):
                    continue

    def _find_repairs(self) -> list[tuple[Step, ...]]:
        services = {(r.key.namespace, r.key.name): r for r in self._store.scan(SERVICES.id)}
        notes = {int(r.key.name): r for r in self._store.scan(NOTES) if r.key.name.isdecimal()}
        users: dict[int, Owner] = {}
        for owner, record in services.items():
            for port in allocated_ports_of(decode_damaged_record(record)):
                users.setdefault(port, owner)
        steps: list[tuple[Step, ...]] = [
            (_write_port_note(port, owner), Check(services[owner].key, services[owner].revision))
            for port, owner in users.items()
            if port not in notes
        ]
        for port, record in notes.items():
            holder = holder_of(record)
            service = services.get(holder)
            if service is None or port not in allocated_ports_of(decode_damaged_record(service)):
                steps.append(
                    (_delete_record(record), Check(key_of(SERVICES, *holder), service.revision if service else 0))
                )
        return steps


def holder_of(note: Record) -> Owner:
    holder = value_at(decode_damaged_record(note), "holder") or {}
    return str(value_at(holder, "namespace") or ""), str(value_at(holder, "name") or "")


def _write_port_note(port: int, owner: Owner) -> Write:
    value = {"metadata": {"name": str(port)}, "holder": {"namespace": owner[0], "name": owner[1]}}
    return Write(_note_key(port), lambda revision: encode(value | {"metadata": _note_metadata(port, revision)}), 0)


def _delete_record(record: Record) -> Write:
    return Write(record.key, lambda _: record.value, record.revision, deletes=True)


def _note_metadata(port: int, revision: int) -> dict[str, str]:
    return {"name": str(port), "resourceVersion": str(revision)}


def _note_key(port: int) -> Key:
    return Key(NOTES, "", str(port))
