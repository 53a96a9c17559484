"""The steps of a change: from the stored object and the client's body to the next state of the object. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.objects.errors import Cause, bad_request, conflict
from vipwire_up.api.objects.object import decode_record, encode, uid_conflict, value_encoder
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.serving.authorization import User
from vipwire_up.store.record import Key, Record

_PART: Final = re.compile(r"[^.\[]+")
DEFAULT_MANAGER: Final = "vipwire"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a change. `validation` is for unknown fields: Strict, Warn or Ignore.

    `caller` is the user of the request; None for changes by parts of this process.
    """

    manager: str = DEFAULT_MANAGER
    dry_run: bool = False
    validation: str = "Strict"
    force: bool = False
    caller: User | None = None


@dataclass(frozen=True, slots=True)
class Remarks:
    """Warnings and validation errors of one attempt at a change."""

    warnings: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


def decode_body_object(
    resource: Resource,
    value: Object,
    options: Options,
    remarks: Remarks,
    old: Object | None = None,
    *,
    subresource: str = "",
) -> Object:
    """Decode a body as its kind, with defaults; note invalid values in `remarks`. Raise ApiError 400 for wrong types.

    `old` is the stored object: invalid values that it already has are allowed. So are those of the parts that a write
    of this object or `subresource` does not change.
    """
    findings = Findings()
    try:
        decoded_value: Object = decode(value, resource.type, findings, old=old)
    except ApiError as error:
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: {error.message}") from None
    remarks.warnings.extend(unknown_warnings(resource, findings.unknown, options))
    is_new = old is None
    remarks.causes.extend(
        each for each in findings.causes if not is_dropped(resource, each.field, subresource, is_new=is_new)
    )
    return decoded_value


def is_dropped(resource: Resource, field: str, subresource: str, *, is_new: bool) -> bool:
    """Report whether a write does not take a field from the body."""
    part = _PART.match(field)
    name = part[0] if part else ""
    if subresource:
        return name != {"status": "status", "finalize": "spec"}.get(subresource)
    return name == "status" and resource.has_status and not (is_new and resource.declares_status)


def check_version(resource: Resource, name: str, value: Object, record: Record) -> None:
    """Raise ApiError 409 if a body names another resourceVersion or UID than the stored object's."""
    meta = value["metadata"]
    sent = meta.get("resourceVersion")
    if sent and sent not in ("0", str(record.revision)):
        raise conflict(resource.id, name)
    found = decode_record(record)["metadata"].get("uid", "")
    if meta.get("uid") and meta["uid"] != found:
        raise uid_conflict(resource, name, meta["uid"], found)


def set_initial_status(resource: Resource, new: Object) -> None:
    """Set a new object's status to the initial status of its kind, unless the kind takes the client's."""
    if resource.has_status and not resource.declares_status:
        new["status"] = decode_body_object(resource, {"metadata": {}}, Options(), Remarks()).get("status", {})


def unknown_warnings(resource: Resource, unknown: Sequence[str], options: Options) -> list[str]:
    """Return warnings about unknown fields; raise ApiError 400 for Strict validation."""
    return strict_warnings(resource, [f'unknown field "{path}"' for path in unknown], options)


def refuse_unknown(resource: Resource, namespace: str, name: str, wanted: Object, options: Options) -> None:
    """Raise ApiError for an apply of an unknown field, which no manager can own: 500, like Kubernetes, or 400."""
    findings = Findings()
    decode(wanted, resource.type, findings)
    if not findings.unknown:
        return
    unknown_warnings(resource, findings.unknown, options)
    about = f"{namespace}/{name}" if namespace else name
    kind = f"{resource.api_version if resource.group else '/v1'}, Kind={resource.kind}"
    found = f".{findings.unknown[0]}: field not declared in schema"
    raise ApiError(500, "", f"failed to create typed patch object ({about}; {kind}): {found}")


