"""Objects between bytes and dicts: encoding with a revision, generated names, fields that the server keeps.

An object is encoded once, when its revision is known; readers and watchers share these bytes.
"""

import secrets
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request, body_too_large, conflict, not_found
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.store.record import Key, Record

MOST_BYTES: Final = 3 << 20
"""Bytes of one object with its metadata: repeated patches and applies could grow it without end."""
_ENCODER: Final = msgspec.json.Encoder()
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' alphabet: no vowels, so that no words come out
NO_SUCH_UID: Final = "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
KEPT_META: Final = ("name", "namespace", "uid", "creationTimestamp", "generateName", "selfLink")
"""Metadata that never changes after creation."""


def value_at(value: Any, *path: str | int) -> Any:
    """Return the value at a path of an object; None if the path ends early."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def encode(value: Any) -> bytes:
    return _ENCODER.encode(value)


def parse_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise bad_request(f"the body of the request is not JSON: {error}") from None


def decode_record(record: Record) -> Object:
    value: Object = msgspec.json.decode(record.value)
    return value


def decode_damaged_record(record: Record) -> Object:
    """Decode a record that may hold any JSON, such as a damaged or older one; {} if it is not an object."""
    try:
        value = decode_record(record)
        meta = value["metadata"]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
        return {"metadata": {}}
    return value | {"metadata": meta if isinstance(meta, dict) else {}}


def decode_with_name(record: Record) -> Object:
    """Decode a record that may hold any JSON, and set the name that it is stored under."""
    value = decode_damaged_record(record)
    place = {"namespace": record.key.namespace} if record.key.namespace else {}
    return value | {"metadata": {"name": record.key.name} | place | value["metadata"]}


def value_encoder(value: Object) -> Callable[[int], bytes]:
    """Return the function that the store calls with an object's revision."""

    def encode_at(revision: int) -> bytes:
        value["metadata"]["resourceVersion"] = str(revision)
        written = encode(value)
        if len(written) > MOST_BYTES:
            raise body_too_large(MOST_BYTES)
        return written

    return encode_at


def key_of(resource: Resource, namespace: str, name: str) -> Key:
    return Key(resource.id, namespace if resource.namespaced else "", name)


def new_uid() -> str:
    return str(uuid.uuid4())


def append_random_suffix(beginning: str) -> str:
    return beginning[: 63 - 5] + "".join(secrets.choice(_LETTERS) for _ in range(5))


def object_content(value: Object) -> Object:
    return {key: part for key, part in value.items() if key not in ("metadata", "status", "apiVersion", "kind")}


def check_identity(resource: Resource, value: Any, namespace: str) -> Object:
    """Check that a body's kind and namespace match the path; raise ApiError 400."""
    if not isinstance(value, dict):
        raise bad_request(f"the body of the request is not of kind {resource.kind}")
    kind, version = value.get("kind", resource.kind), value.get("apiVersion", resource.api_version)
    if (kind, version) != (resource.kind, resource.api_version):
        found = f"{version}, Kind={kind}"
        raise bad_request(
            f"the object provided is unrecognized: {found} is not {resource.api_version}, Kind={resource.kind}"
        )
    meta = value.get("metadata") or {}
    if not isinstance(meta, dict):
        raise bad_request("json: cannot unmarshal into field metadata of type ObjectMeta")
    if resource.namespaced and namespace and meta.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    body: Object = {"apiVersion": resource.api_version, "kind": resource.kind, **value, "metadata": dict(meta)}
    return body


def check_name(value: Object, name: str) -> None:
    """Check that a body's name matches the path; raise ApiError 400."""
    sent = value["metadata"].get("name")
    if sent not in (None, name):
        raise bad_request(f"the name of the object ({sent}) does not match the name on the URL ({name})")


def check_creatable(resource: Resource, name: str, value: Object, why: str = "") -> None:
    """Raise ApiError if a body names a UID (409) or a resourceVersion (404) of an object that does not exist."""
    uid = value["metadata"].get("uid")
    if uid:
        why = why.format(uid=uid) or f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
        raise conflict(resource.id, name, why)
    if value["metadata"].get("resourceVersion") not in (None, "", "0"):
        raise not_found(resource.id, name)
    value["metadata"].pop("resourceVersion", None)


def uid_conflict(resource: Resource, name: str, wanted: str, found: str) -> ApiError:
    """Build the 409 of a precondition on the UID: another object now has this name."""
    why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    message = f'Operation cannot be fulfilled on {resource.id} "{name}": {why}'
    return ApiError(409, "Conflict", message, {"name": name, "group": resource.group, "kind": resource.plural})
