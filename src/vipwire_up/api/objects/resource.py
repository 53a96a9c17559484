"""Declares a kind for the API server: one generic handler serves all of them.

`columns` are the columns of `kubectl get`, `fields` the fields of field selectors, `check` Kubernetes' validation
beyond the types. A check gets the object to be stored and the one before (None at creation). `warn` returns warnings
about valid but doubtful values.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from vipwire_up.api.objects.errors import Cause
from vipwire_up.api.objects.names import NameRule, check_subdomain
from vipwire_up.api.objects.schema import Type

Object: TypeAlias = dict[str, Any]
"""An object as JSON has it."""

Warn: TypeAlias = Callable[[Object, Object | None], Iterable[str]]
Check: TypeAlias = Callable[[Object, Object | None], Iterable[Cause]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. `-o wide` shows columns of priority 1; `cell` gets the object and the time."""

    name: str
    cell: Callable[[Object, datetime], Any]
    kind: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """The declaration of one kind.

    `default` fills in defaults that are not constant; the client owns these fields as if it had sent them. `prepare`
    sets the server's fields at creation and update, which no manager owns.

    `declares_status` keeps the status of a creation: a Node reports its own status, and a Pod is a workload that
    already runs. `shown_when_deleted` answers a deletion with the object's last state in place of a Status, as typed
    clients of Kubernetes expect.

    `deletes_many` allows deletecollection, `created_by_put` lets a PUT create an object, `put_needs_version` makes
    resourceVersion required in a PUT. `deprecated` is a warning in every answer. `lifetime` is the seconds without a
    change after which an object is deleted, 0 for never.

    `stored_as` is the kind whose objects this one shows in another group or version, None for a kind with objects of
    its own. `renamed` gives the stored names of fields that have another name here.
    """

    kind: str
    plural: str
    type: Type
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    declares_status: bool = False
    counts_generations: bool = False
    shown_when_deleted: bool = False
    deletes_many: bool = True
    created_by_put: bool = False
    put_needs_version: bool = False
    deprecated: str = ""
    lifetime: int = 0
    columns: tuple[Column, ...] = ()
    fields: Mapping[str, Callable[[Object], str]] = field(default_factory=dict)
    name_rule: NameRule = check_subdomain
    default: Callable[[Object], None] = lambda _: None
    prepare: Callable[[Object, Object | None], None] = lambda _new, _old: None
    check: Check = lambda _new, _old: ()
    warn: Warn = lambda _new, _old: ()
    stored_as: "Resource | None" = None
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def storage(self) -> "Resource":
        return self.stored_as or self

    @property
    def id(self) -> str:
        """The plural with its group: the resource's name in the store."""
        group = self.storage.group
        return f"{self.plural}.{group}" if group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def base(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def verbs(self) -> tuple[str, ...]:
        return tuple(verb for verb in SERVED_VERBS if verb != "deletecollection" or self.deletes_many)


def convert_to_served(resource: Resource, value: Object) -> Object:
    """Return a stored object in the version of a resource, which may rename fields of the whole object."""
    if resource.stored_as is None:
        return value
    names = {stored_name: name for name, stored_name in resource.renamed.items()}
    return {names.get(name, name): part for name, part in value.items()} | {"apiVersion": resource.api_version}


def convert_to_stored(resource: Resource, value: Object) -> Object:
    """Return an object of a resource's version as the store holds it."""
    kept = {resource.renamed.get(name, name): part for name, part in value.items()}
    return kept | {"apiVersion": resource.storage.api_version}


SERVED_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
