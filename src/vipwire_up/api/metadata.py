"""Sets and checks metadata at creation, change and deletion. Pure but for chance in names and UIDs."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from vipwire.model.times import format_time
from vipwire_up.api.objects import names
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid, required
from vipwire_up.api.objects.object import KEPT_META, append_random_suffix, new_uid
from vipwire_up.api.objects.resource import Object, Resource

_KNOWN_FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")
_SET_BY_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def fill_new_metadata(resource: Resource, value: Object, namespace: str, now: str) -> None:
    """Set a new object's namespace, UID, creation time, and the name from generateName."""
    meta: dict[str, Any] = value["metadata"]
    for key in (*_SET_BY_DELETION, "resourceVersion", "selfLink", "generation"):
        meta.pop(key, None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = append_random_suffix(meta["generateName"])
    meta["name"] = meta.get("name") or ""
    meta.pop("namespace", None)
    if resource.namespaced:
        meta["namespace"] = namespace
    meta |= {"uid": new_uid(), "creationTimestamp": now}
    if resource.counts_generations:
        meta["generation"] = 1


def keep_metadata(new: Object, old: Object) -> None:
    """Restore immutable metadata; managedFields stay if the change leaves them out."""
    meta, before = new["metadata"], old["metadata"]
    for key in (*KEPT_META, *_SET_BY_DELETION, "generation", "resourceVersion"):
        meta.pop(key, None)
        if key in before:
            meta[key] = before[key]
    if "managedFields" not in meta and "managedFields" in before:
        meta["managedFields"] = before["managedFields"]


def mark_deleted(resource: Resource, value: Object, now: datetime, *, grace: int | None, propagation: str) -> bool:
    """Set deletionTimestamp on an object with finalizers or a Pod's grace period; report whether it has to wait.

    A Pod that has no node, or has ended, needs no grace period (pkg/registry/core/pod/strategy.go).
    """
    meta = value["metadata"]
    if propagation in _FINALIZERS and not meta.get("deletionTimestamp"):
        finalizers = meta.setdefault("finalizers", [])
        finalizers += [_FINALIZERS[propagation]] if _FINALIZERS[propagation] not in finalizers else []
    seconds = _grace_period(resource, value, grace)
    before = meta.get("deletionGracePeriodSeconds")
    waits = meta.get("finalizers") or (value.get("spec") or {}).get("finalizers") or seconds
    if not waits:
        return False
    if "deletionTimestamp" not in meta:
        meta["deletionTimestamp"] = format_time(add_seconds(now, seconds))
        meta["deletionGracePeriodSeconds"] = seconds
        if resource.plural == "namespaces":
            value["status"] = (value.get("status") or {}) | {"phase": "Terminating"}
    elif grace is not None and before and seconds < before:  # the grace period can be shortened, not extended
        meta["deletionTimestamp"] = format_time(add_seconds(now, seconds))
        meta["deletionGracePeriodSeconds"] = seconds
    return True


def add_seconds(now: datetime, seconds: int) -> datetime:
    """Return the time `seconds` from now, or the last one that can be written."""
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return _LAST


def _grace_period(resource: Resource, value: Object, grace: int | None) -> int:
    if resource.plural != "pods":
        return 0
    ended = (value.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if ended or not value["spec"].get("nodeName"):
        return 0
    wanted = value["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
    return int(wanted) if wanted >= 0 else 1  # Kubernetes' meaning of a negative one (registry/rest/delete.go)


def check_metadata(resource: Resource, value: Object, old: Object | None) -> Iterator[Cause]:
    """Validate metadata. `old` is the stored object, None for a new one."""
    meta = value["metadata"]
    if not meta.get("name"):
        yield required("metadata.name", "name or generateName is required")
    elif problem := names.check_path_segment(meta["name"]) or resource.name_rule(meta["name"]):
        yield invalid("metadata.name", meta["name"], problem)
    yield from names.check_labels(meta.get("labels") or {}, "metadata.labels")
    yield from names.check_annotations(meta.get("annotations") or {}, "metadata.annotations")
    controllers = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    if len(controllers) > 1:
        yield invalid(
            "metadata.ownerReferences", controllers[1]["name"], "Only one reference can have Controller set"
        )
    finalizers = meta.get("finalizers") or []
    before = old["metadata"] if old else {}
    added = sorted(set(finalizers) - set(before.get("finalizers") or ()))
    if added and before.get("deletionTimestamp"):
        listed = ", ".join(f'"{entry}"' for entry in added)
        why = "no new finalizers can be added if the object is being deleted"
        yield forbidden("metadata.finalizers", f"{why}, found new finalizers []string{{{listed}}}")
    seen = set[str]()
    for index, entry in enumerate(finalizers):
        if problem := names.check_qualified_name(entry):
            yield invalid(f"metadata.finalizers[{index}]", entry, problem)
        elif "/" not in entry and entry not in _KNOWN_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"metadata.finalizers[{index}]", entry, why)
        if entry in seen:
            yield duplicate(f"metadata.finalizers[{index}]", entry)
        seen.add(entry)
