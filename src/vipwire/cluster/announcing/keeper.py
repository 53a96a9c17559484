"""Announces the addresses that this machine has, and sees to it that it has those that it should.

    source ─▶ View ─▶ who should have which ─▶ Claims: take, give ─▶ probe ─▶ Announcer
                                                ▲
    renewing the machine's own Lease ───────────┘

An address that is taken is probed for first (RFC 5227, RFC 4862): a machine that answers for it, although it should
not, keeps it, and an Event says so. One that is given away is not answered for from before it is given. Packets that
still come for it are served, since all machines have the rules of all Services.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from vipwire.cluster.announce import Announcer
from vipwire.cluster.announced import Announced
from vipwire.cluster.announcing.choose import View
from vipwire.cluster.announcing.claims import PARTS, SECONDS, Claims
from vipwire.cluster.announcing.kinds import AnnounceKind, Balanced, Held, Machine, Object, Placed
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.machines.objects import UnreachableError
from vipwire.process import log
from vipwire.state.event import Deleted, EventOf, Listed

AGAIN: Final = (0.0, 0.3, 1.0, 2.0, 4.0)
"""When new addresses are told to neighbours, in seconds: the first may be lost while a switch learns."""
PROBES: Final = 2
PROBE_SECONDS: Final = 0.05
_RETRY: Final = 1.0
_AGAIN_SOON: Final = 0.1
_FAREWELL: Final = 5.0
Emit: TypeAlias = Callable[[EventOf[AnnounceKind, Object]], None]
Follow: TypeAlias = Callable[[Emit], Awaitable[None]]
"""Tells of all objects and then of every change, until it is cancelled."""


class AddressKeeper:
    """Announces on one interface what `claims` has."""

    def __init__(self, claims: Claims, announced: Announced, interface: str) -> None:
        self._claims, self._announced, self._interface = claims, announced, interface
        self._view, self._listed = View(), set[AnnounceKind]()
        self._announcer: Announcer | None = None
        self._speaking: set[str] = set()
        self._news = asyncio.Event()
        self._pending: set[asyncio.TimerHandle] = set()
        self._told = ""
        self._leaving = False
        announced.holders = self._view.holders

    async def run(self, follow: Follow, begun: Callable[[], None]) -> None:
        """Announce until cancelled. `follow` emits what is the case. Raise ConfigError for the interface."""
        loop = asyncio.get_running_loop()
        self._listed.clear()
        self._announcer = announcer = Announcer(self._interface, self._announced.claimed, self._claims.speaks)
        begun()
        announcer.listen(loop)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._announced.tasks = tasks
                tasks.create_task(self._follow(follow), name="announcements: objects")
                tasks.create_task(self._renew(), name="announcements: Lease")
                tasks.create_task(self._settle_on_news(), name="announcements: addresses")
        finally:
            for each in self._pending:
                each.cancel()
            for watched in announcer.sockets:
                loop.remove_reader(watched)
            announcer.close()
            self._announcer = None
            self._speaking.clear()
            self._claims.fall_silent()

    async def hand_over(self) -> None:
        """Give all addresses to the machines that should have them next, and announce nothing any more."""
        if self._announcer is None:
            return
        self._leaving = True
        others = {name: where for name, where in self._claims.alive().items() if name != self._claims.node}
        wanted, mine = self._view.wanted(others), tuple(self._claims.mine)
        self._fall_silent_about(mine)
        with contextlib.suppress(ApiError, UnreachableError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await asyncio.gather(*(self._claims.give(each, wanted.get(each, "")) for each in mine))
                await self._claims.resign()
        for address in mine:
            log.info("handed an address over", address=address, to=wanted.get(address, ""))

    async def _follow(self, follow: Follow) -> None:
        await follow(self._take)

    def _take(self, event: EventOf[AnnounceKind, Object]) -> None:
        """Note an event."""
        if isinstance(event, Listed):
            self._listed.add(event.kind)
            self._clear(event.kind)
            for each in event.objects:
                self._note(each)
        elif isinstance(event, Deleted):
            self._forget(event)
        else:
            self._note(event.object)
        self._news.set()

    def _clear(self, kind: AnnounceKind) -> None:
        view = self._view
        match kind:
            case AnnounceKind.SERVICE:
                view.services.clear()
            case AnnounceKind.SLICE:
                view.slices.clear()
            case AnnounceKind.NODE:
                view.machines.clear()
            case AnnounceKind.LEASE:
                self._claims.clear()

    def _note(self, value: Object) -> None:
        match value:
            case Balanced():
                self._view.services[value.name] = value
            case Placed():
                self._view.slices[value.name] = value.service, value.nodes
            case Machine():
                self._view.machines[value.name] = value
            case Held():
                self._claims.note(value)

    def _forget(self, event: Deleted[AnnounceKind]) -> None:
        match event.kind:
            case AnnounceKind.SERVICE:
                self._view.services.pop(event.name, None)
            case AnnounceKind.SLICE:
                self._view.slices.pop(event.name, None)
            case AnnounceKind.NODE:
                self._view.machines.pop(event.name.name, None)
            case AnnounceKind.LEASE if event.name.namespace == "kube-system":
                self._claims.forget(event.name.name)

    async def _renew(self) -> None:
        while not self._leaving:
            spoke, error = self._claims.speaks(), ""
            try:
                await self._claims.renew()
            except (ApiError, UnreachableError) as failed:
                error = str(failed)
            if error != self._told or self._claims.speaks() != spoke:
                self._say(error, fell_silent=spoke and not self._claims.speaks())
            self._told = error
            self._news.set()
            await asyncio.sleep(_AGAIN_SOON if error else SECONDS / PARTS)

    def _say(self, error: str, *, fell_silent: bool) -> None:
        if error:
            log.warning("cannot renew the Lease that addresses are announced by", error=error)
        if fell_silent:
            log.warning("fell silent: other machines may take the addresses", addresses=",".join(self._speaking))

    async def _settle_on_news(self) -> None:
        while True:
            left = False
            if len(self._listed) == len(AnnounceKind) and not self._leaving:
                try:
                    left = await self._settle()
                except (ApiError, UnreachableError):
                    left = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._claims.next_end(), _RETRY) if left else None):
                    await self._news.wait()
            self._news.clear()

    async def _settle(self) -> bool:
        """Take and give addresses; report whether some are waited for."""
        claims = self._claims
        self._fall_silent_about(self._speaking - claims.mine)
        if not claims.speaks():
            return False
        wanted = self._view.wanted(claims.alive())
        going = [address for address in claims.mine if wanted.get(address) != claims.node]
        self._fall_silent_about(going)
        await asyncio.gather(*(claims.give(each, wanted.get(each, "")) for each in going))
        coming = [each for each, node in wanted.items() if node == claims.node and each not in self._speaking]
        taken = await asyncio.gather(*(self._own(each) for each in coming))
        fresh = [each for each, ours in zip(coming, taken, strict=True) if ours]
        await self._begin(fresh)
        return len(self._speaking) < len(wanted)

    async def _own(self, address: str) -> bool:
        return address in self._claims.mine or await self._claims.take(address)

    async def _begin(self, addresses: Iterable[str]) -> None:
        """Probe for addresses that this machine has now, and announce those that nobody else answers for."""
        assert self._announcer is not None  # noqa: S101  # it runs
        addresses = [each for each in addresses if each in self._claims.mine]
        if not addresses:
            return
        others = await self._announcer.probe(addresses, PROBES, PROBE_SECONDS)
        fresh = [each for each in addresses if each not in others and each in self._claims.mine]
        new = self._announcer.speak_for(fresh)
        self._speaking.update(fresh)
        self._announced.began(new)
        for address, hardware in others.items():
            self._announced.in_use(address, hardware)
        loop = asyncio.get_running_loop()
        self._pending = {each for each in self._pending if each.when() > loop.time()}
        self._pending |= {loop.call_later(seconds, self._announcer.tell, new) for seconds in AGAIN}

    def _fall_silent_about(self, addresses: Iterable[str]) -> None:
        gone = [each for each in addresses if each in self._speaking]
        if gone and self._announcer is not None:
            self._announcer.speak_for((), gone)
            self._speaking.difference_update(gone)
            self._announced.ended(gone)
