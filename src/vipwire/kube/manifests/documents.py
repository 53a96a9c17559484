"""Parses manifest files into objects of the requested kinds. Pure: text in, entries and problems out.

YAML as Kubernetes reads it: several documents a file, lists of objects, JSON too. A duplicate key is an error. Other
kinds (Deployments, Knative's `Service`) are skipped and named; an unknown kind in one of Kubernetes' groups is a
problem. The proxy reads the kinds that it watches at an API server, and Endpoints (`MANIFESTS`).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic

import msgspec

from vipwire.config.yaml_values import find_place_in_error, read_documents
from vipwire.errors import DecodeError
from vipwire.kube import wire
from vipwire.kube.convert_slice import convert_endpoints
from vipwire.kube.proxied import ENDPOINT_SLICES, NODES, SERVICE_CIDRS, SERVICES
from vipwire.kube.resource import (
    BROKEN,
    Resource,
    describe_unexpected,
    document_name,
    explain,
    format_value,
    name_of,
    without_nulls,
)
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.model.text import find_nearest
from vipwire.watched_objects.event import K, K_co, Kind, Object, T, T_co

_DEEPEST_LIST = 8
_MOST_ALIASED: Final = 1_000_000
"""Values that the aliases of one file may expand to."""
_MOST_STRANGE: Final = 1_000
"""The most documents and items of a file without an object or name; a file with more is refused."""
_SPACE: Final = re.compile(r"\s*")
_KINDS_OF_KUBERNETES = {
    "": frozenset(
        (
            *("Binding", "ComponentStatus", "ConfigMap", "Endpoints", "Event", "LimitRange", "Namespace", "Node"),
            *("PersistentVolume", "PersistentVolumeClaim", "Pod", "PodTemplate", "ReplicationController", "Service"),
            *("ResourceQuota", "Secret", "ServiceAccount"),
        )
    ),
    "discovery.k8s.io": frozenset(("EndpointSlice",)),
    "networking.k8s.io": frozenset(("IPAddress", "Ingress", "IngressClass", "NetworkPolicy", "ServiceCIDR")),
}
"""By API group all its kinds, for groups with a kind that vipwire reads."""


@dataclass(frozen=True, slots=True)
class ManifestKind(Generic[K_co, T_co]):
    """A kind in files. `kind` is the kind after conversion: Endpoints become EndpointSlices."""

    kind: K_co
    word: str
    versions: tuple[str, ...]
    read: Callable[[object], tuple[tuple[T_co, ...], tuple[Problem, ...]]]
    namespaced: bool = True

    def is_of_group(self, version: str) -> bool:
        """Report whether a version belongs to the kind's group, even if vipwire does not read that version."""
        return version.rpartition("/")[0] == self.versions[0].rpartition("/")[0]


def kind_in_manifests(resource: Resource[K, T], *older: str, namespaced: bool = True) -> ManifestKind[K, T]:
    """Return a resource's form in files; `older` versions are read like the watched one."""

    def read(document: object) -> tuple[tuple[T, ...], tuple[Problem, ...]]:
        try:
            source = msgspec.convert(document, resource.type)
        except msgspec.ValidationError:  # perhaps keys without a value, which an API server omits
            source = msgspec.convert(without_nulls(document), resource.type)
        converted, problems = resource.convert(source)
        return () if converted is None else (converted,), problems

    return ManifestKind(resource.kind, resource.kind.value, (resource.api_version, *older), read, namespaced)


@dataclass(frozen=True, slots=True)
class ManifestObject(Generic[K, T]):
    """One object of a file: its conversion (Endpoints become several slices), and its problems."""

    kind: K
    name: ObjectName
    objects: tuple[T, ...]
    problems: tuple[Problem, ...]

    @property
    def names(self) -> tuple[ObjectName, ...]:
        """The names of the objects, for events. If the document has no objects, the name of the document."""
        return tuple(name_of(value) for value in self.objects) or (self.name,)


@dataclass(frozen=True, slots=True)
class Manifest(Generic[K, T]):
    """The content of a file. `ignored` names the kinds that were skipped."""

    file: str
    entries: tuple[ManifestObject[K, T], ...] = ()
    problems: tuple[Problem, ...] = ()
    ignored: frozenset[str] = field(default_factory=frozenset)


