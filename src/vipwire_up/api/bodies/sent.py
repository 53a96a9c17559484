"""Reads an object that a client sends to be stored, and checks its body before anything is made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.objects.errors import Cause, bad_request, conflict
from vipwire_up.api.objects.object import decoded, wrong_uid
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.store.record import Record

DEFAULT_MANAGER: Final = "vipwire"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a change. `validation` is for unknown fields: Strict, Warn or Ignore."""

    manager: str = DEFAULT_MANAGER
    dry_run: bool = False
    validation: str = "Strict"
    force: bool = False


@dataclass(frozen=True, slots=True)
class Remarks:
    """What there is to say of one attempt at a change: warnings, and values that the body's type does not allow."""

    warnings: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


def decode_sent(
    resource: Resource, value: Object, options: Options, remarks: Remarks, old: Object | None = None
) -> Object:
    """Read a body as its kind, defaults filled in; remark on wrong values. Raise ApiError 400 for wrong types.

    `old` is the object as it is stored: what is wrong there already may stay.
    """
    findings = Findings()
    try:
        decoded_value: Object = decode(value, resource.type, findings, old=old)
    except ApiError as error:
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: {error.message}") from None
    remarks.warnings.extend(unknown_warnings(resource, findings.unknown, options))
    remarks.causes.extend(findings.causes)
    return decoded_value


def check_version(resource: Resource, name: str, value: Object, record: Record) -> None:
    """Raise ApiError 409 for a body that is about another state, or another object, than there is."""
    meta = value["metadata"]
    sent = meta.get("resourceVersion")
    if sent and sent not in ("0", str(record.revision)):
        raise conflict(resource.id, name)
    found = decoded(record)["metadata"].get("uid", "")
    if meta.get("uid") and meta["uid"] != found:
        raise wrong_uid(resource, name, meta["uid"], found)


def give_first_status(resource: Resource, new: Object) -> None:
    """Set a new object's status to its kind's first one, whatever was sent, unless it is declared."""
    if resource.has_status and not resource.declares_status:
        new["status"] = decode_sent(resource, {"metadata": {}}, Options(), Remarks()).get("status", {})


def unknown_warnings(resource: Resource, unknown: Sequence[str], options: Options) -> list[str]:
    """Return warnings of fields that a kind does not have; raise ApiError 400 where that is asked for."""
    return strict_warnings(resource, [f'unknown field "{path}"' for path in unknown], options)


def undeclared(resource: Resource, namespace: str, name: str, path: str) -> ApiError:
    """Refuse an apply of a field that its kind does not have: nobody could own it. As Kubernetes does, with a 500."""
    about = f"{namespace}/{name}" if namespace else name
    kind = f"{resource.api_version if resource.group else '/v1'}, Kind={resource.kind}"
    why = f"failed to create typed patch object ({about}; {kind}): .{path}: field not declared in schema"
    return ApiError(500, "", why)


def strict_warnings(resource: Resource, texts: Sequence[str], options: Options) -> list[str]:
    """Return warnings of what is wrong with a body's fields, none where nothing is asked for. Raise ApiError 400."""
    if not texts or options.validation == "Ignore":
        return []
    if options.validation == "Strict":
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: strict decoding error: {', '.join(texts)}")
    return list(dict.fromkeys(texts))
