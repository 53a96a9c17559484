"""The API server's errors as Kubernetes' Status: code, reason, and a message that names the object and the field.

The sentences are those of Kubernetes' API machinery (apimachinery/pkg/api/errors and util/validation/field), because
clients and people search for them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from vipwire.kube.errors import ApiError


@dataclass(frozen=True, slots=True)
class Cause:
    """One error in an object: the field, Kubernetes' word for the error, and a sentence."""

    field: str
    reason: str
    message: str

    @property
    def text(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def required(field: str, detail: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value{_add_colon(detail)}")


def invalid(field: str, value: Any, detail: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_dump_json(value)}{_add_colon(detail)}")


def unsupported(field: str, value: Any, allowed: Iterable[str]) -> Cause:
    choices = ", ".join(f'"{choice}"' for choice in allowed)
    detail = f"supported values: {choices}"
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {_dump_json(value)}: {detail}")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_dump_json(value)}")


def missing(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueNotFound", f"Not found: {_dump_json(value)}")


def forbidden(field: str, detail: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden{_add_colon(detail)}")


def too_long(field: str, most: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")


def too_many(field: str, count: int, most: int) -> Cause:
    return Cause(field, "FieldValueTooMany", f"Too many: {count}: must have at most {most} items")


def not_valid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    listed = tuple(dict.fromkeys(causes))
    texts = [cause.text for cause in listed]
    what = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    described = f"{kind}.{group}" if group else kind
    details = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in listed],
    }
    return ApiError(422, "Invalid", f'{described} "{name}" is invalid: {what}', _drop_empty_details(details))


def not_found(resource: str, name: str) -> ApiError:
    """Build the 404 of a missing object. `resource` includes the API group, as in `deployments.apps`."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', _name_object(resource, name))


def already_exists(resource: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', _name_object(resource, name))


def conflict(resource: str, name: str, why: str = "") -> ApiError:
    """Build the 409 of an object that changed since the caller read it."""
    why = why or ("the object has been modified; please apply your changes to the latest version and try again")
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _name_object(resource, name))


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def expired_revision(message: str) -> ApiError:
    """Build the 410 of a compacted revision: the client lists again."""
    return ApiError(410, "Expired", message)


def forbidden_object(resource: str, name: str, why: str) -> ApiError:
    about = f'{resource} "{name}"' if name else resource
    return ApiError(403, "Forbidden", f"{about} is forbidden: {why}", _name_object(resource, name))


def namespace_terminating(resource: str, name: str, namespace: str) -> ApiError:
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    error = forbidden_object(resource, name, why)
    cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
    error.details["causes"] = [cause | {"field": "metadata.namespace"}]
    return error


def internal_error(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", details)


_NO_SPACE: Final = "NoSpace"


def store_full(message: str) -> ApiError:
    error = internal_error(message)
    error.details["causes"][0]["reason"] = _NO_SPACE
    return error


def is_store_full(error: ApiError) -> bool:
    causes = error.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(each, dict) and each.get("reason") == _NO_SPACE for each in causes
    )


def damaged_object(resource: str, name: str) -> ApiError:
    return internal_error(f'the stored {resource} "{name}" is damaged: delete the object, and create it again')


def page_not_found(why: str = "") -> ApiError:
    return ApiError(404, "NotFound", f"the server could not find the requested resource{_add_colon(why)}")


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def body_too_large(most: int) -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {most}")


def request_timeout() -> ApiError:
    details = {"retryAfterSeconds": 1}
    return ApiError(504, "Timeout", "Timeout: request did not complete within the allotted timeout", details)


def server_timeout(resource: str, verb: str, why: str) -> ApiError:
    """Build the 500 of an unavailable store: nothing changed, and the client may repeat the request."""
    said = f"The {verb} operation against {resource} could not be completed at this time, please try again."
    message = f"{said} ({why})"
    details = _name_object(resource, "") | {"causes": [{"message": why}], "retryAfterSeconds": 1}
    return ApiError(500, "ServerTimeout", message, details)


def unknown_outcome(why: str) -> ApiError:
    details = {"causes": [{"message": why}], "retryAfterSeconds": 1}
    message = (
        "Timeout: the server may have made the change, or may still make it: check before you repeat "
        f"the request ({why})"
    )
    return ApiError(504, "Timeout", message, details)


def _name_object(resource: str, name: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    return _drop_empty_details({"name": name, "group": group, "kind": plural})


def _drop_empty_details(details: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in details.items() if value}


def _dump_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _add_colon(detail: str) -> str:
    return f": {detail}" if detail else ""
