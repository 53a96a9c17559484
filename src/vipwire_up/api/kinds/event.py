"""Events, stored as core/v1. Served as events.k8s.io/v1, too, which has other names of fields and stricter rules.

Validation follows kube-apiserver's pkg/apis/core/validation/events.go.
"""

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.kinds.service import SERVICE_TYPES
from vipwire_up.api.objects.columns import column_of_path, field_readers, format_age
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.names import check_qualified_name
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind Event | A report of an event about an object.
  action string #12 | Action that the reporter took.
  count int32 #8 | Number of occurrences.
  eventTime microtime #10 | Time of the first observation.
  firstTimestamp time #6 | Time of the first occurrence.
  involvedObject ObjectReference #2 required | Object of the event.
  lastTimestamp time #7 | Time of the last occurrence.
  message string #4 | Description for people.
  reason string #3 | Reason of the event, in one word.
  related ObjectReference #13 | Second object of the event.
  reportingComponent string #14 | Name of the controller that reports the event.
  reportingInstance string #15 | Instance of the controller, such as a Pod's name.
  series EventSeries #11 | Number and time of repetitions.
  source EventSource #5 | Reporter of the event, in older Events.
  type string #9 | Type of the event: Normal or Warning.
EventSource | Reporter of an event.
  component string #1 | Name of the program.
  host string #2 | Name of the Node.
EventSeries | Repetitions of an event.
  count int32 #1 | Number of occurrences.
  lastObservedTime microtime #2 | Time of the last occurrence.
"""
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META | SERVICE_TYPES)
_NEW_TABLE: Final = """
kind Event | A report of an event about an object.
  action string #6 | Action that the reporter took.
  deprecatedCount int32 #15 | Number of occurrences, in core/v1.
  deprecatedFirstTimestamp time #13 | Time of the first occurrence, in core/v1.
  deprecatedLastTimestamp time #14 | Time of the last occurrence, in core/v1.
  deprecatedSource EventSource #12 | Reporter of the event, in core/v1.
  eventTime microtime #2 required | Time of the first observation.
  note string #10 | Description for people.
  reason string #7 | Reason of the event, in one word.
  regarding ObjectReference #8 | Object of the event.
  related ObjectReference #9 | Second object of the event.
  reportingController string #4 | Name of the controller that reports the event.
  reportingInstance string #5 | Instance of the controller, such as a Pod's name.
  series EventSeries #3 | Number and time of repetitions.
  type string #11 | Type of the event: Normal or Warning.
