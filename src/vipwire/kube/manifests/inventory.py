"""Merges the objects of all manifest files, and finds what differs from before. Pure.

The same object in two files: the file whose path sorts first has it, and the other is told of. Problems belong to an
object or to a file, so that they can be told with an event about it and end with one: a file is spoken of as an
object that is never there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias

from vipwire.kube.manifests.documents import Entry, Manifest
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.state.event import Deleted, EventOf, K, Listed, T, Upserted

Key: TypeAlias = tuple[K, ObjectName]


@dataclass(frozen=True, slots=True)
class Inventory(Generic[K, T]):
    """All objects and all problems of a set of files."""

    objects: Mapping[Key[K], T] = field(default_factory=dict)
    problems: Mapping[Key[K], tuple[Problem, ...]] = field(default_factory=dict)


def take_inventory(
    manifests: Iterable[Manifest[K, T]], files_are: K, file_problems: Iterable[Problem] = ()
) -> Inventory[K, T]:
    """Merge files; `file_problems` are those of files and paths that could not be read.

    A file is spoken of as an object of the kind `files_are`.
    """
    objects: dict[Key[K], T] = {}
    problems: dict[Key[K], tuple[Problem, ...]] = {}
    owners: dict[Key[K], str] = {}
    for manifest in sorted(manifests, key=lambda manifest: manifest.file):
        for problem in manifest.problems:
            _add(problems, (files_are, problem.object), (problem,))
        for entry in manifest.entries:
            _take(entry, manifest.file, objects, problems, owners)
    for problem in file_problems:
        _add(problems, (files_are, problem.object), (problem,))
    return Inventory(objects, problems)


def listed(inventory: Inventory[K, T], kinds: Iterable[K]) -> Iterator[Listed[K, T]]:
    """Yield one `Listed` for every kind, also for empty ones, since somebody waits for each."""
    for kind in kinds:
        objects = tuple(value for (of, _), value in inventory.objects.items() if of is kind)
        problems = (problems for (of, _), problems in inventory.problems.items() if of is kind)
        yield Listed(kind, objects, tuple(problem for group in problems for problem in group))


def differences(before: Inventory[K, T], after: Inventory[K, T]) -> Iterator[EventOf[K, T]]:
    """Yield what changed: an object, or only what is wrong with it."""
    keys = {**before.objects, **after.objects, **before.problems, **after.problems}
    for key in keys:
        old, new = before.objects.get(key), after.objects.get(key)
        problems = after.problems.get(key, ())
        if old == new and before.problems.get(key, ()) == problems:
            continue
        yield Deleted(*key, problems) if new is None else Upserted(new, problems)


def _take(
    entry: Entry[K, T],
    file: str,
    objects: dict[Key[K], T],
    problems: dict[Key[K], tuple[Problem, ...]],
    owners: dict[Key[K], str],
) -> None:
    keys = tuple((entry.kind, name) for name in entry.names)
    taken = next((key for key in keys if key in owners), None)
    if taken is not None:
        message = f"stands in {owners[taken]} too, which is used; the one in {file} is not"
        _add(problems, taken, (Problem(entry.kind.value, entry.name, "metadata.name", message),))
        return
    owners.update(dict.fromkeys(keys, file))
    objects.update(zip(keys, entry.objects, strict=False))
    _add(problems, keys[0], entry.problems)


def _add(problems: dict[Key[K], tuple[Problem, ...]], key: Key[K], more: tuple[Problem, ...]) -> None:
    if more:
        problems[key] = problems.get(key, ()) + more
