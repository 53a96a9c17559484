"""The content of the fake API server: objects with resource versions, history, and selectors."""

import bisect
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = dict[str, Any]
Matches: TypeAlias = Callable[[Json], bool]
HISTORY = 100_000


class ApiError(Exception):
    """A refusal, as in a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Collection:
    """One kind of object: its path, and its selectable fields."""

    base: str
    plural: str
    kind: str
    namespaced: bool
    fields: tuple[str, ...] = ("metadata.name", "metadata.namespace")

    @property
    def version(self) -> str:
        return self.base.removeprefix("/apis/").removeprefix("/api/")


_SERVICE_FIELDS = ("metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type")
COLLECTIONS = (
    Collection("/api/v1", "services", "Service", namespaced=True, fields=_SERVICE_FIELDS),
    Collection("/apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice", namespaced=True),
    Collection("/api/v1", "endpoints", "Endpoints", namespaced=True),
    Collection("/api/v1", "nodes", "Node", namespaced=False),
    Collection("/apis/networking.k8s.io/v1", "servicecidrs", "ServiceCIDR", namespaced=False),
    Collection("/api/v1", "events", "Event", namespaced=True),
)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object and its bytes, which are sent many times."""

    value: Json
    raw: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object: `before` is None when added, `after` when deleted."""

    version: int
    before: Stored | None
    after: Stored | None

    def seen_by(self, matches: Matches) -> bytes | None:
        """Return this as a watch's line; an object that no longer matches the selector counts as deleted."""
        was = self.before is not None and matches(self.before.value)
        now = self.after is not None and matches(self.after.value)
        if not was and not now:
            return None
        kind = ("MODIFIED" if was else "ADDED") if now else "DELETED"
        stored = self.after if now else self.before
        assert stored is not None
        raw = stored.raw
        if not now:
            raw = encode(_versioned(stored.value, self.version))
        return b'{"type":"%b","object":%b}\n' % (kind.encode(), bytes(raw))


@dataclass(slots=True)
class Shelf:
    """The objects of one collection, and their history."""

    collection: Collection
    objects: dict[tuple[str, str], Stored] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=lambda: deque(maxlen=HISTORY))
    snapshots: dict[int, list[Stored]] = field(default_factory=dict)
    oldest: int = 0


