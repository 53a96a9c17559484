"""Kinds that are kept for others: ConfigMaps, Secrets, Events and Leases."""

import base64
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.kinds.rules.plain import check_config_map, check_event, check_lease, check_secret
from vipwire_up.api.kinds.service_types import SERVICE_TYPES
from vipwire_up.api.objects import names
from vipwire_up.api.objects.cells import AGE, NAME, age, at, path_cell
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind ConfigMap | Texts for programs to read.
  binaryData {}bytes #3 | Bytes, in base64.
  data {}string #2 | Texts.
  immutable bool #4 | Whether nothing of it can be changed any more.
kind Secret | Bytes that not everybody should read.
  data {}bytes #2 | Bytes, in base64.
  immutable bool #5 | Whether nothing of it can be changed any more.
  stringData {}string #4 | Texts; the server puts them into data.
  type string #3 default=Opaque | What it is for.
kind Event | Something that happened to an object.
  action string #12 | What was done.
  count int32 #8 | How often it happened.
  eventTime microtime #10 | When it was first seen.
  firstTimestamp time #6 | When it first happened.
  involvedObject ObjectReference #2 required | What it happened to.
  lastTimestamp time #7 | When it last happened.
  message string #4 | A sentence about it.
  reason string #3 | A word about it.
  related ObjectReference #13 | Another object that has to do with it.
  reportingComponent string #14 | Who says so.
  reportingInstance string #15 | Which of them.
  series any #11 | How often, for events that go on.
  source EventSource #5 | Who says so, in older events.
  type string #9 | Normal or Warning.
EventSource | Who reports an event.
  component string #1 | The program.
  host string #2 | The node.
"""
_LEASES: Final = """
kind Lease | Who leads, or is alive.
  spec LeaseSpec #2 | Its contents.
LeaseSpec | The contents of a lease.
  acquireTime microtime #3 | When the holder got it.
  holderIdentity string #1 | Who holds it.
  leaseDurationSeconds int32 #2 | Seconds that it lasts.
  leaseTransitions int32 #5 | How often it changed hands.
  preferredHolder string #7 | Who should hold it.
  renewTime microtime #4 | When it was last renewed.
  strategy string #6 | How a holder is chosen.
"""
_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META | SERVICE_TYPES)
_COORDINATION: Final = read_types(_LEASES, "io.k8s.api.coordination.v1", META)


def _default_secret(new: Object) -> None:
    for key, text in (new.pop("stringData", None) or {}).items():
        new.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _last_seen(value: Object, now: datetime) -> str:
    return age(value.get("lastTimestamp") or value.get("firstTimestamp") or value.get("eventTime"), now)


def _object(value: Object, _now: datetime) -> str:
    about = value.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _source(value: Object, _now: datetime) -> str:
    component = at(value, "source", "component") or value.get("reportingComponent") or ""
    host = at(value, "source", "host") or value.get("reportingInstance")
    return f"{component}, {host}" if host else str(component)


def _involved(name: str) -> Any:
    return lambda value: str(at(value, "involvedObject", name) or "")


_INVOLVED: Final = ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid")

CONFIG_MAPS: Final = Resource(
    kind="ConfigMap",
    plural="configmaps",
    type=_TYPES["ConfigMap"],
    short_names=("cm",),
    check=check_config_map,
    columns=(
        NAME,
        Column("Data", lambda v, _: len(v.get("data") or ()) + len(v.get("binaryData") or ()), kind="integer"),
        AGE,
    ),
)
SECRETS: Final = Resource(
    kind="Secret",
    plural="secrets",
    type=_TYPES["Secret"],
    default=_default_secret,
    check=check_secret,
    fields={"type": lambda value: str(value.get("type") or "")},
    columns=(
        NAME,
        Column("Type", path_cell("type", absent="")),
        Column("Data", lambda value, _: len(value.get("data") or ()), kind="integer"),
        AGE,
    ),
)
EVENTS: Final = Resource(
    kind="Event",
    plural="events",
    created_by_put=True,
    type=_TYPES["Event"],
    short_names=("ev",),
    lifetime=3600,  # as with kube-apiserver's --event-ttl
    check=check_event,
    fields={
        **{f"involvedObject.{name}": _involved(name) for name in _INVOLVED},
        "reason": lambda value: str(value.get("reason") or ""),
        "reportingComponent": lambda value: str(value.get("reportingComponent") or ""),
        "source": lambda value: str(at(value, "source", "component") or value.get("reportingComponent") or ""),
        "type": lambda value: str(value.get("type") or ""),
    },
    columns=(
        Column("Last Seen", _last_seen),
        Column("Type", path_cell("type", absent="")),
        Column("Reason", path_cell("reason", absent="")),
        Column("Object", _object),
        Column("Subobject", path_cell("involvedObject", "fieldPath", absent=""), priority=1),
        Column("Source", _source, priority=1),
        Column("Message", lambda value, _: str(value.get("message") or "").strip()),
        Column("First Seen", lambda v, now: age(v.get("firstTimestamp") or v.get("eventTime"), now), priority=1),
        Column("Count", lambda value, _: value.get("count") or 1, kind="integer", priority=1),
        Column("Name", path_cell("metadata", "name"), format="name", priority=1),
    ),
)
LEASES: Final = Resource(
    kind="Lease",
    plural="leases",
    created_by_put=True,
    put_needs_version=True,
    group="coordination.k8s.io",
    type=_COORDINATION["Lease"],
    name_rule=names.subdomain,
    check=check_lease,
    columns=(NAME, Column("Holder", path_cell("spec", "holderIdentity", absent="")), AGE),
)
