"""Writes the EndpointSlices and Endpoints that follow from Services and Pods.

    Service with a selector      slices and an Endpoints object of its Pods
    Service without              slices that mirror an Endpoints object made by hand
    no Service, ExternalName     none of vipwire's

Changes mark Services to check. All differences of one round are written together and share a commit. Events of the
controller's own writes mark nothing.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Iterator
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES, ENDPOINTS
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.objects.object import decode_record, key_of, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry, Result
from vipwire_up.controllers.endpoints import legacy, slices
from vipwire_up.controllers.endpoints.arrange import check_slice
from vipwire_up.controllers.endpoints.endpoints import Grouped, group_mirrored_endpoints, group_pod_endpoints
from vipwire_up.controllers.endpoints.selection import Name, Selection
from vipwire_up.controllers.endpoints.topology import (
    NodeFacts,
    Shares,
    assign_zone_hints,
    compute_zone_shares,
    read_node_facts,
    wants_topology_hints,
)
from vipwire_up.nodes.node import is_lost
from vipwire_up.store.record import Key, RecordChange
from vipwire_up.store_watch.events import write_warning_event
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard

_OPTIONS: Final = Options(manager="vipwire-endpoints", validation="Ignore")
_NOT_MIRRORED: Final = "endpointslice.kubernetes.io/skip-mirror"
_MANAGERS: Final = (slices.CONTROLLER, slices.MIRRORING)
_RESOURCES: Final = (NODES, SERVICES, PODS, ENDPOINTS, ENDPOINT_SLICES)


class EndpointController:
    """Follows a registry's store."""

    def __init__(self, registry: Registry, guard: Guard[Key] | None = None) -> None:
        self._registry, self._guard = registry, guard or Guard("endpoints")
        self._feed = Feed(registry.store, _RESOURCES)
        self._dirty: dict[Name, None] = {}
        self._own: set[int] = set()
        self._undivided: dict[Name, str] = {}
        self._told: dict[Name, str] = {}
        self._clear_state()

    def _clear_state(self) -> None:
        self._selection = Selection()
        self._nodes: dict[str, NodeFacts] = {}
        self._lost: set[str] = set()
        self._zones: dict[str, str] = {}
        self._shares = Shares({})
        self._slices: defaultdict[Name, set[Name]] = defaultdict(set)
        self._service_of: dict[Name, Name] = {}

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        self._feed.pass_changes(self._clear_state, self._apply_change, self._guard)
        again = ((key.namespace, key.name) for key in self._guard.due() if key.resource == SERVICES.id)
        dirty, self._dirty = self._dirty | dict.fromkeys(again), {}
        writes: list[tuple[Name, Awaitable[Result]]] = []
        for name in dirty:
            with self._guard.of(key_of(SERVICES, *name)):
                writes.extend((name, write) for write in self._reconcile_service(name))
        results = await asyncio.gather(*(write for _, write in writes), return_exceptions=True)
        for (name, _), result in zip(writes, results, strict=True):
            self._record_result(name, result)
        for name in dirty:
            with self._guard.of(key_of(SERVICES, *name)):
                await self._report_undivided(name)
        return RETRY_SECONDS if self._dirty else self._guard.seconds_left()

    def _record_result(self, name: Name, result: Result | BaseException) -> None:
        if isinstance(result, Result):
            self._own.add(result.record.revision)
        elif not isinstance(result, ApiError):
            if not isinstance(result, Exception):
                raise result
            self._guard.record_failure(key_of(SERVICES, *name), result)
        elif result.code not in (403, 404):  # 403: its namespace is being deleted; 404: gone already
            self._dirty[name] = None

    async def _report_undivided(self, name: Name) -> None:
        problem, before = self._undivided.pop(name, ""), self._told.pop(name, "")
        if problem:
            self._told[name] = problem
        if problem and problem != before and (service := self._registry.find(SERVICES, *name)) is not None:
            await write_warning_event(
                self._registry, SERVICES, service, "TopologyAwareHintsDisabled", f"no zone hints: {problem}"
            )

    def _apply_change(self, change: RecordChange) -> None:
        name = change.record.key.namespace, change.record.key.name
        resource, value = change.record.key.resource, decode_record(change.record)
        if resource == PODS.id:
            self._record_pod(name, value, gone=change.deleted)
        elif resource == SERVICES.id:
            selector = _string_map(value_at(value, "spec", "selector"))
            external = value_at(value, "spec", "type") == "ExternalName"
            self._selection.put_service(name, {} if change.deleted or external else selector)
            self._dirty[name] = None
        elif resource == NODES.id:
            self._record_node(name[1], value, gone=change.deleted)
        elif resource == ENDPOINT_SLICES.id:
            self._record_slice(name, value, change)
        elif change.revision not in self._own:
            self._dirty[name] = None
        self._own.discard(change.revision)

    def _record_pod(self, name: Name, value: Object, *, gone: bool) -> None:
        self._dirty.update(dict.fromkeys(self._selection.services_of(name)))
        self._selection.put_pod(name, {} if gone else _string_map(value_at(value, "metadata", "labels")))
        self._dirty.update(dict.fromkeys(self._selection.services_of(name)))

    def _record_node(self, name: str, value: Object, *, gone: bool) -> None:
        before, now = self._nodes.get(name), None if gone else read_node_facts(value)
        lost = not gone and is_lost(value)
        if now == before and lost is (name in self._lost):
            return
        (self._lost.add if lost else self._lost.discard)(name)
        self._nodes.pop(name, None)
        if now is not None:
            self._nodes[name] = now
        self._zones = {each: facts.zone for each, facts in self._nodes.items()}
        self._shares = compute_zone_shares(self._nodes.values())
        self._dirty.update(dict.fromkeys(self._selection.services()))

    def _record_slice(self, name: Name, value: Object, change: RecordChange) -> None:
        labels = _string_map(value_at(value, "metadata", "labels"))
        before = self._service_of.pop(name, None)
        if before:
            self._slices[before].discard(name)
        service = (name[0], labels.get(slices.SERVICE, ""))
        if labels.get(slices.MANAGED_BY) in _MANAGERS and not change.deleted:
            self._service_of[name] = service
            self._slices[service].add(name)
        if change.revision not in self._own:
            self._dirty.update({found: None for found in (before, self._service_of.get(name)) if found})

    def _reconcile_service(self, name: Name) -> Iterator[Awaitable[Result]]:
        service = self._registry.find(SERVICES, *name)
        endpoints = self._registry.find(ENDPOINTS, *name)
        existing = list(self._slices_of(name))
        owner, grouped = None, Grouped()
        if service is not None and value_at(service, "spec", "type") != "ExternalName":
            if value_at(service, "spec", "selector"):
                grouped = self._group_pods(name, service)
                if wants_topology_hints(service):
                    self._undivided[name] = self._divide_by_zone(grouped)
                owner = slices.Owner(service, service, slices.CONTROLLER)
                yield from self._reconcile_legacy(name, endpoints, legacy.build_endpoints_object(service, grouped))
            elif endpoints is not None and _wants_mirroring(endpoints):
                owner, grouped = (
                    slices.Owner(service, endpoints, slices.MIRRORING),
                    group_mirrored_endpoints(endpoints, self._zones),
                )
        elif endpoints is not None and _is_ours(endpoints):
            yield self._registry.delete(ENDPOINTS, *name, options=_OPTIONS)
        yield from self._reconcile_slices(name[0], owner, existing, grouped)

    def _slices_of(self, name: Name) -> Iterator[Object]:
        for each in sorted(self._slices.get(name, ())):
            with self._guard.of(key_of(ENDPOINT_SLICES, *each)):
                if (value := self._registry.find(ENDPOINT_SLICES, *each)) is not None:
                    check_slice(value)
                    yield value

    def _group_pods(self, name: Name, service: Object) -> Grouped:
        selected = {pod: self._registry.find(PODS, *pod) for pod in self._selection.pods_of(name)}
        pods = {pod: value for pod, value in selected.items() if value is not None}
        with contextlib.suppress(Exception):  # the lookup below finds it
            return group_pod_endpoints(service, pods.values(), self._zones, self._lost)
        sound = []
        for pod, value in pods.items():
            with self._guard.of(key_of(PODS, *pod)):
                group_pod_endpoints(service, (value,), self._zones, self._lost)
                sound.append(value)
        return group_pod_endpoints(service, sound, self._zones, self._lost)

    def _divide_by_zone(self, grouped: Grouped) -> str:
        """Set zone hints, for each family by itself; return the reason of the first family without hints."""
        families: dict[str, list[Object]] = {}
        for group, endpoints in grouped.items():
            families.setdefault(group.family, []).extend(endpoints)
        problems = [assign_zone_hints(endpoints, self._shares) for endpoints in families.values()]
        return next(filter(None, problems), "")

    def _reconcile_slices(
        self, namespace: str, owner: slices.Owner | None, existing: list[Object], grouped: Grouped
    ) -> Iterator[Awaitable[Result]]:
        if owner is None:
            steps = slices.Steps(delete=tuple(value["metadata"]["name"] for value in existing))
        else:
            others = [value for value in existing if value["metadata"]["labels"][slices.MANAGED_BY] != owner.manager]
            ours = [value for value in existing if value not in others]
            steps = slices.plan_slice_changes(owner, ours, grouped, self._registry.clock())
            yield from self._delete_slices(namespace, tuple(value["metadata"]["name"] for value in others))
        for value in steps.create:
            yield self._registry.create(ENDPOINT_SLICES, namespace, value, _OPTIONS)
        for value in steps.replace:
            yield self._registry.replace(ENDPOINT_SLICES, namespace, value["metadata"]["name"], value, _OPTIONS)
        yield from self._delete_slices(namespace, steps.delete)

    def _reconcile_legacy(self, name: Name, found: Object | None, wanted: Object) -> Iterator[Awaitable[Result]]:
        if found is None:
            yield self._registry.create(ENDPOINTS, name[0], wanted, _OPTIONS)
            return
        meta = found["metadata"]
        same = (found.get("subsets") or []) == wanted["subsets"] and (meta.get("labels") or {}) == wanted["metadata"][
            "labels"
        ]
        if not same:
            value = found | {"metadata": meta | wanted["metadata"], "subsets": wanted["subsets"]}
            yield self._registry.replace(ENDPOINTS, *name, value, _OPTIONS)

    def _delete_slices(self, namespace: str, names: tuple[str, ...]) -> Iterator[Awaitable[Result]]:
        for name in names:
            yield self._registry.delete(ENDPOINT_SLICES, namespace, name, options=_OPTIONS)


def _string_map(value: object) -> dict[str, str]:
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}


def _is_ours(endpoints: Object) -> bool:
    return (endpoints["metadata"].get("labels") or {}).get(legacy.MANAGED_BY) == legacy.CONTROLLER


def _wants_mirroring(endpoints: Object) -> bool:
    labels = endpoints["metadata"].get("labels") or {}
    return not _is_ours(endpoints) and labels.get(_NOT_MIRRORED) != "true"
