"""Creates, changes and deletes objects under Kubernetes' rules, for controllers and the HTTP server.

    body ─▶ identity ─▶ types, defaults ─▶ ownership ─▶ prepare ─▶ admission ─▶ checks ─▶ store

Nothing is awaited before the store accepts a write. A change starts from the newest state, including writes that are
not yet on disk: so a change without a resourceVersion cannot lose another one.

In-process use, by controllers:

    registry.store.scan("services"), registry.store.watch("services", revision)     records; `decoded(record)`
    await registry.create(SERVICES, "default", value, Options(manager="allocator"))
    await registry.change(SERVICES, "default", "web", lambda value: ..., Options(...), subresource="status")
    await registry.delete(SERVICES, "default", "web")
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vipwire.kube.resource import without_nulls
from vipwire.model.times import format_time
from vipwire_up.api.admission import NOTHING_ADDED, Admission, AdmissionRequest, Admitted, Operation, admit_all
from vipwire_up.api.change import (
    PLAIN_DELETION,
    Deletion,
    Options,
    Remarks,
    build_dry_run_record,
    check_preconditions,
    check_version,
    decode_body_object,
    fill_missing_defaults,
    is_finished,
    is_same,
    is_valid_record,
    refuse_unknown,
    restrict_to_subresource,
    select_addressed,
    set_initial_status,
)
from vipwire_up.api.committing import Commits
from vipwire_up.api.kinds.small_kinds import IMMORTAL, NAMESPACES
from vipwire_up.api.metadata import check_metadata, fill_new_metadata, keep_metadata, mark_deleted
from vipwire_up.api.objects.errors import (
    Cause,
    already_exists,
    bad_request,
    damaged_object,
    forbidden_object,
    invalid,
    namespace_terminating,
    not_found,
    not_valid,
)
from vipwire_up.api.objects.object import (
    NO_SUCH_UID,
    check_creatable,
    check_identity,
    check_name,
    decode_damaged_record,
    decode_record,
    decode_with_name,
    key_of,
    object_content,
    value_encoder,
)
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.patches import apply as ssa
from vipwire_up.store.record import Check, Key, Record, Write
from vipwire_up.store.store import Store


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request: the object's state as bytes, whether it was created or deleted, warnings."""

    record: Record
    created: bool = False
    deleted: bool = False
    warnings: tuple[str, ...] = ()


