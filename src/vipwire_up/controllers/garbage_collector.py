"""Deletes dependents of deleted objects, contents of namespaces, Pods after their grace period, and old Events.

    deletion with         its dependents (objects whose ownerReferences have its UID)
    Background            are deleted after it
    Foreground            are deleted before it: it waits with the finalizer foregroundDeletion
    Orphan                lose the reference: it waits with the finalizer orphan

The collector runs after changes of the store, once a second while an object is being deleted, and when the first
Event expires. An exception about one object delays that object only. A namespace's conditions tell what delays its
end, in the words of Kubernetes' namespace controller (pkg/controller/namespace/deletion, status_condition_utils.go).
"""

import asyncio
import contextlib
import functools
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire.model.times import format_time, time_or_none
from vipwire_up.api.change import Deletion, Options
from vipwire_up.api.kinds.catalogue import BY_ID, RESOURCES, SERVED
from vipwire_up.api.kinds.event import EVENTS, read_last_timestamp
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.small_kinds import NAMESPACES
from vipwire_up.api.objects.object import decode_damaged_record, decode_record, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.store.record import Key, Record, RecordChange
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard

_CONTENT = "NamespaceContentRemaining", "SomeResourcesRemain"
_FINALIZERS = "NamespaceFinalizersRemaining", "SomeFinalizersRemain"


def set_deletion_conditions(namespace: Object, left: Sequence[tuple[Key, Object]], now: str) -> Object:
    """Add conditions with the objects that are left in a namespace; an unchanged condition keeps its time."""
    status = namespace.get("status") or {}
    before = {entry.get("type"): entry for entry in status.get("conditions") or ()}
    told = dict(before)
    for condition in _build_conditions(left):
        known = before.get(condition["type"]) or {}
        if any(known.get(name) != text for name, text in condition.items()):
            told[condition["type"]] = condition | {"lastTransitionTime": now}
    return namespace | {"status": status | {"conditions": list(told.values())}}


def _build_conditions(left: Sequence[tuple[Key, Object]]) -> Iterable[Object]:
    kinds = Counter(key.resource for key, _ in left)
    parts = [f"{name}{'' if '.' in name else '.'} has {count} resource instances" for name, count in kinds.items()]
    yield _build_condition(*_CONTENT, f"Some resources are remaining: {', '.join(sorted(parts))}")
    holds = Counter(name for _, value in left for name in value["metadata"].get("finalizers") or ())
    parts = [f"{name} in {count} resource instances" for name, count in holds.items()]
    if parts:
        why = f"Some content in the namespace has finalizers remaining: {', '.join(sorted(parts))}"
        yield _build_condition(*_FINALIZERS, why)


def _build_condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


EVENTS_LIVE: Final = timedelta(seconds=EVENTS.lifetime)
_OPTIONS: Final = Options(manager="vipwire-garbage-collector", validation="Ignore")
_SERVED: Final = frozenset((resource.api_version, resource.kind) for resource in SERVED)
_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"
_EXPIRY_SECONDS: Final = 60.0
"""The longest wait for an Event's end: the clock may jump."""


