"""Runs the readiness probes of Pods, and writes their condition Ready.

Each probe of each Pod is a task of its own: initialDelaySeconds, then one try every periodSeconds. After
successThreshold successes in a row a probe is good, after failureThreshold failures bad; before that it keeps its
state, at first bad. A Pod is Ready if all its probes are good. Failures are also reported in Events.

A machine whose Node's annotation says so probes its own Pods (spec.nodeName). The elected API server probes all
others, including those of machines that are not Ready.

Commands run only if the operator allows them, and as the user that the operator names. Only the admin role may write
them (controllers/hooks.py): other writers of Pods could otherwise run any command.
"""

import asyncio
import contextlib
import enum
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.model.times import format_time
from vipwire.watched_objects.event import Deleted, EventOf, Listed, Upserted
from vipwire_up.announcing.kinds import Meta, Plain, name_of
from vipwire_up.api.kinds.event import EVENTS
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.objects.object import key_of, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.endpoints.workloads import merge_conditions, readiness_probes_of
from vipwire_up.nodes.node import OWN, PROBES, is_ready
from vipwire_up.nodes.objects import LocalObjects, Objects
from vipwire_up.readiness_probes.commands import RunAs
from vipwire_up.readiness_probes.probe import probe_number, run_probe
from vipwire_up.store.record import Key
from vipwire_up.store_watch.events import build_event
from vipwire_up.store_watch.source import StoreSource
from vipwire_up.watchdog.guard import Guard


class ProbedKind(enum.Enum):
    """The kinds that are read; the value is the kind in a manifest."""

    POD = "Pod"
    NODE = "Node"


@dataclass(frozen=True, slots=True)
class Workload:
    """A Pod as in the API, as far as probes need it; the name of its Node, "" for none."""

    name: ObjectName
    pod: Object
    node: str


@dataclass(frozen=True, slots=True)
class Machine:
    """A Node; `probes` if it is Ready and probes its own Pods."""

    name: str
    probes: bool


ProbedObject: TypeAlias = Workload | Machine


def read_workload(value: Plain) -> tuple[Workload | None, tuple[Problem, ...]]:
    meta, spec = value.metadata or Meta(), value.spec or {}
    name = name_of(meta)
    about = {"name": name.name, "namespace": name.namespace, "uid": meta.uid}
    return Workload(
        name, {"metadata": about, "spec": spec, "status": value.status or {}}, str(spec.get("nodeName") or "")
    ), ()


def read_machine(value: Plain) -> tuple[Machine | None, tuple[Problem, ...]]:
    meta = value.metadata or Meta()
    probes = (meta.annotations or {}).get(PROBES) == OWN and is_ready({"status": value.status or {}})
    return Machine(meta.name or "", probes), ()


PODS_READ: Final[Resource[ProbedKind, ProbedObject]] = Resource(
    ProbedKind.POD, "/api/v1", "pods", Plain, read_workload
)
NODES_READ: Final[Resource[ProbedKind, ProbedObject]] = Resource(
    ProbedKind.NODE, "/api/v1", "nodes", Plain, read_machine
)
RESOURCES: Final = (PODS_READ, NODES_READ)


MANAGER: Final = "vipwire-probes"
NO_COMMANDS: Final = "vipwire runs no commands (--exec-probes of vipwire up or join allows them)"

Event: TypeAlias = EventOf[ProbedKind, ProbedObject]
Follow: TypeAlias = Callable[[Callable[[Event], None]], Awaitable[None]]


class Verdict:
    """The state of a probe after its results so far."""

    def __init__(self, probe: Object) -> None:
        self._needed = {
            True: probe_number(probe, "successThreshold", 1),
            False: probe_number(probe, "failureThreshold", 3),
        }
        self._row = 0
        self._last: bool | None = None
        self.good: bool | None = None
        """None before the first threshold is reached."""

    def record_result(self, *, good: bool) -> None:
        self._row = self._row + 1 if good is self._last else 1
        self._last = good
        if self._row >= self._needed[good]:
            self.good = good


class _Watched:
    """A Pod whose probes run. `told` is the written state of each container, `said` the last Event's problem."""

    def __init__(self, pod: Object) -> None:
        self.pod = pod
        self.what = probed_fields(pod)
        self.probes = readiness_probes_of(pod)
        self.verdicts = {container: Verdict(probe) for container, probe in self.probes}
        self.problems: dict[str, str] = {}
        self.told: dict[str, bool | None] = {}
        self.said = ""
        self.tasks: list[asyncio.Task[None]] = []


@dataclass(frozen=True, slots=True)
class Prober:
    """The prober: machine `node`, or "" for the elected one. It runs commands if `commands`, as `run_as`."""

    node: str = ""
    commands: bool = False
    run_as: RunAs | None = None


