"""Requests that change objects: from headers, query and body through the registry to the answer."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies import protobuf
from vipwire_up.api.bodies.parsing import Parsed, check_size, read_json, read_protobuf, read_yaml
from vipwire_up.api.change import (
    Deletion,
    Options,
    Remarks,
    decode_body_object,
    refuse_unknown,
    strict_warnings,
)
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.listing import list_page
from vipwire_up.api.objects.errors import bad_request, method_not_allowed, not_valid, unsupported
from vipwire_up.api.objects.object import check_identity, parse_json
from vipwire_up.api.objects.parameters import Parameters, is_dry_run
from vipwire_up.api.objects.resource import Object, Resource, convert_to_served, convert_to_stored
from vipwire_up.api.objects.schema import Type
from vipwire_up.api.patches.json_patch import apply_json_patch, apply_merge_patch
from vipwire_up.api.patches.strategic import apply_strategic_patch
from vipwire_up.api.registry import Registry, Result
from vipwire_up.api.selectors import parse_selector
from vipwire_up.api.serving.authorization import User
from vipwire_up.api.serving.route import Route
from vipwire_up.store.record import Record

APPLY: Final = "application/apply-patch+yaml"
_VALIDATIONS: Final = ("Ignore", "Strict", "Warn")
_DELETE_OPTIONS: Final = "DeleteOptions"
_PROPAGATIONS: Final = ("Background", "Foreground", "Orphan")
_PATCHES: Final[dict[str, Callable[[Object, Any, Resource], Any]]] = {
    "application/json-patch+json": lambda value, patch, _: apply_json_patch(value, patch),
    "application/merge-patch+json": lambda value, patch, _: apply_merge_patch(value, patch),
    "application/strategic-merge-patch+json": lambda value, patch, resource: apply_strategic_patch(
        value, patch, resource.type
    ),
}
_TOGETHER: Final = 256
_TYPES: Final = ("application/json", "application/yaml", "text/json", "")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that changes objects. `content` is the body's media type, `agent` the User-Agent."""

    user: User
    route: Route
    query: Parameters
    content: str
    agent: str
    body: bytes


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The answer: an object's state or a Status, and warnings."""

    code: int
    result: Result | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class _DeleteOptions(msgspec.Struct, rename="camel"):
    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    dry_run: list[str] = []  # msgspec copies defaults
    preconditions: dict[str, str] = {}


async def execute_write(registry: Registry, request: Request) -> WriteAnswer:
    route = request.route
    if not _is_verb_allowed(route):
        raise method_not_allowed()
    if route.verb == "delete":
        return await _delete_object(registry, request)
    if route.verb == "deletecollection":
        return await _delete_collection(registry, request)
    options, remarks = _read_options(request), Remarks()
    if route.resource.deprecated:
        remarks.warnings.append(route.resource.deprecated)
    result = await _create_or_update(registry, request, options, remarks)
    return WriteAnswer(
        201 if result.created else 200, result, warnings=tuple(dict.fromkeys((*remarks.warnings, *result.warnings)))
    )


def _is_verb_allowed(route: Route) -> bool:
    """Report whether a path has the method: paths of all namespaces have none that change objects."""
    if route.verb == "deletecollection" and not route.resource.deletes_many:
        return False
    if route.subresource:
        return route.verb == "update" or (route.verb == "patch" and route.subresource == "status")
    if route.name:
        return route.verb in ("update", "patch", "delete")
    return route.verb in ("create", "deletecollection") and bool(route.namespace or not route.resource.namespaced)


async def _create_or_update(registry: Registry, request: Request, options: Options, remarks: Remarks) -> Result:
    route = request.route
    if route.verb == "patch":
        return await _patch_object(registry, request, options, remarks)
    body = _check_strictly(await _parse_body(request, options), route.resource, options, remarks)
    body, kind = _convert_to_stored(route, body, options, remarks), route.resource.storage
    if route.verb == "update":
        return await registry.replace(kind, route.namespace, route.name, body, options, subresource=route.subresource)
    return await registry.create(kind, route.namespace, body, options)


def _convert_to_stored(route: Route, value: Any, options: Options, remarks: Remarks) -> Any:
    """Convert a body from the version of the path to the stored one, if they differ. Raise ApiError 400."""
    resource = route.resource
    if resource.stored_as is None:
        return value
    body = check_identity(resource, value, route.namespace)
    return convert_to_stored(
        resource, decode_body_object(resource, body, options, remarks) if resource.renamed else body
    )


def _check_strictly(parsed: Parsed, resource: Resource, options: Options, remarks: Remarks) -> Any:
    """Return the value of a body; note duplicate fields as `fieldValidation` says. Raise ApiError 400."""
    texts = [f'duplicate field "{path}"' for path in parsed.repeated]
    remarks.warnings.extend(strict_warnings(resource, texts, options))
    return parsed.value


async def _patch_object(registry: Registry, request: Request, options: Options, remarks: Remarks) -> Result:
    route, resource, strictly = request.route, request.route.resource, options.validation != "Ignore"
    place = (resource.storage, route.namespace, route.name)
    if request.content == APPLY:
        if not request.query.text("fieldManager"):
            raise bad_request(
                "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch"
            )
        wanted = _check_strictly(await read_yaml(request.body, strictly=strictly), resource, options, remarks)
        for field in ("apiVersion", "kind"):
            if isinstance(wanted, dict) and not wanted.get(field):
                raise bad_request(f"Object '{field[0].upper()}{field[1:]}' is missing in the applied configuration")
        if resource.renamed:
            refuse_unknown(resource, route.namespace, route.name, wanted, options)
        wanted = _convert_to_stored(route, wanted, options, remarks)
        return await registry.apply(*place, wanted, options, subresource=route.subresource)
    edit = _PATCHES.get(request.content)
    if edit is None:
        raise _unsupported_media_error(request.content)
    patch = _check_strictly(await read_json(request.body, strictly=strictly), resource, options, remarks)
    if request.content != "application/json-patch+json" and not isinstance(patch, dict):
        raise bad_request("a merge patch is an object")

    def patched(value: Object) -> Any:
        found = check_size(edit(convert_to_served(resource, value), patch, resource))
        return _convert_to_stored(route, found, options, remarks)

    return await registry.change(*place, patched, options, subresource=route.subresource)


