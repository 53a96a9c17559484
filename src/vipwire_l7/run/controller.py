"""The loop of `vipwire ingress`: objects change, HAProxy follows.

Events that come together are one change. A change that needs a reload waits until the last one is `pause` seconds
ago, since each leaves an old worker behind that ends with its connections; endpoints change meanwhile.

A configuration that HAProxy refuses never goes live: the backend, expression or certificate at fault is left out and
the rest is tried again; where none can be found, the last good one stays.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire_l7.haproxy.backends import spare_names
from vipwire_l7.haproxy.change import HaproxyChange, difference, merged, possible
from vipwire_l7.haproxy.configuration import DEFAULT_CERTIFICATE, Configuration
from vipwire_l7.haproxy.part import Delta, part_of, take_in
from vipwire_l7.run.control import ControlError, command
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.process import Haproxy, Refused
from vipwire_l7.run.surroundings import Follower
from vipwire_l7.watch.objects import IngressEvent
from vipwire_l7.watch.snapshot import Snapshot

START = "start"
"""The reason of the first configuration, and of that after HAProxy's death."""
Note: TypeAlias = Callable[[], None]
_ATTEMPTS = 50
_LOOK = 60.0
"""Seconds after which it is asked whether time alone has changed the plan: certificates expire."""
_OF_A_RELOAD, _LONGEST_PAUSE, _MANY_WORKERS = 5.0, 30.0, 3
_FILES = re.compile(r"Cannot raise FD limit to (\d+), limit is (\d+)")
_AT_LINE = re.compile(r"haproxy\.cfg:(\d+)\]")
_EXPRESSION = re.compile(r"regex '([^']*)'")
_TAKEN = re.compile(r"frontend ([^\s:]+:\S+): cannot (?:bind|create)")
_CERTIFICATE = re.compile(r"'[^']*/([^/']+\.pem)'")


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a sync and its duration. `reload` is why HAProxy was reloaded, `failure` what went wrong."""

    seconds: float
    commands: int = 0
    reload: str = ""
    failure: str = ""


class Controller:
    """Keeps HAProxy at what the objects say. `tell` hears of every sync that did something."""

    def __init__(
        self,
        snapshot: Snapshot,
        desired: Desired,
        haproxy: Haproxy,
        tell: Callable[[Done], None],
        pause: float = 1.0,
        follower: Follower | None = None,
    ) -> None:
        self._follower = follower
        if follower is not None:
            follower.touched = self._touch
        self._snapshot, self.desired, self._haproxy, self._tell, self._pause = (
            snapshot,
            desired,
            haproxy,
            tell,
            pause,
        )
        self._wake, self._progress = asyncio.Event(), asyncio.Condition()
        self._heard = self._done = 0
        self.updated = asyncio.Event()
        """Set when what is desired may be another: for those who serve what HAProxy does not."""
        self._live: Configuration | None = None
        self._reloaded = self._looked = float("-inf")
        self._anew, self._failed, self._took = True, "", 0.0
        self.old_workers = 0
        """Workers that have been replaced and still have connections, at the last reload."""

    @property
    def serving(self) -> bool:
        """Whether HAProxy has a configuration and runs."""
        return self._live is not None and self._haproxy.running

    @property
    def spares(self) -> Mapping[str, str]:
        """The pools in spare backends, by these."""
        return {spare: pool for pool, spare in self._live.placed.items()} if self._live else {}

    def emit(self, event: IngressEvent) -> None:
        """Accept an event from the source."""
        self._snapshot.apply(event)
        self._heard += 1
        self._wake.set()

    def _touch(self, services: Collection[ObjectName]) -> None:
        """Note that Services may be connected to otherwise than before."""
        self._snapshot.touch(services)
        self._wake.set()

    async def settled(self) -> None:
        """Wait until HAProxy has all that was emitted so far."""
        wanted = self._heard
        async with self._progress:
            await self._progress.wait_for(lambda: self._done >= wanted)

    async def run(self) -> None:
        """Follow until cancelled. If this has failed before, what had changed then is planned now."""
        self._anew = True
        await self._haproxy.adopt()
        due: float | None = None
        while True:
            if self._snapshot.complete:
                heard, due = self._heard, await self._sync(behind=due is not None)
                for tell in self.desired.taken:
                    tell()
                await self._note_progress(heard if due is None else self._done)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK if due is None else min(due, _LOOK)):
                    await self._wake.wait()
            self._wake.clear()

    async def _note_progress(self, done: int) -> None:
        async with self._progress:
            self._done = done
            self._progress.notify_all()

    async def watch_child(self) -> None:
        """Start HAProxy again when it has died, until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            if self._live is not None and not self._haproxy.running:
                # Connections are lost; what matters now is that new ones are taken soon.
                log.error("HAProxy has ended; starting it again")
                self._live, self._failed = None, ""
                self._wake.set()

    async def _sync(self, *, behind: bool) -> float | None:
        """Update HAProxy; return the seconds until it must be tried again, None when all is done.

        `behind`: HAProxy does not have all that the last time would have brought it.
        """
        touched, began = self._snapshot.take(), time.monotonic()
        if self._is_outdated(began):
            touched = replace(touched, structure=True)
        delta = self.desired.update(touched, time.time())
        if self._follower is not None and self._follower.waits:
            await self._follower.first()
            more = self._snapshot.take()
            later = self.desired.update(more, time.time())
            delta = None if delta is None or later is None else delta.then(later)
        if touched:
            self.updated.set()
        change, note = self._change(None if behind else delta)
        if not change or (not change.reason and await self._command(change, note, began)):
            return None
        wait = self._reloaded + self._pause_now - time.monotonic()
        if wait > 0:
            await self._go_ahead(began)
            return wait
        return await self._reload(self._failed or change.reason, began)

    def _is_outdated(self, now: float) -> bool:
        """Report whether the plan may be another though no event says so: after a failure of ours, or by now."""
        anew, self._anew = self._anew, False
        if now - self._looked < _LOOK:
            return anew
        self._looked = now
        return anew or self.desired.is_outdated(time.time())

    def _wanted(self, live: Configuration) -> Configuration:
        """Return what is desired, to be compared with what HAProxy has."""
        return self.desired.made(live.layout.folder, live.shape.lookups)

    def _change(self, delta: Delta | None) -> tuple[HaproxyChange, Note]:
        """Compare: all, or where nothing else has changed the hosts and pools of `delta`."""
        live = self._live
        if live is None or self._failed:
            return HaproxyChange(reason=self._failed or START), lambda: None
        part = part_of(live, delta, self.desired.slots) if delta is not None else None
        if part is not None:
            return part.change, partial(take_in, live, part)
        return self._whole(live, self._wanted(live))

    def _whole(self, live: Configuration, wanted: Configuration) -> tuple[HaproxyChange, Note]:
        change = difference(live, wanted)

        def note() -> None:
            self._live = merged(live, wanted, change.placed)

        return change, note

    async def _go_ahead(self, began: float) -> None:
        """Change what needs no reload while the rest waits for one."""
        if self._live is not None and not self._failed:
            change, note = self._whole(self._live, possible(self._live, self._wanted(self._live)))
            if change.commands:
                await self._command(change, note, began)

    async def _command(self, change: HaproxyChange, note: Note, began: float) -> bool:
        """Send the commands of a change and `note` what HAProxy has; tell whether they have succeeded.

        What HAProxy has after a failure is unknown: nothing but a reload is tried until there was one.
        """
        try:
            await command(self._haproxy.socket, change.commands)
        except ControlError as error:
            self._failed = f"a command failed: {error}"
            return False
        if self._live is not None:
            note()
        self._tell(Done(time.monotonic() - began, len(change.commands)))
        return True

    @property
    def _pause_now(self) -> float:
        """The seconds between reloads: each costs the machine what the last one took, and leaves a worker behind."""
        if not self._pause:
            return 0.0
        usual = max(self._pause, _OF_A_RELOAD * self._took)
        return min(_LONGEST_PAUSE, usual * 2.0 ** max(0, self.old_workers - _MANY_WORKERS))

    async def _reload(self, reason: str, began: float) -> float | None:
        for _ in range(_ATTEMPTS):
            made = replace(
                self.desired.made(str(self._haproxy.next_folder())),
                spares=spare_names(len(self.desired.slots)),
            )
            asked = time.monotonic()
            try:
                await self._haproxy.put(made)
            except Refused as refused:
                if self._exclude(made, str(refused)):
                    continue
                self._tell(Done(time.monotonic() - began, reload=reason, failure=str(refused)))
                self._reloaded = time.monotonic()
                return 5.0
            self._live, self._reloaded = replace(made, slots=dict(made.slots)), time.monotonic()
            self._took, self._failed = self._reloaded - asked, ""
            self.old_workers = await self._haproxy.old_workers()
            self._tell(Done(time.monotonic() - began, reload=reason))
            return None
        return 5.0

    def _exclude(self, made: Configuration, said: str) -> bool:
        """Leave out what HAProxy complains about; tell whether that was anything."""
        if taken := _TAKEN.findall(said):
            return sum(self.desired.exclude_frontend(name) for name in taken) > 0
        if (expression := _EXPRESSION.search(said)) and expression[1] in made.maps["expressions"]:
            self.desired.exclude_route(expression[1], said)
            return True
        if (named := _CERTIFICATE.search(said)) and named[1] in made.certificates.keys() - {DEFAULT_CERTIFICATE}:
            self.desired.exclude_certificate(named[1], said.partition("\n")[0].rpartition(" : ")[2])
            return True
        if files := _FILES.search(said):
            return self.desired.exclude_servers(int(files[1]) - int(files[2]))
        for found in _AT_LINE.finditer(said):
            pool = _pool_at(made, int(found[1]))
            if pool:
                self.desired.exclude(pool, said.partition("\n")[0])
                return True
        return False


def _pool_at(made: Configuration, wanted: int) -> str:
    """Find the pool whose part of the text has a line."""
    number = 0
    for pool, text in made.parts("mark"):
        number += text.count("\n") + 1
        if wanted < number:
            return pool
    return ""
