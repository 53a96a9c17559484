"""EndpointSlices as objects: their form, and the writes that make an arrangement. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES
from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.endpoints.arrange import arrange_slices, read_slice
from vipwire_up.controllers.endpoints.endpoints import Group, Grouped
from vipwire_up.controllers.endpoints.legacy import HEADLESS

SERVICE: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
CONTROLLER: Final = "endpointslice-controller.k8s.io"
MIRRORING: Final = "endpointslicemirroring-controller.k8s.io"
TRIGGERED: Final = "endpoints.kubernetes.io/last-change-trigger-time"
_NOT_COPIED: Final = (SERVICE, MANAGED_BY, HEADLESS)


@dataclass(frozen=True, slots=True)
class Steps:
    """The writes: slices to create, new states of existing ones, names of those to delete."""

    create: tuple[Object, ...] = ()
    replace: tuple[Object, ...] = ()
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of slices: the Service, the object that they follow, and the value of the managed-by label."""

    service: Object
    object: Object
    manager: str

    @property
    def families(self) -> tuple[str, ...]:
        """The families that keep an empty slice."""
        return tuple(self.service["spec"].get("ipFamilies") or ("IPv4",)) if self.manager == CONTROLLER else ()


def plan_slice_changes(owner: Owner, existing: Sequence[Object], wanted: Grouped, now: datetime) -> Steps:
    """Return the writes after which an owner's slices hold the wanted endpoints."""
    plan = arrange_slices([read_slice(value) for value in existing], wanted, owner.families)
    labels, update = build_slice_labels(owner), dict(plan.update)
    replace = []
    for value in existing:
        name = value["metadata"]["name"]
        if name in plan.delete:
            continue
        if name in update:
            replace.append(_change_slice(value, labels, update[name], now))
        elif (value["metadata"].get("labels") or {}) != labels:
            replace.append(value | {"metadata": value["metadata"] | {"labels": labels}})
    create = tuple(_build_slice(owner, labels, group, listed, now) for group, listed in plan.create)
    return Steps(create, tuple(replace), plan.delete)


def build_slice_labels(owner: Owner) -> dict[str, str]:
    """Return the labels of an owner's slices: the owner's own, the service-name and the managed-by label."""
    copied = {key: value for key, value in _labels_of(owner.object).items() if key not in _NOT_COPIED}
    ours = {SERVICE: owner.service["metadata"]["name"], MANAGED_BY: owner.manager}
    return copied | ours | ({HEADLESS: ""} if owner.service["spec"].get("clusterIP") == "None" else {})


def _labels_of(value: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = value["metadata"].get("labels") or {}
    return labels


def _build_slice(
    owner: Owner, labels: dict[str, str], group: Group, endpoints: list[Object], now: datetime
) -> Object:
    meta = owner.object["metadata"]
    reference = {
        "apiVersion": "v1",
        "kind": "Service" if owner.object is owner.service else "Endpoints",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {
            "generateName": f"{owner.service['metadata']['name']}-",
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [reference],
            **({"annotations": {TRIGGERED: _format_microseconds(now)}} if endpoints else {}),
        },
        "addressType": group.family,
        "endpoints": endpoints,
        "ports": group.port_list,
    }


def _change_slice(value: Object, labels: dict[str, str], endpoints: list[Object], now: datetime) -> Object:
    annotations = (value["metadata"].get("annotations") or {}) | {TRIGGERED: _format_microseconds(now)}
    meta = value["metadata"] | {"labels": labels, "annotations": annotations}
    return value | {"metadata": meta, "endpoints": endpoints}


def _format_microseconds(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
