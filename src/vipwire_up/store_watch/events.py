"""Events: what controllers have to tell people about an object, found again by `kubectl describe`."""

import contextlib
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.kube.events import EventType, Subject, event_about, make_note
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import EVENTS
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.registry import Registry

_OPTIONS: Final = Options(manager="vipwire-events", validation="Ignore")


async def warn(
    registry: Registry, resource: Resource, about: Object, reason: str, message: str, *, kind: str = "Warning"
) -> None:
    """Report what is wrong with an object, or, of the kind Normal, what is to be known of it.

    Nothing is said in a namespace that goes, or where the store is full.
    What is in no namespace is reported in `default`, as Kubernetes does.
    """
    event = event_of(resource, about, reason, message, registry.clock(), kind=kind)
    where = about["metadata"]["namespace"] if resource.namespaced else "default"
    with contextlib.suppress(ApiError):  # to have said it is not worth failing for
        await registry.create(EVENTS, where, event, _OPTIONS)


def event_of(  # an Event's parts
    resource: Resource, about: Object, reason: str, message: str, now: datetime, *, kind: str
) -> Object:
    """Write an Event about an object."""
    meta = about["metadata"]
    namespace = meta["namespace"] if resource.namespaced else ""
    subject = Subject(resource.kind, meta["name"], namespace, meta["uid"], resource.api_version)
    note = make_note(subject, EventType(kind), reason, message)
    return {"metadata": {"generateName": f"{meta['name']}."}, **event_about(note, 1, now, now)}
