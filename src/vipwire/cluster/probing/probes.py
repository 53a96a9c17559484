"""Runs the readiness probes of Pods, and writes their condition Ready: the health check of what is balanced.

Each probe of each Pod is a task of its own: initialDelaySeconds, then every periodSeconds a question.
successThreshold good answers in a row make it good, failureThreshold bad ones bad; until then it is what it was, at
first bad. A Pod is ready if all its probes are good. What is bad is also told in an Event.

Commands run only where the operator allows it, and as the user that the operator names. Only the admin role may say
them (controllers/exec_probes.py): whoever else may write Pods could otherwise run anything.
"""

import asyncio
import random
from typing import Final

from vipwire.cluster.api.answers.cells import at, format_time
from vipwire.cluster.api.bodies.sent import Options
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.pod import PODS
from vipwire.cluster.api.object import decoded, key_of
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.api.resource import Object
from vipwire.cluster.controllers.endpoints.selection import Name
from vipwire.cluster.controllers.endpoints.workloads import probes, ready_condition
from vipwire.cluster.controllers.events import warn
from vipwire.cluster.controllers.feed import Feed
from vipwire.cluster.probing.commands import RunAs
from vipwire.cluster.probing.probe import ask, number
from vipwire.cluster.store.record import Key
from vipwire.process.supervision import Guard

_OPTIONS: Final = Options(manager="vipwire-probes", validation="Ignore")

NO_COMMANDS: Final = "commands are not run (vipwire up --exec-probes allows them)"


class Verdict:
    """The state that a probe's answers add up to."""

    def __init__(self, probe: Object) -> None:
        self._needed = {True: number(probe, "successThreshold", 1), False: number(probe, "failureThreshold", 3)}
        self._row = 0
        self._last: bool | None = None
        self.good: bool | None = None
        """None until enough answers are there."""

    def hear(self, *, good: bool) -> None:
        """Count an answer."""
        self._row = self._row + 1 if good is self._last else 1
        self._last = good
        if self._row >= self._needed[good]:
            self.good = good


class _Watched:
    """A Pod whose probes run. `told` is what has been written of each container, `said` the last Event's problem."""

    def __init__(self, pod: Object) -> None:
        self.pod = pod
        self.what = what_is_probed(pod)
        self.probes = probes(pod)
        self.verdicts = {container: Verdict(probe) for container, probe in self.probes}
        self.problems: dict[str, str] = {}
        self.told: dict[str, bool | None] = {}
        self.said = ""
        self.tasks: list[asyncio.Task[None]] = []


class Probes:
    """Follows the Pods of a registry. `run` must run."""

    def __init__(
        self,
        registry: Registry,
        guard: Guard[Key] | None = None,
        *,
        commands: bool = False,
        run_as: RunAs | None = None,
    ) -> None:
        self._registry, self._commands, self._run_as = registry, commands, run_as
        self._guard = guard or Guard("probes")
        self._feed = Feed(registry.store, (PODS,))
        self._watched: dict[Name, _Watched] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        self._watched.clear()
        self._feed.again()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._look(tasks)
                await self._feed.wait()

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        changes, anew = self._feed.look()
        seen = set[Name]()
        for change in changes:
            name = change.record.key.namespace, change.record.key.name
            seen.add(name)
            fresh = None
            with self._guard.of(change.record.key):
                pod = decoded(change.record)
                fresh = None if change.deleted or not _is_probed(pod) else _Watched(pod)
            self._settle(name, fresh, tasks)
        for name in set(self._watched) - seen if anew else ():
            self._settle(name, None, tasks)

    def _settle(self, name: Name, fresh: _Watched | None, tasks: asyncio.TaskGroup) -> None:
        watched = self._watched.get(name)
        if watched is not None and (fresh is None or watched.what != fresh.what):
            for task in self._watched.pop(name).tasks:
                task.cancel()
            watched = None
        if watched is None and fresh is not None:
            self._watched[name] = fresh
            for container, probe in fresh.probes:
                fresh.tasks.append(tasks.create_task(self._probe(name, container, probe, fresh)))

    async def _probe(self, name: Name, container: str, probe: Object, watched: _Watched) -> None:
        verdict, period = watched.verdicts[container], number(probe, "periodSeconds", 10)
        # After a start all would ask at once: each waits for a part of its period.
        first = random.uniform(0, 1)  # noqa: S311  # nobody gains by guessing it
        await asyncio.sleep(number(probe, "initialDelaySeconds", 0) + first)
        while True:
            refused = probe.get("exec") and not self._commands
            problem = NO_COMMANDS if refused else await ask(probe, watched.pod, container, self._run_as)
            verdict.hear(good=not problem)
            watched.problems[container] = problem
            if verdict.good is not watched.told.get(container):
                with self._guard.of(key_of(PODS, *name)):
                    await self._report(name, watched)
            await asyncio.sleep(period)

    async def _report(self, name: Name, watched: _Watched) -> None:
        bad = [container for container, verdict in watched.verdicts.items() if not verdict.good]
        problem = "; ".join(f"{each}: {watched.problems.get(each) or 'not asked yet'}" for each in bad)
        now = format_time(self._registry.clock())
        verdicts = {container: verdict.good for container, verdict in watched.verdicts.items()}
        record = self._registry.store.read(key_of(PODS, *name))
        if record is None:
            return
        if problem and problem != watched.said:
            await warn(self._registry, PODS, decoded(record), "Unhealthy", f"Readiness probe failed: {problem}")
        watched.said = problem
        try:
            await self._registry.change(
                PODS, *name, lambda value: with_ready(value, problem, now), _OPTIONS, subresource="status"
            )
        except ApiError as error:  # it cannot be written: it is tried again after a period
            if error.code != 404:
                raise
        watched.told = verdicts


def with_ready(pod: Object, problem: str, now: str) -> Object:
    """Set a Pod's condition Ready; its time changes only with the state."""
    status = pod.get("status") or {}
    old: Object = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), {})
    new = ready_condition(problem, now)
    if old.get("status") == new["status"] and old.get("lastTransitionTime"):
        new["lastTransitionTime"] = old["lastTransitionTime"]
    others = [each for each in status.get("conditions") or () if each.get("type") != "Ready"]
    return pod | {"status": status | {"conditions": [*others, new]}}


def what_is_probed(pod: Object) -> tuple[object, ...]:
    """Name what a Pod's probes depend on: if it changes, they begin anew."""
    ports = [each.get("ports") for each in at(pod, "spec", "containers") or ()]
    return pod["metadata"]["uid"], at(pod, "status", "podIP"), probes(pod), ports


def _is_probed(pod: Object) -> bool:
    ended = at(pod, "status", "phase") in ("Succeeded", "Failed")
    return bool(probes(pod)) and bool(at(pod, "status", "podIP")) and not ended
