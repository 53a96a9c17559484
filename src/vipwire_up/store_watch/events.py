"""Kubernetes Events: reports of controllers about an object, which `kubectl describe` shows."""

import contextlib
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.kube.events import EventType, Subject, build_event_fields, make_note
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.event import EVENTS
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.registry import Registry

_OPTIONS: Final = Options(manager="vipwire-events", validation="Ignore")


async def write_warning_event(
    registry: Registry, resource: Resource, about: Object, reason: str, message: str
) -> None:
    """Report a problem of an object.

    It writes no Event in a namespace that is being deleted, or if the store is full. Events about cluster-scoped
    objects are in `default`, as in Kubernetes.
    """
    event = build_event(resource, about, reason, message, registry.clock(), kind="Warning")
    where = about["metadata"]["namespace"] if resource.namespaced else "default"
    with contextlib.suppress(ApiError):  # the Event only informs
        await registry.create(EVENTS, where, event, _OPTIONS)


def build_event(resource: Resource, about: Object, reason: str, message: str, now: datetime, *, kind: str) -> Object:
    meta = about["metadata"]
    namespace = meta["namespace"] if resource.namespaced else ""
    subject = Subject(resource.kind, meta["name"], namespace, meta["uid"], resource.api_version)
    note = make_note(subject, EventType(kind), reason, message)
    return {"metadata": {"generateName": f"{meta['name']}."}, **build_event_fields(note, 1, now, now)}
