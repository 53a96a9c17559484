"""The loop of `vipwire ingress`: updates HAProxy after each change of the objects.

Events that arrive together are one change. Reloads are at least `pause` seconds apart, since each leaves an old
worker until its connections end; endpoints change meanwhile.

HAProxy never runs a configuration that it refuses. The controller leaves out the backend, expression or certificate
at fault and tries the rest again. If it finds none, the last good configuration stays.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire_l7.haproxy.backends import name_spares
from vipwire_l7.haproxy.configuration import DEFAULT_CERTIFICATE, Configuration
from vipwire_l7.haproxy.observed import correct_record, write_state_commands
from vipwire_l7.haproxy.state import WHOLE, Delta, record_change
from vipwire_l7.run.control import ControlError, ask_haproxy, command_haproxy
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.process import Haproxy, Refused
from vipwire_l7.run.rates import ReloadTurns
from vipwire_l7.run.surroundings import DestinationFollower
from vipwire_l7.watch.objects import IngressEvent
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

START = "start"
"""The reason of the first configuration, and of that after HAProxy exited."""
_ATTEMPTS = 50
_LOOK = 60.0
"""Seconds between checks for changes without an event: certificates expire, and other programs change HAProxy."""
_OF_A_RELOAD, _LONGEST_PAUSE, _MANY_WORKERS = 5.0, 30.0, 3
_FILES = re.compile(r"Cannot raise FD limit to (\d+), limit is (\d+)")
_AT_LINE = re.compile(r"haproxy\.cfg:(\d+)\]")
_EXPRESSION = re.compile(r"regex '([^']*)'")
_TAKEN = re.compile(r"frontend ([^\s:]+:\S+): (?:protocol \S+: )?cannot (?:bind|create)")
_CERTIFICATE = re.compile(r"'[^']*/([^/']+\.pem)'")


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The result of a sync and its duration. `reload` is the reason for a reload, `failure` the error.

    `repaired` names the parts of HAProxy that other programs had changed.
    """

    seconds: float
    commands: int = 0
    reload: str = ""
    failure: str = ""
    repaired: tuple[str, ...] = ()
    held: ObjectRef | None = None
    """The first object of a namespace whose changes wait (`ReloadTurns`)."""
    old_workers: int = 0
    """Replaced workers that still have connections."""