class ManifestReader(Generic[K, T]):
    """Reads files for a program that reads `kinds`, each given once."""

    def __init__(self, *kinds: ManifestKind[K, T]) -> None:
        self._by_word = {each.word: each for each in kinds}
        self.kinds = tuple(dict.fromkeys(each.kind for each in kinds))

    def read(self, text: str, file: str) -> Manifest[K, T]:
        """Read a file's text; raise DecodeError with line and column if it does not parse.

        A file whose name ends in `.json` is JSON, any other is YAML.
        """
        file = format_value(file)
        entries: list[ManifestObject[K, T]] = []
        problems, ignored, nameless = list[Problem](), set[str](), 0
        for index, document in enumerate(_parse_documents(text, json_only=file.endswith(".json"))):
            try:
                for item in _list_objects(document, "", 0):
                    if isinstance(item, str):
                        problems.append(file_problem(file, f"document {index + 1}", item))
                    elif entry := self._read_entry(item):
                        entries.append(entry)
                        nameless += not entry.name.name
                    elif mistake := self._explain_unknown_kind(str(item["kind"]), str(item["apiVersion"])):
                        problems.append(file_problem(file, f"document {index + 1}", mistake))
                    else:
                        ignored.add(f"{item['kind']} ({item['apiVersion']})")
                    if len(problems) + nameless > _MOST_STRANGE:
                        break
            except Exception as error:  # noqa: BLE001 - an error in one document must not stop the others
                problems.append(file_problem(file, f"document {index + 1}", describe_unexpected(error)))
            if len(problems) + nameless > _MOST_STRANGE:
                raise DecodeError(
                    f"document {index + 1}: more than {_MOST_STRANGE:,} documents are not objects with a name"
                )
        return Manifest(file, tuple(entries), tuple(problems), frozenset(ignored))

    def _explain_unknown_kind(self, word: str, version: str) -> str:
        """Explain the mistake in an unread kind; "" for a kind of other programs."""
        near = find_nearest(word, self._by_word, 0.7)
        meant = f" (did you mean {near}?)" if near else ""
        known = _KINDS_OF_KUBERNETES.get(version.rpartition("/")[0])
        if known is None or word in known:
            return ""
        return f"there is no kind {word} in {version}{meant}"

    def _read_entry(self, item: dict[str, object]) -> ManifestObject[K, T] | None:
        """Read one object; None if its kind is not read."""
        word, version = str(item["kind"]), str(item["apiVersion"])
        known = self._by_word.get(word)
        if known is None or not known.is_of_group(version):
            return None
        meta = item.get("metadata")
        if known.namespaced and isinstance(meta, dict) and not meta.get("namespace"):
            item = {**item, "metadata": {**meta, "namespace": "default"}}
        name = document_name(item)
        if version not in known.versions:
            message = f"{version!r} is not supported (allowed: {', '.join(known.versions)})"
            return ManifestObject(known.kind, name, (), (Problem(word, name, "apiVersion", message),))
        return ManifestObject(known.kind, name, *read_object(known, item))


def read_object(kind: ManifestKind[K, T], document: object) -> tuple[tuple[T, ...], tuple[Problem, ...]]:
    """Read one document of a kind; each mistake is a problem."""
    try:
        return kind.read(document)
    except BROKEN as error:
        field, message = explain(error)
    except Exception as error:  # noqa: BLE001 - an error in one object must not stop the others
        field, message = "", describe_unexpected(error)
    return (), (Problem(kind.word, document_name(document), field, message),)


def file_problem(file: str, place: str, message: str) -> Problem:
    """Build a problem of a file, or of a place in it without an object's name."""
    return Problem("Manifest", ObjectName("", format_value(file)), place, message)


def _parse_documents(text: str, *, json_only: bool) -> list[object]:
    documents = _parse_json_documents(text) if json_only else read_documents(text, len(text) + _MOST_ALIASED)
    return [document for document in documents if document is not None]


def _parse_json_documents(text: str) -> Iterator[object]:
    decoder, rest = json.JSONDecoder(object_pairs_hook=_refuse_repeated_keys), _skip_space(text, 0)
    while rest < len(text):
        try:
            document, end = decoder.raw_decode(text, rest)
        except json.JSONDecodeError as error:
            raise DecodeError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
        except Exception as error:  # huge numbers, deep nesting, a duplicate key
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            raise DecodeError(
                f"{find_place_in_error(text[:rest])}: in the document that begins here: {reason}"
            ) from error
        yield document
        rest = _skip_space(text, end)


def _skip_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise DecodeError(f"duplicate key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r}")
    return found


def _list_objects(document: object, version: str, depth: int, kind: str = "") -> Iterator[dict[str, object] | str]:
    """Unfold lists; yield each object, or a text that says why an item is none."""
    if not isinstance(document, dict):
        yield f"is {type(document).__name__}, not an object"
        return
    kind = format_value(document.get("kind") or kind)
    version = format_value(document.get("apiVersion") or version)
    items = document.get("items")
    if not kind or not version:
        yield f"{document_name(document)} has no {'apiVersion' if kind else 'kind'}"
    elif not kind.endswith("List") or "items" not in document:
        yield {**document, "kind": kind, "apiVersion": version}
    elif not isinstance(items, list | None) or depth >= _DEEPEST_LIST:
        yield f"{kind}.items is not a list"
    else:
        # Items of a ServiceList omit kind and version; items of a List have them.
        of = ("", "") if kind == "List" else (kind.removesuffix("List"), version)
        for item in items or ():
            yield from _list_objects(item, of[1], depth + 1, of[0])


def _read_endpoints(document: object) -> tuple[tuple[Object, ...], tuple[Problem, ...]]:
    return convert_endpoints(msgspec.convert(document, wire.WireEndpoints))


IN_MANIFESTS: Final[tuple[ManifestKind[Kind, Object], ...]] = (
    kind_in_manifests(SERVICES),
    kind_in_manifests(ENDPOINT_SLICES),
    kind_in_manifests(NODES, namespaced=False),
    kind_in_manifests(SERVICE_CIDRS, "networking.k8s.io/v1beta1", namespaced=False),
    ManifestKind(Kind.ENDPOINT_SLICE, "Endpoints", ("v1",), _read_endpoints),
)
MANIFESTS: Final = ManifestReader(*IN_MANIFESTS)
"""Reads files for the proxy."""
