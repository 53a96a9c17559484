"""The text of a manifest file as objects of this cluster. Pure: text in, entries and problems out.

YAML as Kubernetes reads it: several documents a file, lists of objects, JSON too. Two of PyYAML's habits are switched
off, since they change what was written: dates become no date objects (a timestamp is a string on the wire), and a
key that stands twice in a mapping is an error, not a silent loss of the first.

Kinds that no service proxy reads (Deployments, Knative's `Service`) are ordinary in people's folders; they are left
out.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # a PyYAML without libyaml is ten times slower and does the same
    from yaml import SafeLoader  # type: ignore[assignment]

from vipwire.errors import DecodeError
from vipwire.kube.resource import document_name, name_of, printable, read_document
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.state.event import Kind, Object

_KINDS = {
    "Service": (Kind.SERVICE, ("v1",)),
    "Endpoints": (Kind.ENDPOINT_SLICE, ("v1",)),
    "EndpointSlice": (Kind.ENDPOINT_SLICE, ("discovery.k8s.io/v1",)),
    "Node": (Kind.NODE, ("v1",)),
    "ServiceCIDR": (Kind.SERVICE_CIDR, ("networking.k8s.io/v1", "networking.k8s.io/v1beta1")),
}
_NAMESPACED = ("Service", "Endpoints", "EndpointSlice")
_DEEPEST_LIST = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a file: what it became (Endpoints become several slices) and what was wrong with it."""

    kind: Kind
    name: ObjectName
    objects: tuple[Object, ...]
    problems: tuple[Problem, ...]

    @property
    def names(self) -> tuple[ObjectName, ...]:
        """The names by which its objects are known in events; its own name if it has none."""
        return tuple(name_of(value) for value in self.objects) or (self.name,)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file says. `ignored` names the kinds in it that are nobody's business here."""

    file: str
    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()
    ignored: frozenset[str] = field(default_factory=frozenset)


def read_manifest(text: str, file: str) -> Manifest:
    """Read a file's text; raise DecodeError with the line and column when it does not parse.

    A file whose name ends in `.json` is JSON, any other is YAML.
    """
    return gather(text, file, _entry)


def gather(text: str, file: str, entry: Callable[[dict[str, object]], Entry | None]) -> Manifest:
    """Read a file's text as above, lists unfolded, for whoever reads other kinds; `entry` gives None for the rest."""
    entries, problems, ignored = [], [], set()
    for index, document in enumerate(_parse(text, json_only=file.endswith(".json"))):
        for item in _objects(document, "", 0):
            if isinstance(item, str):
                problems.append(file_problem(file, f"document {index + 1}", item))
            elif made := entry(item):
                entries.append(made)
            else:
                ignored.add(f"{item['kind']} ({item['apiVersion']})")
    return Manifest(file, tuple(entries), tuple(problems), frozenset(ignored))


def file_problem(file: str, place: str, message: str) -> Problem:
    """Make a problem of a whole file, or of a place in it that has no object's name."""
    return Problem("Manifest", ObjectName("", file), place, message)


class _Loader(SafeLoader):
    """YAML without dates, and without keys that stand twice."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # the stubs call it an instance's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode) and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(text: str, *, json_only: bool) -> list[object]:
    if json_only:
        return list(_json_documents(text))
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "YAML"
        raise DecodeError(f"{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DecodeError(f"YAML: {' '.join(str(error).split())}") from error


def _json_documents(text: str) -> Iterator[object]:
    decoder, rest = json.JSONDecoder(), len(text) - len(text.lstrip())
    while rest < len(text):
        try:
            document, rest = decoder.raw_decode(text, rest)
        except json.JSONDecodeError as error:
            raise DecodeError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
        except RecursionError as error:
            raise DecodeError("JSON: nested too deep") from error
        yield document
        rest = len(text) - len(text[rest:].lstrip())


def _objects(document: object, version: str, depth: int, kind: str = "") -> Iterator[dict[str, object] | str]:
    """Unfold lists; yield each object, or a text that says why there is none."""
    if not isinstance(document, dict):
        yield f"is {type(document).__name__}, not an object"
        return
    kind = printable(document.get("kind") or kind)
    version = printable(document.get("apiVersion") or version)
    items = document.get("items")
    if not kind or not version:
        yield f"{document_name(document)} has no {'apiVersion' if kind else 'kind'}"
    elif not kind.endswith("List") or "items" not in document:
        yield {**document, "kind": kind, "apiVersion": version}
    elif not isinstance(items, list | None) or depth >= _DEEPEST_LIST:
        yield f"{kind}.items is not a list"
    else:
        # The items of a ServiceList leave out what the list says for them; those of a List say it themselves.
        of = ("", "") if kind == "List" else (kind.removesuffix("List"), version)
        for item in items or ():
            yield from _objects(item, of[1], depth + 1, of[0])


def _entry(item: dict[str, object]) -> Entry | None:
    """Read one object; None when it is of a kind that is not read here."""
    kind, version = str(item["kind"]), str(item["apiVersion"])
    known = _KINDS.get(kind)
    if known is None or version.rpartition("/")[0] != known[1][0].rpartition("/")[0]:
        return None
    meta = item.get("metadata")
    if kind in _NAMESPACED and isinstance(meta, dict) and not meta.get("namespace"):
        item = {**item, "metadata": {**meta, "namespace": "default"}}
    name = document_name(item)
    if version not in known[1]:
        message = f"{version!r} is not read (allowed: {', '.join(known[1])})"
        return Entry(known[0], name, (), (Problem(kind, name, "apiVersion", message),))
    objects, problems = read_document(kind, item)
    return Entry(known[0], name, objects, problems)
