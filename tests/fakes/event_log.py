"""Records the events of a source, and waits until a condition holds."""

import asyncio
from collections.abc import Callable

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Object


class EventLog:
    """Call it with events. `objects` is a store's content after them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.objects: dict[tuple[Kind, ObjectName], Object] = {}
        self._came = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        apply(self.objects, event)
        self._came.set()

    def chance(self) -> float:
        """Return a random number for a source, which asks before each decision: a moment to check conditions."""
        self._came.set()
        return 0.0

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that events or decisions change; raise TimeoutError after 60 s."""
        async with asyncio.timeout(60):
            while not condition():
                self._came.clear()
                await self._came.wait()

    def listed(self) -> set[Kind]:
        return {event.kind for event in self.events if isinstance(event, Listed)}

    def changes(self) -> list[Event]:
        return [event for event in self.events if not isinstance(event, Listed)]

    def problems(self) -> list[Problem]:
        return [problem for event in self.events for problem in event.problems]


def apply(objects: dict[tuple[Kind, ObjectName], Object], event: Event) -> None:
    """Apply an event to a mapping: the least that a store must do."""
    if isinstance(event, Listed):
        for key in [key for key in objects if key[0] is event.kind]:
            del objects[key]
        objects.update((key_of(value), value) for value in event.objects)
    elif isinstance(event, Deleted):
        objects.pop((event.kind, event.name), None)
    else:
        objects[key_of(event.object)] = event.object


def key_of(value: Object) -> tuple[Kind, ObjectName]:
    name = value.name if isinstance(value.name, ObjectName) else ObjectName("", value.name)
    return Kind(type(value).__name__), name
