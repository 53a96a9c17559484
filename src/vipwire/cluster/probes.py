"""Runs the readiness probes of Pods, and writes their condition Ready: the health check of what is balanced.

Each probe of each Pod is a task of its own: initialDelaySeconds, then every periodSeconds a question.
successThreshold good answers in a row make it good, failureThreshold bad ones bad; until then it is what it was, at
first bad. A Pod is ready if all its probes are good. What is bad is also told in an Event.

Commands run only where the operator allows it: whoever may write Pods could otherwise run anything as our user.
"""

import asyncio
import contextlib
import random
from typing import Final

from vipwire.cluster.api.answers.cells import at, format_time
from vipwire.cluster.api.bodies.sent import Options
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.pod import PODS
from vipwire.cluster.api.object import decoded
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.api.resource import Object
from vipwire.cluster.controllers.endpoints.selection import Name
from vipwire.cluster.controllers.endpoints.workloads import probes, ready_condition
from vipwire.cluster.controllers.events import warn
from vipwire.cluster.controllers.feed import Feed
from vipwire.cluster.probe import ask

_OPTIONS: Final = Options(manager="vipwire-probes", validation="Ignore")

NO_COMMANDS: Final = "commands are not run (vipwire up --exec-probes allows them)"


class Verdict:
    """What a probe's answers come to."""

    def __init__(self, probe: Object) -> None:
        self._needed = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
        self._row = 0
        self._last: bool | None = None
        self.good: bool | None = None
        """None until enough answers are there."""

    def hear(self, *, good: bool) -> None:
        """Take an answer."""
        self._row = self._row + 1 if good is self._last else 1
        self._last = good
        if self._row >= self._needed[good]:
            self.good = good


class _Watched:
    """A Pod whose probes run."""

    def __init__(self, pod: Object) -> None:
        self.what = what_is_probed(pod)
        self.verdicts = {container: Verdict(probe) for container, probe in probes(pod)}
        self.problems: dict[str, str] = {}
        self.tasks: list[asyncio.Task[None]] = []


class Probes:
    """Follows the Pods of a registry. `run` must run."""

    def __init__(self, registry: Registry, *, commands: bool = False) -> None:
        self._registry, self._commands = registry, commands
        self._feed = Feed(registry.store, (PODS,))
        self._watched: dict[Name, _Watched] = {}

    async def run(self) -> None:
        """Work until cancelled."""
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
            pod = decoded(change.record)
            self._settle(name, None if change.deleted or not _is_probed(pod) else pod, tasks)
        for name in set(self._watched) - seen if anew else ():
            self._settle(name, None, tasks)

    def _settle(self, name: Name, pod: Object | None, tasks: asyncio.TaskGroup) -> None:
        watched = self._watched.get(name)
        if watched is not None and (pod is None or watched.what != what_is_probed(pod)):
            for task in self._watched.pop(name).tasks:
                task.cancel()
            watched = None
        if watched is None and pod is not None:
            self._watched[name] = watched = _Watched(pod)
            for container, probe in probes(pod):
                watched.tasks.append(tasks.create_task(self._probe(name, pod, container, probe, watched)))

    async def _probe(self, name: Name, pod: Object, container: str, probe: Object, watched: _Watched) -> None:
        verdict, period = watched.verdicts[container], probe.get("periodSeconds") or 10
        # After a start all would ask at once: each waits for a part of its period.
        first = random.uniform(0, min(period, 1))  # noqa: S311  # nobody gains by guessing it
        await asyncio.sleep((probe.get("initialDelaySeconds") or 0) + first)
        while True:
            refused = probe.get("exec") and not self._commands
            problem = NO_COMMANDS if refused else await ask(probe, pod, container)
            before = verdict.good
            verdict.hear(good=not problem)
            watched.problems[container] = problem
            if verdict.good is not before:
                await self._report(name, watched)
            await asyncio.sleep(period)

    async def _report(self, name: Name, watched: _Watched) -> None:
        bad = [container for container, verdict in watched.verdicts.items() if not verdict.good]
        problem = "; ".join(f"{each}: {watched.problems.get(each) or 'not asked yet'}" for each in bad)
        now = format_time(self._registry.clock())
        with contextlib.suppress(ApiError):  # it has gone
            record = self._registry.read(PODS, *name)
            pod = decoded(record)
            await self._registry.change(
                PODS, *name, lambda value: with_ready(value, problem, now), _OPTIONS, subresource="status"
            )
            if problem:
                await warn(self._registry, PODS, pod, "Unhealthy", f"Readiness probe failed: {problem}")


def with_ready(pod: Object, problem: str, now: str) -> Object:
    """Give a Pod its condition Ready; the time changes only with the state."""
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