class ApiStore:
    """All collections. Calls `on_change` after every change."""

    def __init__(self) -> None:
        self.version = 1
        self.shelves = {collection.plural: Shelf(collection) for collection in COLLECTIONS}
        self.on_change: Callable[[str, Change], None] = lambda _plural, _change: None

    def put(self, plural: str, value: Json, *, create: bool | None = None) -> Json:
        """Create or replace an object; `create` requires one of the two."""
        shelf = self.shelves[plural]
        meta = dict(value.get("metadata") or {})
        if shelf.collection.namespaced:
            meta.setdefault("namespace", "default")
        key = (meta.get("namespace", ""), meta.get("name", ""))
        before = shelf.objects.get(key)
        if create is True and before is not None:
            raise ApiError(409, "AlreadyExists", f"{plural} {key[1]!r} already exists")
        if create is False and before is None:
            raise ApiError(404, "NotFound", f"{plural} {key[1]!r} not found")
        self.version += 1
        default_uid = before.value["metadata"].get("uid") if before else f"uid-{self.version}"
        meta.setdefault("uid", default_uid)
        meta["resourceVersion"] = str(self.version)
        whole = {"apiVersion": shelf.collection.version, "kind": shelf.collection.kind, **value, "metadata": meta}
        shelf.objects[key] = Stored(whole, encode(whole))
        self._changed(shelf, Change(self.version, before, shelf.objects[key]))
        return whole

    def read(self, plural: str, namespace: str, name: str) -> Json:
        stored = self.shelves[plural].objects.get((namespace, name))
        if stored is None:
            raise ApiError(404, "NotFound", f"{plural} {name!r} not found")
        return stored.value

    def patch(self, plural: str, namespace: str, name: str, patch: Json) -> Json:
        return self.put(plural, _merge(self.read(plural, namespace, name), patch), create=False)

    def delete(self, plural: str, namespace: str, name: str) -> Json:
        value = self.read(plural, namespace, name)
        shelf = self.shelves[plural]
        self.version += 1
        self._changed(shelf, Change(self.version, shelf.objects.pop((namespace, name)), None))
        return value

    def expire(self) -> None:
        """Drop all history, as a compaction does: older versions and continue tokens answer 410."""
        self.version += 1
        for shelf in self.shelves.values():
            shelf.history.clear()
            shelf.snapshots.clear()
            shelf.oldest = self.version

    def page(self, plural: str, matches: Matches, limit: int, token: str) -> bytes:
        """Answer a list, consistent over its chunks as in the real server."""
        shelf = self.shelves[plural]
        version, start = _read_token(token) if token else (self.version, 0)
        if not token:
            shelf.snapshots[version] = list(shelf.objects.values())
        snapshot = shelf.snapshots.get(version)
        if snapshot is None:
            raise ApiError(410, "Expired", "The provided continue parameter is too old")
        found: list[msgspec.Raw] = []
        position = start
        while position < len(snapshot) and (not limit or len(found) < limit):
            if matches(snapshot[position].value):
                found.append(snapshot[position].raw)
            position += 1
        meta = {"resourceVersion": str(version)}
        if position < len(snapshot):
            meta["continue"] = json.dumps([version, position])
        else:
            shelf.snapshots.pop(version, None)
        kind = f"{shelf.collection.kind}List"
        return bytes(encode({"kind": kind, "apiVersion": shelf.collection.version, "metadata": meta, "items": found}))

    def since(self, plural: str, version: int) -> Iterator[Change]:
        """Replay the changes after a version."""
        shelf = self.shelves[plural]
        if version < shelf.oldest:
            raise ApiError(410, "Expired", f"too old resource version: {version} ({shelf.oldest})")
        changes = list(shelf.history)
        yield from changes[bisect.bisect_right(changes, version, key=lambda change: change.version) :]

    def _changed(self, shelf: Shelf, change: Change) -> None:
        if len(shelf.history) == HISTORY:
            shelf.oldest = shelf.history[0].version
        shelf.history.append(change)
        self.on_change(shelf.collection.plural, change)


def encode(value: Json) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def selector(labels: str, fields: str, namespace: str, supported: tuple[str, ...]) -> Matches:
    """Return the test of a `labelSelector` and `fieldSelector`; raise ApiError 400 for unsupported ones."""
    tests = [_label_test(term.strip()) for term in re.split(r",(?![^(]*\))", labels) if term.strip()]
    tests += [_field_test(term.strip(), supported) for term in fields.split(",") if term.strip()]
    if namespace:
        tests.append(lambda value: value["metadata"].get("namespace") == namespace)
    return lambda value: all(test(value) for test in tests)


def _label_test(term: str) -> Matches:
    def labels(value: Json) -> Json:
        return value["metadata"].get("labels") or {}

    if term.startswith("!"):
        return lambda value: term[1:] not in labels(value)
    if listed := re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term):
        wanted = {item.strip() for item in listed[3].split(",")}
        return lambda value: (labels(value).get(listed[1]) in wanted) == (listed[2] == "in")
    if match := re.fullmatch(r"([^=!]+)(!=|==?)(.*)", term):
        return lambda value: (labels(value).get(match[1]) == match[3]) != (match[2] == "!=")
    return lambda value: term in labels(value)


def _field_test(term: str, supported: tuple[str, ...]) -> Matches:
    match = re.fullmatch(r"([^=!]+)(!=|==?)(.*)", term)
    if match is None or match[1] not in supported:
        raise ApiError(400, "BadRequest", f"field label not supported: {match[1] if match else term}")

    def read(value: Any) -> str:
        for part in match[1].split("."):
            value = (value or {}).get(part)
        return value or ""

    return lambda value: (read(value) == match[3]) != (match[2] == "!=")


def _versioned(value: Json, version: int) -> Json:
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(version)}}


def _read_token(token: str) -> tuple[int, int]:
    try:
        version, start = json.loads(token)
        return int(version), int(start)
    except (ValueError, TypeError) as error:
        raise ApiError(400, "BadRequest", "continue key is not valid") from error


def _merge(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), change)
    return merged
