"""Indexes by label: the Pods that a Service selects, and the Services that select a Pod. Pure.

Each side is found by one label, then compared in full: a Service by the rarest label of its selector, a Pod by each
of its labels. So a label that all Pods share costs nothing if another label distinguishes them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

Name: TypeAlias = tuple[str, str]
"""Namespace and name."""
_Place: TypeAlias = tuple[str, str, str]


class Selection:
    """Services by their selectors and Pods by their labels."""

    def __init__(self) -> None:
        self._selectors: dict[Name, dict[str, str]] = {}
        self._found_by: dict[Name, _Place] = {}
        self._labels: dict[Name, dict[str, str]] = {}
        self._services: defaultdict[_Place, set[Name]] = defaultdict(set)
        self._pods: defaultdict[_Place, set[Name]] = defaultdict(set)

    def put_service(self, name: Name, selector: Mapping[str, str]) -> None:
        """Set a Service's selector; an empty one selects no Pods and removes the Service."""
        if self._selectors.pop(name, None):
            _discard_from_index(self._services, self._found_by.pop(name), name)
        if selector:
            place = min(_list_index_entries(name, selector), key=lambda each: len(self._services.get(each, ())))
            self._selectors[name], self._found_by[name] = dict(selector), place
            self._services[place].add(name)

    def put_pod(self, name: Name, labels: Mapping[str, str]) -> None:
        """Set a Pod's labels; None removes the Pod."""
        for place in _list_index_entries(name, self._labels.pop(name, {})):
            _discard_from_index(self._pods, place, name)
        if labels:
            self._labels[name] = dict(labels)
            for place in _list_index_entries(name, labels):
                self._pods[place].add(name)

    def services_of(self, pod: Name) -> Iterator[Name]:
        labels = self._labels.get(pod, {})
        for place in _list_index_entries(pod, labels):
            for name in self._services.get(place, ()):
                if self._selectors[name].items() <= labels.items():
                    yield name

    def pods_of(self, service: Name) -> list[Name]:
        selector = self._selectors.get(service)
        if not selector:
            return []
        found = min((self._pods.get(place, ()) for place in _list_index_entries(service, selector)), key=len)
        return sorted(name for name in found if selector.items() <= self._labels[name].items())

    def services(self) -> tuple[Name, ...]:
        return tuple(self._selectors)


def _list_index_entries(name: Name, labels: Mapping[str, str]) -> list[_Place]:
    return [(name[0], key, labels[key]) for key in sorted(labels)]


def _discard_from_index(index: defaultdict[_Place, set[Name]], place: _Place, name: Name) -> None:
    index[place].discard(name)
    if not index[place]:
        del index[place]