class Controller:
    """Keeps HAProxy in step with the objects. Calls `tell` after each sync that changed something."""

    def __init__(
        self,
        snapshot: Snapshot,
        desired: Desired,
        haproxy: Haproxy,
        tell: Callable[[SyncResult], None],
        pause: float = 1.0,
        follower: DestinationFollower | None = None,
        turns: ReloadTurns | None = None,
    ) -> None:
        self._turns = turns or ReloadTurns()
        self._follower = follower
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
        """Set after each change of the desired state, for services beside HAProxy."""
        self._live: Configuration | None = None
        self._reloaded = self._looked = float("-inf")
        self._failed, self._took = "", 0.0
        self._pending = WHOLE
        """The changes that HAProxy may lack: they wait for a reload, or an exception stopped them."""
        self.old_workers = 0
        """Replaced workers that still had connections at the last reload."""

    @property
    def serving(self) -> bool:
        return self._live is not None and self._haproxy.running

    @property
    def spares(self) -> Mapping[str, str]:
        """The pools in spare backends, by spare backend."""
        return {spare: pool for pool, spare in self._live.placed.items()} if self._live else {}

    def emit(self, event: IngressEvent) -> None:
        self._wake.set()
        waiting = self._turns.waiting
        held = self._turns.hold_back(event)
        if held is None:
            self._snapshot.apply(event)
            self._heard += 1
        elif held[1].namespace not in waiting:
            self._tell(SyncResult(0.0, held=held))

    def touch_services(self, services: Collection[ObjectName]) -> None:
        self._snapshot.touch_services(services)
        self._wake.set()

    async def wait_until_settled(self) -> None:
        """Wait until HAProxy has all events emitted so far."""
        wanted = self._heard
        async with self._progress:
            await self._progress.wait_for(lambda: self._done >= wanted)

    async def run(self) -> None:
        """Follow until cancelled. After an exception, plan the changes of that time again."""
        self._pending, self._looked = WHOLE, float("-inf")
        await self._haproxy.adopt_master()
        due: float | None = None
        while True:
            for event in self._turns.release_events():
                self._snapshot.apply(event)
            if self._snapshot.complete:
                heard, due = self._heard, await self._sync()
                for tell in self.desired.taken:
                    tell()
                await self._set_progress(heard if due is None else self._done)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK if due is None else due, self._turns.get_wait(), _LOOK)):
                    await self._wake.wait()
            self._wake.clear()

    async def _set_progress(self, done: int) -> None:
        async with self._progress:
            self._done = done
            self._progress.notify_all()

    async def watch_child(self) -> None:
        """Start HAProxy again when it exits, until cancelled."""
        while True:
            await self._haproxy.wait_until_ended()
            if self._live is not None:
                # HAProxy's connections are lost. New connections must be accepted soon.
                log.error("HAProxy exited; starting it again")
                self._live, self._failed = None, ""
                self._wake.set()
            await asyncio.sleep(0.5)

    async def _sync(self) -> float | None:
        """Update HAProxy; return the seconds until the next try, None if all is done."""
        touched, began = self._snapshot.take_touched(), time.monotonic()
        if began - self._looked >= _LOOK:
            self._looked = began
            await self._check_haproxy()
            touched = replace(touched, structure=touched.structure or self.desired.retries or self._pending.whole)
        self._pending = self._pending.merge_later(self.desired.update(touched, time.time()))
        if self._follower is not None and self._follower.waits:
            await self._follower.query_new_names()
            self._pending = self._pending.merge_later(self.desired.update(self._snapshot.take_touched(), time.time()))
        if touched or self._pending:
            self.updated.set()
        live = self._live
        if live is None or self._failed:
            return await self._reload_in_time(self._failed or START, began)
        change = self.desired.find_change(live, self._pending)
        self._turns.record_causes(touched, change)
        wait = max(self._wait, self._turns.get_wait_for_servers(change))
        if not change.reasons or wait > 0:
            if change.commands and not await self._send_commands(change.commands, began):
                return await self._reload_in_time(self._failed, began)
            record_change(live, change)
            self._pending = change.waiting
            return wait if change.reasons else None
        return await self._reload(change.reasons[0], began)

    async def _check_haproxy(self) -> None:
        """Read HAProxy's state; if another program changed it, compare everything."""
        live, began = self._live, time.monotonic()
        if live is None or self._failed:
            return
        try:
            answers = await ask_haproxy(self._haproxy.socket, write_state_commands(live))
        except ControlError as error:
            self._failed = str(error)
            return
        if found := correct_record(live, answers):
            self._pending = WHOLE
            self._tell(SyncResult(time.monotonic() - began, repaired=tuple(found)))

    async def _send_commands(self, commands: Sequence[str], began: float) -> bool:
        """Send commands; report whether they succeeded.

        After a failure HAProxy's state is unknown: only a reload helps.
        """
        try:
            await command_haproxy(self._haproxy.socket, commands)
        except ControlError as error:
            self._failed = f"a command failed: {error}"
            return False
        self._tell(SyncResult(time.monotonic() - began, len(commands)))
        return True

    @property
    def _wait(self) -> float:
        """Return the seconds until the next reload; 0 if HAProxy does not run."""
        if not self._haproxy.running:
            return 0.0
        return self._reloaded + self._pause_now - time.monotonic()

    async def _reload_in_time(self, reason: str, began: float) -> float | None:
        """Reload HAProxy, or return the seconds until then."""
        return wait if (wait := self._wait) > 0 else await self._reload(reason, began)

    @property
    def _pause_now(self) -> float:
        """Return the seconds between reloads: each costs the machine as much as the last one, and leaves a worker."""
        if not self._pause:
            return 0.0
        usual = max(self._pause, _OF_A_RELOAD * self._took)
        return min(_LONGEST_PAUSE, usual * 2.0 ** max(0, self.old_workers - _MANY_WORKERS))

    async def _reload(self, reason: str, began: float) -> float | None:
        self._turns.count_reload()
        for _ in range(_ATTEMPTS):
            made = replace(
                self.desired.build_configuration(str(self._haproxy.get_next_folder()), self._live),
                spares=name_spares(len(self.desired.slots)),
            )
            asked = time.monotonic()
            try:
                await self._haproxy.apply_configuration(made)
            except Refused as refused:
                if refused.excess and self.desired.exclude_servers(refused.excess):
                    continue
                if self._exclude_named_parts(made, str(refused)):
                    continue
                if refused.is_lost:
                    self._failed = str(refused)
                self._tell(SyncResult(time.monotonic() - began, reload=reason, failure=str(refused)))
                self._reloaded = time.monotonic()
                return 5.0
            self._live, self._reloaded, self._pending = made, time.monotonic(), Delta()
            self._took, self._failed = self._reloaded - asked, ""
            self.old_workers = await self._haproxy.count_old_workers()
            self._tell(SyncResult(time.monotonic() - began, reload=reason, old_workers=self.old_workers))
            return None
        return 5.0

    def _exclude_named_parts(self, made: Configuration, said: str) -> bool:
        """Leave out the parts that HAProxy's message names; report whether there were any."""
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
            pool = _find_pool_at(made, int(found[1]))
            if pool:
                self.desired.exclude_pool(pool, said.partition("\n")[0])
                return True
        return False


def _find_pool_at(made: Configuration, wanted: int) -> str:
    number = 0
    for pool, text in made.write_parts("mark"):
        number += text.count("\n") + 1
        if wanted < number:
            return pool
    return ""