async def _delete_object(registry: Registry, request: Request) -> WriteAnswer:
    route, (options, given) = request.route, await _read_delete_options(request)
    wanted = given.preconditions
    asked = wanted.get("uid", ""), wanted.get("resourceVersion", "")
    deletion = Deletion(given.grace_period_seconds, given.propagation_policy, *asked)
    kind = route.resource.storage
    result = await registry.delete(kind, route.namespace, route.name, options=options, deletion=deletion)
    if result.deleted and not route.resource.shown_when_deleted:
        return WriteAnswer(200, status=_build_deleted_status(route.resource, route.name, result))
    return WriteAnswer(200, result)


async def _delete_collection(registry: Registry, request: Request) -> WriteAnswer:
    route, (options, given) = request.route, await _read_delete_options(request)
    labels, fields = request.query.text("labelSelector"), request.query.text("fieldSelector")
    selector, kind = parse_selector(route.resource, route.namespace, labels, fields), route.resource.storage
    page = await list_page(registry.store, route.resource, selector, Parameters())
    deletion = Deletion(grace=given.grace_period_seconds, propagation=given.propagation_policy)

    async def delete(record: Record) -> None:
        try:
            await registry.delete(kind, record.key.namespace, record.key.name, options=options, deletion=deletion)
        except ApiError as error:
            if error.code != 404:  # another client deleted the object first
                raise

    for start in range(0, len(page.records), _TOGETHER):  # writes of one group share a commit
        part = page.records[start : start + _TOGETHER]
        results = await asyncio.gather(*map(delete, part), return_exceptions=True)
        for error in filter(None, results):
            raise error
    details = {"group": route.resource.group, "kind": route.resource.plural}
    return WriteAnswer(200, status=_build_success_status(details))


def _build_deleted_status(resource: Resource, name: str, result: Result) -> dict[str, Any]:
    uid = parse_json(result.record.value)["metadata"].get("uid", "")
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return _build_success_status(details)


def _build_success_status(details: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in details.items() if value}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": known}


def _read_options(request: Request) -> Options:
    query = request.query
    kind = f"{request.route.verb.capitalize()}Options"
    validation = query.choice("fieldValidation", _VALIDATIONS, kind) or "Warn"
    manager = query.text("fieldManager") or request.agent.partition("/")[0] or "unknown"
    if len(manager) > 128 or not manager.isprintable():
        raise bad_request("fieldManager: must be printable and no more than 128 characters")
    return Options(manager, query.dry_run(kind), validation, query.flag("force"), request.user)


async def _read_delete_options(request: Request) -> tuple[Options, _DeleteOptions]:
    query = request.query
    try:
        body = (await _parse_body(request, Options())).value if request.body.strip() else {}
        given = msgspec.convert(body, _DeleteOptions)
    except (msgspec.MsgspecError, ValueError) as error:
        raise bad_request(f"DeleteOptions cannot be read: {error}") from None
    if (grace := query.number("gracePeriodSeconds")) is not None:
        given.grace_period_seconds = grace
    given.propagation_policy = (
        query.choice("propagationPolicy", _PROPAGATIONS, _DELETE_OPTIONS) or given.propagation_policy
    )
    if query.flag("orphanDependents") or given.orphan_dependents:
        given.propagation_policy = "Orphan"
    if given.propagation_policy and given.propagation_policy not in _PROPAGATIONS:
        cause = unsupported("propagationPolicy", given.propagation_policy, _PROPAGATIONS)
        raise not_valid(_DELETE_OPTIONS, "meta.k8s.io", "", (cause,))
    given.preconditions |= {name: query.text(name) for name in ("uid", "resourceVersion") if query.text(name)}
    dry = query.dry_run(_DELETE_OPTIONS) or is_dry_run(given.dry_run, _DELETE_OPTIONS)
    return Options(dry_run=dry, caller=request.user), given


async def read_object(content: str, body: bytes, types: Mapping[str, Type], *, strictly: bool = False) -> Parsed:
    """Parse a body by its media type; `types` are the protobuf types by kind. Raise ApiError."""
    if content == protobuf.MEDIA_TYPE:
        return await read_protobuf(body, types)
    if content not in _TYPES:
        raise _unsupported_media_error(content)
    return await (read_yaml if content == "application/yaml" else read_json)(body, strictly=strictly)


async def _parse_body(request: Request, options: Options) -> Parsed:
    kind = request.route.resource
    types = {kind.kind: kind.type, "DeleteOptions": META["DeleteOptions"]}
    return await read_object(request.content, request.body, types, strictly=options.validation != "Ignore")


def _unsupported_media_error(content: str) -> ApiError:
    known = ", ".join((*filter(None, _TYPES), protobuf.MEDIA_TYPE, *_PATCHES, APPLY))
    message = f"the body of the request was in an unknown format - accepted media types include: {known}"
    return ApiError(415, "UnsupportedMediaType", f"{message} (got {content!r})")
