"""Lists what a mode lacks of what annotations ask for: a table, from which the Problems are made."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.plan.annotations.wishes import Wishes, field_of


class Lack(NamedTuple):
    """A wish (a field of `Wishes`) that a mode does not fulfil, or some values of it. `instead` is done then."""

    wish: str
    instead: str
    values: tuple[object, ...] = ()


def in_vain(service: ObjectName, wishes: Wishes, lacks: Iterable[Lack]) -> Iterator[Problem]:
    """Yield what a Service asks for in vain."""
    for lack in lacks:
        if lack.wish in wishes.given and (not lack.values or getattr(wishes, lack.wish) in lack.values):
            yield Problem("Service", service, field_of(wishes.given[lack.wish]), lack.instead)
