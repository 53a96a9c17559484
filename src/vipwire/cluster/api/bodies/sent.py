"""Reads an object that a client sends to be stored, and checks its body before anything is made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from vipwire.cluster.api.bodies.decode import Findings, decode
from vipwire.cluster.api.errors import ApiError, Cause, bad_request, conflict
from vipwire.cluster.api.object import decoded, wrong_uid
from vipwire.cluster.api.resource import Object, Resource
from vipwire.cluster.store.record import Record

DEFAULT_MANAGER: Final = "vipwire"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a change. `validation` is for unknown fields: Strict, Warn or Ignore.

    Findings about the body gather here: warnings, and values that its type does not allow.
    """

    manager: str = DEFAULT_MANAGER
    dry_run: bool = False
    validation: str = "Strict"
    force: bool = False
    warnings: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


def decode_sent(resource: Resource, value: Object, options: Options, old: Object | None = None) -> Object:
    """Read a body as its kind, defaults filled in; collect wrong values. Raise ApiError 400 for wrong types.

    `old` is the object as it is stored: what is wrong there already may stay.
    """
    findings = Findings()
    try:
        decoded_value: Object = decode(value, resource.type, findings, old=old)
    except ApiError as error:
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: {error.message}") from None
    report_unknown(resource, findings.unknown, options)
    options.causes.extend(findings.causes)
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
        new["status"] = decode_sent(resource, {"metadata": {}}, Options()).get("status", {})


def report_unknown(resource: Resource, unknown: Sequence[str], options: Options) -> None:
    """Report fields that a kind does not have, as `report_strictly` does."""
    report_strictly(resource, [f'unknown field "{path}"' for path in unknown], options)


def undeclared(resource: Resource, namespace: str, name: str, path: str) -> ApiError:
    """Refuse an apply of a field that its kind does not have: nobody could own it. As Kubernetes does, with a 500."""
    about = f"{namespace}/{name}" if namespace else name
    kind = f"{resource.api_version if resource.group else '/v1'}, Kind={resource.kind}"
    why = f"failed to create typed patch object ({about}; {kind}): .{path}: field not declared in schema"
    return ApiError(500, "", why)


def report_strictly(resource: Resource, texts: Sequence[str], options: Options) -> None:
    """Refuse a body for what is wrong with its fields, warn of it, or say nothing, as asked. Raise ApiError 400."""
    if not texts or options.validation == "Ignore":
        return
    if options.validation == "Strict":
        what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{what}: strict decoding error: {', '.join(texts)}")
    known = set(options.warnings)
    options.warnings.extend(text for text in dict.fromkeys(texts) if text not in known)