class Registry:
    """The objects of a store under the rules of their kinds. `clock` returns the time in UTC."""

    def __init__(self, store: Store, clock: Callable[[], datetime], hooks: Sequence[Admission] = ()) -> None:
        self.store = store
        self.clock = clock
        self._hooks = tuple(hooks)
        self._commits = Commits(store)

    def with_fence(self, fence: Check) -> "FencedRegistry":
        """Return the registry of an elected writer. The store refuses its writes once another one is elected."""
        return FencedRegistry(self.store, self.clock, self._hooks, fence)

    def read(self, resource: Resource, namespace: str, name: str) -> Record:
        record = self.store.read(key_of(resource, namespace, name))
        if record is None:
            raise not_found(resource.id, name)
        return record

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        record = self.store.read(key_of(resource, namespace, name))
        return decode_record(record) if record is not None else None

    async def create(self, resource: Resource, namespace: str, body: Any, options: Options) -> Result:
        async def attempt() -> Result:
            value = check_identity(resource, self._commits.copy_body(body), namespace)
            if value["metadata"].get("resourceVersion"):
                raise bad_request("resourceVersion should not be set on objects to be created")
            return await self._store_new(resource, namespace, value, options)

        return await self._commits.retry_on_conflict(None, attempt)

    async def _store_new(
        self, resource: Resource, namespace: str, value: Object, options: Options, owned: ssa.Ownership | None = None
    ) -> Result:
        """Store a new object. An apply passes the fields it `owned`; else the manager owns all fields in the body."""
        remarks = Remarks()
        new = decode_body_object(resource, value, options, remarks)
        fill_new_metadata(resource, new, namespace, self._format_now())
        name = new["metadata"]["name"]
        self._check_namespace(resource, namespace, name)
        set_initial_status(resource, new)
        owner = ssa.FieldManager(options.manager, version=resource.api_version) if owned is None else None
        if owned is not None:
            new["metadata"]["managedFields"] = ssa.write_ownership(owned)
        return await self._admit_and_store(
            AdmissionRequest(Operation.CREATE, resource, namespace, name, new, None), options, remarks, owner
        )

    async def replace(
        self, resource: Resource, namespace: str, name: str, body: Any, options: Options, *, subresource: str = ""
    ) -> Result:
        """Replace an object, or its status. A resourceVersion in the body must be the current one."""
        value = check_identity(resource, body, namespace)
        check_name(value, name)
        there = self.store.head(key_of(resource, namespace, name)) is not None
        if not there and resource.created_by_put and not subresource:
            check_creatable(resource, name, value)
            value["metadata"]["name"] = name
            return await self.create(resource, namespace, value, options)
        if there and resource.put_needs_version and not value["metadata"].get("resourceVersion"):
            cause = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise not_valid(resource.id, "", name, (cause,))
        return await self.change(resource, namespace, name, lambda _: value, options, subresource=subresource)

    async def change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        edit: Callable[[Object], Any],
        options: Options,
        *,
        subresource: str = "",
    ) -> Result:
        """Change an object: `edit` makes the next state from a copy of the current one.

        If another server writes meanwhile, `edit` is called again.
        """

        async def attempt() -> Result:
            record = self._require_sound(resource, namespace, name)
            if record is None:
                raise not_found(resource.id, name)
            old = decode_record(record)
            value = check_identity(resource, self._commits.copy_body(edit(copy.deepcopy(old))), namespace)
            check_name(value, name)
            check_version(resource, name, value, record)
            remarks = Remarks()
            new = decode_body_object(resource, value, options, remarks, old, subresource=subresource)
            keep_metadata(new, old)
            if resource.has_status or subresource:
                new = restrict_to_subresource(new, old, subresource)
            update = AdmissionRequest(Operation.UPDATE, resource, namespace, name, new, old, subresource=subresource)
            writer = ssa.FieldManager(options.manager, subresource=subresource, version=resource.api_version)
            return await self._admit_and_store(update, options, remarks, writer, record)

        return await self._commits.retry_on_conflict(key_of(resource, namespace, name), attempt)

    async def apply(
        self, resource: Resource, namespace: str, name: str, body: Any, options: Options, *, subresource: str = ""
    ) -> Result:
        """Apply a manager's configuration; create the object if missing. Raise ApiError 409 for conflicts."""

        async def attempt() -> Result:
            wanted = check_identity(resource, self._commits.copy_body(body), namespace)
            if "managedFields" in wanted["metadata"] and wanted["metadata"]["managedFields"]:
                raise bad_request("metadata.managedFields must be nil")
            if wanted["metadata"].setdefault("name", name) != name:
                raise bad_request(f"the name of the object does not match the name on the URL ({name})")
            wanted = select_addressed(without_nulls(wanted), resource, subresource)
            refuse_unknown(resource, namespace, name, wanted, options)
            writer = ssa.FieldManager(options.manager, "Apply", subresource, resource.api_version)
            record = self._require_sound(resource, namespace, name)
            old = decode_record(record) if record else {}
            ownership = ssa.read_ownership(old.get("metadata", {}).get("managedFields"))
            if record is not None and not ownership:
                ownership = ssa.ownership_before_apply(old, resource, self._format_now())
            force = options.force or ssa.undisputed_fields(old, resource, writer)
            merged, owned = ssa.apply_configuration(
                old, wanted, resource.type, writer, ownership, force=force, now=self._format_now()
            )
            merged = ssa.update_last_applied(merged, wanted, writer)
            if record is None:
                check_creatable(resource, name, wanted, NO_SUCH_UID)
                return await self._store_new(resource, namespace, merged, options, owned)
            check_version(resource, name, wanted, record)
            remarks = Remarks()
            new = decode_body_object(resource, merged, options, remarks, old, subresource=subresource)
            keep_metadata(new, old)
            new = restrict_to_subresource(new, old, subresource) if resource.has_status or subresource else new
            new["metadata"]["managedFields"] = ssa.write_ownership(owned)
            update = AdmissionRequest(Operation.UPDATE, resource, namespace, name, new, old, subresource=subresource)
            return await self._admit_and_store(update, options, remarks, None, record)

        return await self._commits.retry_on_conflict(key_of(resource, namespace, name), attempt)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        options: Options | None = None,
        deletion: Deletion = PLAIN_DELETION,
    ) -> Result:
        """Delete an object; one with finalizers or a grace period is only marked, and removed when they are over."""
        given, key = options or Options(), key_of(resource, namespace, name)

        async def attempt() -> Result:
            record = self.store.head(key)
            if record is None:
                raise not_found(resource.id, name)
            if resource is NAMESPACES and name in IMMORTAL:
                raise forbidden_object(resource.id, name, "this namespace may not be deleted")
            old = decode_with_name(record)
            check_preconditions(resource, name, old, deletion)
            if not is_valid_record(resource, record):
                return await self._remove_damaged(resource, record, old, given)
            new = copy.deepcopy(old)
            if not mark_deleted(resource, new, self.clock(), grace=deletion.grace, propagation=deletion.propagation):
                return await self._remove_object(resource, record, old, given)
            if new == old:
                return Result(record)
            update = AdmissionRequest(Operation.UPDATE, resource, namespace, name, new, old)
            return await self._admit_and_store(update, given, Remarks(), None, record)

        return await self._commits.retry_on_conflict(key, attempt)

    async def _admit_and_store(
        self,
        attempt: AdmissionRequest,
        options: Options,
        remarks: Remarks,
        writer: ssa.FieldManager | None,
        record: Record | None = None,
    ) -> Result:
        """Run admission and validation on a change, and store it. `writer`, if given, owns the changed fields."""
        result = await self._validate_and_store(attempt, options, remarks, writer, record)
        return dataclasses.replace(result, warnings=tuple(remarks.warnings))

    async def _validate_and_store(
        self,
        attempt: AdmissionRequest,
        options: Options,
        remarks: Remarks,
        writer: ssa.FieldManager | None,
        record: Record | None,
    ) -> Result:
        resource, new, old = attempt.resource, attempt.new, attempt.old
        assert new is not None  # noqa: S101  # only deletions have none, and come by another way
        resource.default(new)
        if writer is not None:  # before allocation: no manager owns allocated fields
            new["metadata"]["managedFields"] = ssa.build_managed_fields(
                resource, old or {}, new, writer, self._format_now()
            )
        resource.prepare(new, old)
        key = key_of(resource, attempt.namespace, attempt.name)
        taken = old is None and self.store.head(key) is not None
        if remarks.causes or taken:
            self._validate_object(resource, new, old, remarks.causes)
        if taken:  # before allocation
            raise already_exists(resource.id, attempt.name)
        admitted = admit_all(
            self._hooks, dataclasses.replace(attempt, dry_run=options.dry_run, caller=options.caller)
        )
        with admitted.taken_back_on_error():
            self._validate_object(resource, new, old)
            if not attempt.subresource:
                remarks.warnings.extend(resource.warn(new, old))
            if resource.counts_generations and old is not None and object_content(new) != object_content(old):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        if record is not None and old is not None and is_same(new, old) and not admitted.also:
            admitted.take_back()
            return Result(record)
        if old is not None and is_finished(new):
            return await self._remove_object(resource, record, new, options, admitted)
        if options.dry_run:
            admitted.take_back()
            return Result(build_dry_run_record(key, new, record), created=old is None)
        write = Write(key, value_encoder(new), record.revision if record else 0, lifetime=resource.lifetime)
        stored = await self._commits.submit_write(write, admitted)
        return Result(stored, created=old is None)

    def _validate_object(
        self, resource: Resource, new: Object, old: Object | None, found: Sequence[Cause] = ()
    ) -> None:
        """Raise ApiError 422 for errors, including those `found` in the body; errors of the old state may stay."""
        causes = [*check_metadata(resource, new, old), *resource.check(new, old)]
        if causes and old is not None:
            causes = _find_added_errors(resource, new, old) and _find_added_errors(
                resource, new, fill_missing_defaults(resource, old)
            )
        causes = [*found, *causes]
        if causes:
            raise not_valid(resource.kind, resource.group, new["metadata"]["name"], causes)

    async def _remove_object(
        self,
        resource: Resource,
        record: Record | None,
        value: Object,
        options: Options,
        admitted: Admitted = NOTHING_ADDED,
    ) -> Result:
        assert record is not None  # noqa: S101  # what is removed was there
        key = record.key
        leaving = AdmissionRequest(
            Operation.DELETE, resource, key.namespace, key.name, None, value, options.dry_run, caller=options.caller
        )
        with admitted.taken_back_on_error():
            admitted = admitted.join(admit_all(self._hooks, leaving))
        if options.dry_run:
            admitted.take_back()
            return Result(record, deleted=True)
        stored = await self._commits.submit_write(
            Write(key, value_encoder(value), record.revision, deletes=True), admitted
        )
        return Result(stored, deleted=True)

    async def _remove_damaged(self, resource: Resource, record: Record, value: Object, options: Options) -> Result:
        """Remove a damaged record without admission hooks, which could not decode it."""
        if options.dry_run:
            return Result(build_dry_run_record(record.key, value, record), deleted=True)
        value = {"apiVersion": resource.api_version, "kind": resource.kind} | value
        stored = await self._commits.submit_write(
            Write(record.key, value_encoder(value), record.revision, deletes=True), NOTHING_ADDED
        )
        return Result(stored, deleted=True)

    def _require_sound(self, resource: Resource, namespace: str, name: str) -> Record | None:
        """Return an object's newest state, None if missing; raise ApiError 500 if it is damaged."""
        record = self.store.head(key_of(resource, namespace, name))
        if record is not None and self.store.is_damaged(record):
            raise damaged_object(resource.id, name)
        return record

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        record = self.store.head(Key(NAMESPACES.id, "", namespace))
        if record is None:
            raise not_found(NAMESPACES.id, namespace)
        if decode_damaged_record(record)["metadata"].get("deletionTimestamp"):
            raise namespace_terminating(resource.id, name, namespace)

    def _format_now(self) -> str:
        return format_time(self.clock())


class FencedRegistry(Registry):
    """The registry of an elected writer. Each of its transactions checks the fence of that election."""

    def __init__(self, store: Store, clock: Callable[[], datetime], hooks: Sequence[Admission], fence: Check) -> None:
        super().__init__(store, clock, hooks)
        self.fence = fence
        self._commits = Commits(store, fence)


def _find_added_errors(resource: Resource, new: Object, old: Object) -> list[Cause]:
    known = {*check_metadata(resource, old, old), *resource.check(old, old)}
    return [cause for cause in (*check_metadata(resource, new, old), *resource.check(new, old)) if cause not in known]