def strict_warnings(resource: Resource, texts: Sequence[str], options: Options) -> list[str]:
    """Return warnings about a body's fields, none for Ignore. Raise ApiError 400 for Strict validation."""
    if not texts or options.validation == "Ignore":
        return []
    if options.validation == "Strict":
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: strict decoding error: {', '.join(texts)}")
    return list(dict.fromkeys(texts))


@dataclass(frozen=True, slots=True)
class Deletion:
    """The options of a deletion. `grace` is in seconds, None for the kind's default; `propagation` is the API's.

    `uid` and `version`, where given, are its preconditions.
    """

    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    version: str = ""


PLAIN_DELETION: Final = Deletion()


def fill_missing_defaults(resource: Resource, old: Object) -> Object:
    """Fill in defaults that a stored object lacks because an older version stored it."""
    try:
        filled: Object = decode(old, resource.type, Findings(), old=old)
    except ApiError:  # the stored object is damaged: compare as stored
        return old
    resource.default(filled)
    resource.prepare(filled, old)
    return filled


def select_addressed(wanted: Object, resource: Resource, subresource: str) -> Object:
    """Return the part of an applied object that a path may change: the status, or all else."""
    if subresource:
        return {key: part for key, part in wanted.items() if key in ("apiVersion", "kind", "metadata", subresource)}
    drops = resource.has_status and not resource.declares_status
    return {key: part for key, part in wanted.items() if not (drops and key == "status")}


def restrict_to_subresource(new: Object, old: Object, subresource: str) -> Object:
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
    if "finalizers" in (old.get("spec") or {}):  # only a namespace's `finalize` subresource changes these
        new = new | {"spec": new["spec"] | {"finalizers": old["spec"]["finalizers"]}}
    kept = {"status": old["status"]} if "status" in old else {}
    return {key: part for key, part in new.items() if key != "status"} | kept


def is_same(new: Object, old: Object) -> bool:
    """Report whether two states differ at most in the times of managers."""

    def plain(value: Object) -> Object:
        fields = [{k: v for k, v in e.items() if k != "time"} for e in value["metadata"].get("managedFields") or ()]
        return value | {"metadata": value["metadata"] | {"managedFields": fields, "resourceVersion": ""}}

    return plain(new) == plain(old)


def is_valid_record(resource: Resource, record: Record) -> bool:
    """Report whether a stored object can be decoded. One that cannot has no finalizers to wait for."""
    try:
        value = decode_record(record)
        decode(value, resource.type, Findings())
        parts = (value["metadata"], value.get("spec") or {}, value.get("status") or {})
    except (ApiError, AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError):
        return False
    return all(isinstance(part, dict) for part in parts)


def build_dry_run_record(key: Key, new: Object, record: Record | None) -> Record:
    """Build the record that a dry run answers: the new state with the resourceVersion of `record`."""
    if record is not None:
        return Record(key, record.revision, value_encoder(new)(record.revision))
    new["metadata"].pop("resourceVersion", None)
    return Record(key, 0, encode(new))


def is_finished(value: Object) -> bool:
    """Report whether a deleted object has no finalizers and no grace period left."""
    meta = value["metadata"]
    going = meta.get("deletionTimestamp") and not meta.get("deletionGracePeriodSeconds")
    return bool(going) and not meta.get("finalizers") and not (value.get("spec") or {}).get("finalizers")


def check_preconditions(resource: Resource, name: str, value: Object, wanted: Deletion) -> None:
    meta: dict[str, Any] = value["metadata"]
    if wanted.uid and wanted.uid != meta.get("uid"):
        raise uid_conflict(resource, name, wanted.uid, meta.get("uid", ""))
    if wanted.version and wanted.version != meta.get("resourceVersion"):
        found = meta.get("resourceVersion")
        why = f"Precondition failed: ResourceVersion in precondition: {wanted.version}, in object meta: {found}"
        raise conflict(resource.id, name, why)