"""
_RENAMED: Final = {
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
}
_INVOLVED: Final = ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid")
_LONGEST_WORD, _LONGEST_MESSAGE = 128, 1024
_FIXED: Final = (
    "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type", "eventTime",
    "action", "related", "reportingComponent", "reportingInstance",
)  # fmt: skip
"""Fields that an update by events.k8s.io/v1 cannot change: all but the series."""


def _show_age(value: Object, now: datetime) -> str:
    return format_age(value.get("firstTimestamp") or value.get("eventTime"), now)


def read_last_timestamp(value: Object) -> str | None:
    """Return the timestamp at which an Event last happened; None if it has none."""
    found: str | None = value_at(value, "series", "lastObservedTime") or value.get("lastTimestamp")
    return found or value.get("firstTimestamp") or value.get("eventTime")


def _format_involved_object(value: Object, _now: datetime) -> str:
    about = value.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _format_source(value: Object, _now: datetime) -> str:
    component = value_at(value, "source", "component") or value.get("reportingComponent") or ""
    host = value_at(value, "source", "host") or value.get("reportingInstance")
    return f"{component}, {host}" if host else str(component)


def _check_event(new: Object, _old: Object | None) -> Iterator[Cause]:
    """Check an Event. One with an eventTime comes from a new recorder, and has more rules."""
    about = value_at(new, "involvedObject", "namespace") or ""
    namespace = new["metadata"].get("namespace", "")
    if new.get("eventTime"):
        fits = bool(about) or namespace in ("default", "kube-system")
        yield from _check_text_fields(new)
    else:
        fits = about == namespace or (about == "" and namespace == "default")
    if not fits:
        yield invalid("involvedObject.namespace", about, "does not match event.namespace")


def _check_text_fields(new: Object) -> Iterator[Cause]:
    component = new.get("reportingComponent") or ""
    if not component:
        yield required("reportingComponent")
    if problem := check_qualified_name(component):
        yield invalid("reportingComponent", component, problem)
    for name in ("reportingInstance", "action", "reason"):
        if not new.get(name):
            yield required(name)
        elif len(new[name].encode()) > _LONGEST_WORD:
            yield invalid(name, "", f"can have at most {_LONGEST_WORD} characters")
    if len((new.get("message") or "").encode()) > _LONGEST_MESSAGE:
        yield invalid("message", "", f"can have at most {_LONGEST_MESSAGE} characters")


def _check_new_event(new: Object, old: Object | None) -> Iterator[Cause]:
    """Check an Event that is written by events.k8s.io/v1."""
    yield from _check_event(new, old)
    if new.get("series") is not None and (old is None or new["series"] != old.get("series")):
        yield from _check_series(new["series"])
    if old is not None:
        changed = (name for name in _FIXED if new.get(name) != old.get(name))
        yield from (invalid(name, new.get(name), "field is immutable") for name in changed)
        return
    if not new.get("eventTime"):
        yield required("eventTime")
    if new.get("type") not in ("Normal", "Warning"):
        yield invalid("type", "", f"has invalid value: {new.get('type') or ''}")
    for name in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if new.get(name):
            yield invalid(name, "", "needs to be unset")


def _check_series(series: Object) -> Iterator[Cause]:
    if series.get("count", 0) < 2:
        yield invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield required("series.lastObservedTime")


EVENTS: Final = Resource(
    kind="Event",
    plural="events",
    created_by_put=True,
    type=_TYPES["Event"],
    short_names=("ev",),
    lifetime=3600,  # seconds: kube-apiserver's default of --event-ttl
    check=_check_event,
    fields={
        **field_readers("reason", "reportingComponent", "type", *(f"involvedObject.{name}" for name in _INVOLVED)),
        "source": lambda value: str(value_at(value, "source", "component") or value.get("reportingComponent") or ""),
    },
    columns=(
        Column("Last Seen", lambda value, now: format_age(read_last_timestamp(value), now)),
        Column("Type", column_of_path("type", absent="")),
        Column("Reason", column_of_path("reason", absent="")),
        Column("Object", _format_involved_object),
        Column("Subobject", column_of_path("involvedObject", "fieldPath", absent=""), priority=1),
        Column("Source", _format_source, priority=1),
        Column("Message", lambda value, _: str(value.get("message") or "").strip()),
        Column("First Seen", _show_age, priority=1),
        Column(
            "Count",
            lambda value, _: value_at(value, "series", "count") or value.get("count") or 1,
            kind="integer",
            priority=1,
        ),
        Column("Name", column_of_path("metadata", "name"), format="name", priority=1),
    ),
)

NEW_EVENTS: Final = dataclasses.replace(
    EVENTS,
    group="events.k8s.io",
    type=read_types(_NEW_TABLE, "io.k8s.api.events.v1", META | SERVICE_TYPES | _TYPES)["Event"],
    fields={
        name: EVENTS.fields[stored]
        for name, stored in (
            *((name, name) for name in ("reason", "type")),
            ("reportingController", "reportingComponent"),
            *((f"regarding.{name}", f"involvedObject.{name}") for name in _INVOLVED),
        )
    },
    stored_as=dataclasses.replace(EVENTS, check=_check_new_event),
    renamed=_RENAMED,
)
"""The same Events as events.k8s.io/v1."""
