"""Writes the statuses of Ingresses, Gateways, routes and policies to an API server, from the elected replica.

A write costs one object: the planner names the statuses that it changed, the snapshot the changed objects. Each write
has the resourceVersion of its object: of two writers at once the API server refuses one, which tries again.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from vipwire.kube.access.access import Access
from vipwire.kube.objects import FencedObjects, Object, path_of
from vipwire.kube.write_loop import Pauses, WriteLoop
from vipwire.model.names import ObjectName
from vipwire.model.times import format_time
from vipwire_l7.run.desired import Desired
from vipwire_l7.watch.kinds import IngressResource
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

_PAUSES: Final = Pauses(refused=5.0, conflict=0.0)
_PARENTS: Final = frozenset((IngressKind.GATEWAY_CLASS, IngressKind.LISTENER_SET, IngressKind.GATEWAY))


class Statuses(Protocol):
    """The statuses that vipwire writes for some kinds."""

    @property
    def revision(self) -> int | None:
        """A count of changes; None before the first plan."""

    def all(self) -> Iterable[ObjectRef]: ...

    def take_changed(self) -> Collection[ObjectRef]:
        """Return the objects whose statuses may have changed since the last call."""

    def patch(self, ref: ObjectRef, now: str) -> Object | None:
        """Return the merge patch that an object needs, with its resourceVersion; None if it needs none."""


class StatusWriter:
    """Writes statuses while this replica is the leader. `kinds` are those of the statuses."""

    def __init__(
        self,
        access: Access,
        kinds: Mapping[IngressKind, IngressResource],
        statuses: Statuses,
        snapshot: Snapshot,
        leading: Callable[[], bool],
    ) -> None:
        self._kinds, self._statuses = kinds, statuses

        def changes() -> int:
            return snapshot.events(kinds) + (statuses.revision or 0)

        self._loop = WriteLoop[ObjectRef](access, "vipwire-status", leading, changes, _PAUSES)
        self._objects = snapshot.follow(statuses_of=kinds.keys())
        self._due: set[ObjectRef] | None = None
        """The objects to check; None for all."""
        self._written: dict[ObjectRef, str] = {}
        """The resourceVersions of the last writes' objects: the watch must show a later one first."""

    def wake(self) -> None:
        self._loop.wake()

    async def run(self) -> None:
        await self._loop.run(lambda: None if self._statuses.revision is None else self._statuses, self._keep_all)

    async def _keep_all(self, objects: FencedObjects, statuses: Statuses) -> None:
        due = self._due = set(statuses.all()) if self._due is None else self._due
        due |= {*statuses.take_changed(), *self._objects.take()}
        for ref in sorted((ref for ref in due if not self._loop.waits(ref)), key=parents_first):
            await self._keep(objects, ref)
            if not self._loop.waits(ref):  # the API server accepted the write
                due.discard(ref)

    async def _keep(self, objects: FencedObjects, ref: ObjectRef) -> None:
        patch = self._statuses.patch(ref, format_time(dt.datetime.now(dt.UTC)))  # noqa: TID251  # this is the shell
        written = self._written.pop(ref, None)
        if patch is None:
            return
        (kind, name), version = ref, patch["metadata"]["resourceVersion"]
        if written == version:
            self._written[ref] = version
            return

        async def send() -> None:
            resource = self._kinds[kind]
            path = path_of(resource.path, resource.plural, *name, "status")
            answer = await objects.merge(path, patch)
            if answer.get("metadata", {}).get("resourceVersion") != version:  # the status did change
                self._written[ref] = version

        await self._loop.write(ref, send, "cannot write a status", kind=kind.value, object=name)


async def write_statuses(writer: StatusWriter, desired: Desired) -> None:
    """Write until cancelled, after each change that HAProxy has."""
    with desired.telling(writer.wake):
        await writer.run()


def parents_first(ref: ObjectRef) -> tuple[bool, str, ObjectName]:
    """Return the order of writes: a reader of an accepted route finds the status of its parents."""
    kind, name = ref
    return kind not in _PARENTS, kind.value, name
