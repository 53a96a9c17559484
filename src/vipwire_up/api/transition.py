"""From one state of an object to the next: what a path may change of it, and whether anything is changed. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.objects.errors import conflict
from vipwire_up.api.objects.object import decoded, encode, encoder, wrong_uid
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.store.record import Key, Record


@dataclass(frozen=True, slots=True)
class Preconditions:
    """The preconditions of a deletion: UID and resourceVersion, where given."""

    uid: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The options of a deletion. Without `grace` its kind has a default, in seconds; `propagation` is the API's."""

    preconditions: Preconditions = Preconditions()
    grace: int | None = None
    propagation: str = ""


PLAIN_DELETION: Final = Deletion()


def unknown_fields(resource: Resource, value: Object) -> list[str]:
    """List the fields of a value that its type does not have; raise ApiError 400 for wrong types."""
    findings = Findings()
    decode(value, resource.type, findings)
    return findings.unknown


def with_defaults(resource: Resource, old: Object) -> Object:
    """Fill in what a stored object has by default now, and had not when it was stored."""
    try:
        filled: Object = decode(old, resource.type, Findings(), old=old)
    except ApiError:  # it is no object of its kind: it is compared as it is
        return old
    resource.default(filled)
    resource.prepare(filled, old)
    return filled


def addressed(wanted: Object, resource: Resource, subresource: str) -> Object:
    """Select what a path may change of what is applied to it: the status, or all else."""
    if subresource:
        return {key: part for key, part in wanted.items() if key in ("apiVersion", "kind", "metadata", subresource)}
    drops = resource.has_status and not resource.declares_status
    return {key: part for key, part in wanted.items() if not (drops and key == "status")}


def split(new: Object, old: Object, subresource: str) -> Object:
    """Restrict a write of the status to the status, and one of the object to everything else."""
    if subresource == "status":
        meta = old["metadata"] | {"managedFields": new["metadata"].get("managedFields")}
        meta = {key: value for key, value in meta.items() if value is not None}
        return {key: part for key, part in old.items() if key != "status"} | {
            "metadata": meta,
            "status": new.get("status", {}),
        }
    if subresource == "finalize":
        return old | {"spec": new["spec"]}
    if "finalizers" in (old.get("spec") or {}):  # a namespace's: only its subresource changes them
        new = new | {"spec": new["spec"] | {"finalizers": old["spec"]["finalizers"]}}
    kept = {"status": old["status"]} if "status" in old else {}
    return {key: part for key, part in new.items() if key != "status"} | kept


def same(new: Object, old: Object) -> bool:
    """Report whether nothing but the times of managers differs."""

    def plain(value: Object) -> Object:
        fields = [{k: v for k, v in e.items() if k != "time"} for e in value["metadata"].get("managedFields") or ()]
        return value | {"metadata": value["metadata"] | {"managedFields": fields, "resourceVersion": ""}}

    return plain(new) == plain(old)


def is_sound(resource: Resource, record: Record) -> bool:
    """Report whether a stored object has its kind's form: without it there are no finalizers to wait for."""
    try:
        value = decoded(record)
        decode(value, resource.type, Findings())
        parts = (value["metadata"], value.get("spec") or {}, value.get("status") or {})
    except (ApiError, AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError):
        return False
    return all(isinstance(part, dict) for part in parts)


def record_of_dry_run(key: Key, new: Object, record: Record | None) -> Record:
    """Build the record of a state that is answered and not stored: it keeps `record`'s resourceVersion."""
    if record is not None:
        return Record(key, record.revision, encoder(new)(record.revision))
    new["metadata"].pop("resourceVersion", None)
    return Record(key, 0, encode(new))


def finished(value: Object) -> bool:
    """Report whether nothing is left to wait for, so that a marked object goes."""
    meta = value["metadata"]
    going = meta.get("deletionTimestamp") and not meta.get("deletionGracePeriodSeconds")
    return bool(going) and not meta.get("finalizers") and not (value.get("spec") or {}).get("finalizers")


def check_preconditions(resource: Resource, name: str, value: Object, wanted: Preconditions) -> None:
    """Raise ApiError 409 unless preconditions hold."""
    meta: dict[str, Any] = value["metadata"]
    if wanted.uid and wanted.uid != meta.get("uid"):
        raise wrong_uid(resource, name, wanted.uid, meta.get("uid", ""))
    if wanted.version and wanted.version != meta.get("resourceVersion"):
        found = meta.get("resourceVersion")
        why = f"Precondition failed: ResourceVersion in precondition: {wanted.version}, in object meta: {found}"
        raise conflict(resource.id, name, why)