class Probes:
    """Probes a prober's Pods, which `follow` reports with the Nodes, while `run` runs."""

    def __init__(
        self,
        objects: Objects,
        follow: Follow,
        clock: Callable[[], datetime],
        prober: Prober,
        guard: Guard[Key] | None = None,
    ) -> None:
        self._objects, self._follow, self._clock, self._prober = objects, follow, clock, prober
        self._guard = guard or Guard("probes")
        self._found: dict[ObjectName, Workload] = {}
        self._probing: dict[str, bool] = {}
        self._watched: dict[ObjectName, _Watched] = {}

    async def run(self) -> None:
        self._found.clear()
        self._probing.clear()
        self._watched.clear()
        async with asyncio.TaskGroup() as tasks:
            await self._follow(lambda event: self._apply_event(event, tasks))

    def _apply_event(self, event: Event, tasks: asyncio.TaskGroup) -> None:
        match event:
            case Listed(kind=ProbedKind.NODE, objects=machines):
                self._probing = {each.name: each.probes for each in machines if isinstance(each, Machine)}
                self._start_and_stop(self._found, tasks)
            case Listed(objects=pods):
                before = set(self._found)
                self._found = {each.name: each for each in pods if isinstance(each, Workload)}
                self._start_and_stop(before | self._found.keys(), tasks)
            case Upserted(object=Machine(name=name, probes=own)):
                if self._probing.get(name, False) != own:
                    self._probing[name] = own
                    self._start_and_stop(self._found, tasks)
            case Upserted(object=Workload(name=place) as pod):
                self._found[place] = pod
                self._start_and_stop((place,), tasks)
            case Deleted(kind=ProbedKind.NODE, name=gone):
                self._probing.pop(gone.name, None)
                self._start_and_stop(self._found, tasks)
            case Deleted(name=gone):
                self._found.pop(gone, None)
                self._start_and_stop((gone,), tasks)

    def _is_probed_here(self, pod: Workload) -> bool:
        if self._prober.node:
            return pod.node == self._prober.node
        return not self._probing.get(pod.node, False)

    def _start_and_stop(self, names: Iterable[ObjectName], tasks: asyncio.TaskGroup) -> None:
        for name in tuple(names):
            fresh = None
            with self._guard.of(_pod_key(name)):
                found = self._found.get(name)
                if found is not None and self._is_probed_here(found) and _is_probed(found.pod):
                    fresh = _Watched(found.pod)
            watched = self._watched.get(name)
            if watched is not None and (fresh is None or watched.what != fresh.what):
                for task in self._watched.pop(name).tasks:
                    task.cancel()
                watched = None
            if watched is None and fresh is not None:
                self._watched[name] = fresh
                for container, probe in fresh.probes:
                    fresh.tasks.append(tasks.create_task(self._probe_repeatedly(name, container, probe, fresh)))

    async def _probe_repeatedly(self, name: ObjectName, container: str, probe: Object, watched: _Watched) -> None:
        verdict, period = watched.verdicts[container], probe_number(probe, "periodSeconds", 10)
        # So that after a start not all probes run at once: each waits for a part of its period.
        first = random.uniform(0, 1)  # noqa: S311  # an attacker gains nothing by guessing
        await asyncio.sleep(probe_number(probe, "initialDelaySeconds", 0) + first)
        while True:
            refused = probe.get("exec") and not self._prober.commands
            problem = NO_COMMANDS if refused else await run_probe(probe, watched.pod, container, self._prober.run_as)
            verdict.record_result(good=not problem)
            watched.problems[container] = problem
            if verdict.good is not watched.told.get(container):
                with (
                    self._guard.of(_pod_key(name)),
                    contextlib.suppress(UnreachableError),
                ):  # tried again after a period
                    await self._report_readiness(name, watched)
            await asyncio.sleep(period)

    async def _report_readiness(self, name: ObjectName, watched: _Watched) -> None:
        bad = [container for container, verdict in watched.verdicts.items() if not verdict.good]
        problem = "; ".join(f"{each}: {watched.problems.get(each) or 'not asked yet'}" for each in bad)
        now = self._clock()
        verdicts = {container: verdict.good for container, verdict in watched.verdicts.items()}
        if problem and problem != watched.said:
            message = f"Readiness probe failed: {problem}"
            event = build_event(PODS, watched.pod, "Unhealthy", message, now, kind="Warning")
            with contextlib.suppress(ApiError):  # the Event only informs
                await self._objects.create(EVENTS, name.namespace, event)
        watched.said = problem
        try:
            await self._objects.edit(
                PODS,
                name.namespace,
                name.name,
                lambda value: set_ready_condition(value, problem, format_time(now)),
                subresource="status",
            )
        except ApiError as error:  # the write failed: tried again after a period
            if error.code != 404:
                raise
        watched.told = verdicts


def build_local_probes(registry: Registry, prober: Prober | None = None, guard: Guard[Key] | None = None) -> Probes:
    objects, source = LocalObjects(registry, MANAGER), StoreSource(registry.store, RESOURCES)
    return Probes(objects, source.run, registry.clock, prober or Prober(), guard)


def _pod_key(name: ObjectName) -> Key:
    return key_of(PODS, name.namespace, name.name)


def set_ready_condition(pod: Object, problem: str, now: str) -> Object:
    status = pod.get("status") or {}
    return pod | {
        "status": status | {"conditions": merge_conditions(status.get("conditions") or [], pod, problem, now)}
    }


def probed_fields(pod: Object) -> tuple[object, ...]:
    """Return all that a Pod's probes depend on: if it changes, the probes start again."""
    ports = [each.get("ports") for each in value_at(pod, "spec", "containers") or ()]
    return pod["metadata"]["uid"], value_at(pod, "status", "podIP"), readiness_probes_of(pod), ports


def _is_probed(pod: Object) -> bool:
    ended = value_at(pod, "status", "phase") in ("Succeeded", "Failed")
    return bool(readiness_probes_of(pod)) and bool(value_at(pod, "status", "podIP")) and not ended