class GarbageCollector:
    """Follows all objects of a registry and deletes those that are due."""

    def __init__(self, registry: Registry, guard: Guard[Key] | None = None) -> None:
        self._registry, self._guard = registry, guard or Guard("garbage collection")
        self._feed = Feed(registry.store, RESOURCES)
        self._clear_state()

    def _clear_state(self) -> None:
        self._owners: dict[Key, tuple[str, ...]] = {}
        self._dependents: defaultdict[str, set[Key]] = defaultdict(set)
        self._going: dict[Key, Object] = {}
        self._gone: set[str] = set()
        self._named: set[str] = set()
        self._uids: dict[str, Key] = {}
        self._ageing: list[tuple[datetime, Key]] = []

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        """Read changes, then delete the objects that are due. Return the seconds until the next call."""
        self._feed.pass_changes(self._clear_state, self._apply_change, self._guard)
        self._gone |= {uid for uid in self._named if uid not in self._uids}  # owners that never existed, or are gone
        self._named.clear()
        for uid in list(self._gone):
            await self._remove_all_owner_references(self._dependents.get(uid, ()))
        self._gone = {uid for uid in self._gone if self._dependents.get(uid)}  # until they have no dependents
        for key, value in list(self._going.items()):
            with self._may_try(key) as may:
                if may:
                    await self._advance_deletion(key, value)
        await self._delete_expired_events(self._registry.clock())
        if self._going or self._gone:
            return RETRY_SECONDS
        return self._seconds_to_expiry(self._registry.clock())

    @contextlib.contextmanager
    def _may_try(self, key: Key) -> Iterator[bool]:
        """Act on an object unless a retry must wait; conflicts with other writers are no failure."""
        if not self._guard.ready(key):
            yield False
            return
        with self._guard.of(key), contextlib.suppress(ApiError):
            yield True

    def _apply_change(self, change: RecordChange) -> None:
        key = change.record.key
        for uid in self._owners.pop(key, ()):
            self._dependents[uid].discard(key)
            if not self._dependents[uid]:
                del self._dependents[uid]
        self._going.pop(key, None)
        value = decode_record(change.record)
        meta = value["metadata"]
        if change.deleted:
            self._uids.pop(meta["uid"], None)
            self._gone.add(meta["uid"])
            return
        owners = _owner_uids_of(meta)
        self._uids[meta["uid"]] = key
        if owners:
            self._owners[key] = owners
        for uid in owners:
            self._dependents[uid].add(key)
            self._named.add(uid)
        if meta.get("deletionTimestamp"):
            self._going[key] = value
        if key.resource == EVENTS.id:
            heapq.heappush(self._ageing, (_event_expiry(value, self._registry.clock()), key))

    async def _advance_deletion(self, key: Key, value: Object) -> None:
        meta = value["metadata"]
        finalizers = meta.get("finalizers") or []
        if _ORPHAN in finalizers:
            for dependent in list(self._dependents.get(meta["uid"], ())):
                await self._change_object(dependent, functools.partial(_remove_owners, uids=[meta["uid"]]))
            await self._change_object(key, functools.partial(_remove_finalizer, name=_ORPHAN))
        elif _FOREGROUND in finalizers:
            dependents = list(self._dependents.get(meta["uid"], ()))
            await self._remove_all_owner_references(dependents)
            if not dependents:
                await self._change_object(key, functools.partial(_remove_finalizer, name=_FOREGROUND))
        if key.resource == NAMESPACES.id:
            await self._empty_namespace(key)
        due = time_or_none(meta["deletionTimestamp"])
        if key.resource == PODS.id and due and due <= self._registry.clock():
            await self._registry.delete(PODS, key.namespace, key.name, options=_OPTIONS, deletion=Deletion(grace=0))

    async def _empty_namespace(self, key: Key) -> None:
        """Delete a namespace's objects; then remove its finalizer, or set conditions about the rest."""
        await self._delete_all(
            record.key for record in self._list_in_namespace(key.name) if not _is_terminating(record)
        )
        left = [(record.key, decode_damaged_record(record)) for record in self._list_in_namespace(key.name)]
        if left:
            edit = functools.partial(set_deletion_conditions, left=left, now=format_time(self._registry.clock()))
            await self._registry.change(NAMESPACES, "", key.name, edit, _OPTIONS, subresource="status")
            return
        body = decode_record(self._registry.read(NAMESPACES, "", key.name))
        body["spec"] = {"finalizers": []}
        await self._registry.replace(NAMESPACES, "", key.name, body, _OPTIONS, subresource="finalize")

    def _list_in_namespace(self, namespace: str) -> Iterator[Record]:
        for resource in RESOURCES:
            if resource.namespaced:
                yield from (r for r in self._registry.store.scan(resource.id) if r.key.namespace == namespace)

    async def _delete_expired_events(self, now: datetime) -> None:
        """Delete expired Events. An Event that was written again has a later entry, too."""
        due = []
        while self._ageing and self._ageing[0][0] < now:
            due.append(heapq.heappop(self._ageing)[1])
        for key in due:
            record = self._registry.store.read(key)
            if record is None or (end := _event_expiry(decode_damaged_record(record), now)) >= now:
                continue
            await self._delete_object(key)
            if self._registry.store.read(key) is not None:
                heapq.heappush(self._ageing, (end, key))

    def _seconds_to_expiry(self, now: datetime) -> float | None:
        if not self._ageing:
            return None
        return min(max((self._ageing[0][0] - now).total_seconds(), RETRY_SECONDS), _EXPIRY_SECONDS)

    async def _delete_all(self, keys: Iterable[Key]) -> None:
        """Delete objects at once, in shared commits. An object that is already gone is no failure."""
        async with asyncio.TaskGroup() as tasks:
            for key in list(keys):
                tasks.create_task(self._delete_object(key))

    async def _delete_object(self, key: Key) -> None:
        with self._may_try(key) as may:
            if may:
                await self._registry.delete(BY_ID[key.resource], key.namespace, key.name, options=_OPTIONS)

    async def _remove_all_owner_references(self, keys: Iterable[Key]) -> None:
        """Delete dependents without another owner; remove the references to gone owners from the others."""
        async with asyncio.TaskGroup() as tasks:
            for key in list(keys):
                tasks.create_task(self._remove_owner_references(key))

    async def _remove_owner_references(self, key: Key) -> None:
        with self._guard.of(key):
            leaving = [uid for uid in self._owners.get(key, ()) if not self._is_kept_by_finalizer(uid)]
            if len(leaving) == len(self._owners.get(key, ())):
                await self._delete_object(key)
            elif leaving:
                await self._change_object(key, functools.partial(_remove_owners, uids=leaving))

    def _is_kept_by_finalizer(self, uid: str) -> bool:
        """Report whether an owner exists and does not wait only for its dependents' deletion."""
        going = self._going.get(self._uids[uid]) if uid in self._uids else None
        return uid in self._uids and not (going and _FOREGROUND in (going["metadata"].get("finalizers") or ()))

    async def _change_object(self, key: Key, edit: Any) -> None:
        with self._may_try(key) as may:
            if may:
                await self._registry.change(BY_ID[key.resource], key.namespace, key.name, edit, _OPTIONS)


def _owner_uids_of(meta: Object) -> tuple[str, ...]:
    listed = (o for o in meta.get("ownerReferences") or () if (o["apiVersion"], o["kind"]) in _SERVED)
    return tuple(str(owner["uid"]) for owner in listed)


def _event_expiry(event: Object, now: datetime) -> datetime:
    """Return when an Event expires. A time in the future, which a client may have written, counts as now."""
    last = read_last_timestamp(event) or value_at(event, "metadata", "creationTimestamp")
    seen = time_or_none(last) or now
    try:
        return min(seen, now) + EVENTS_LIVE
    except OverflowError:  # with its time zone before the year 1
        return now


def _is_terminating(record: Record) -> bool:
    return bool(decode_damaged_record(record)["metadata"].get("deletionTimestamp"))


def _remove_owners(value: Object, uids: Iterable[str]) -> Object:
    kept = [owner for owner in value["metadata"].get("ownerReferences") or () if owner["uid"] not in uids]
    return value | {"metadata": value["metadata"] | {"ownerReferences": kept}}


def _remove_finalizer(value: Object, name: str) -> Object:
    kept = [entry for entry in value["metadata"].get("finalizers") or () if entry != name]
    return value | {"metadata": value["metadata"] | {"finalizers": kept}}
