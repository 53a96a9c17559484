"""Announces the addresses that this machine has, and takes and gives addresses as `View` chooses.

    source ─▶ View ─▶ wanted machines ─▶ Claims: take, give ─▶ probe ─▶ Announcer
                                           ▲
    renewing the machine's own Lease ──────┘

A machine probes for an address that it takes (RFC 5227, RFC 4862). If another host answers, vipwire does not announce
the address and records an Event. An address that the old machine hands over is announced at once without a probe: the
old one answers until it hears that, so that no connection breaks.

A machine announces nothing before its proxy has programmed its rules, while the interface has no carrier, or while
another machine may have its Node's name.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from vipwire.errors import VipwireError
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.logging import log
from vipwire.watched_objects.event import Deleted, EventOf, Listed, Upserted
from vipwire_up.announcing.announce import Announcer
from vipwire_up.announcing.announced import Announced
from vipwire_up.announcing.carrier import CarrierWatch
from vipwire_up.announcing.choose import View
from vipwire_up.announcing.claims import PARTS, SECONDS, Claims
from vipwire_up.announcing.kinds import SYSTEM, AnnounceKind, Held, Object

AGAIN: Final = (0.3, 1.0, 2.0, 4.0)
"""Seconds after which new addresses are announced again: a switch may lose the first frames while it learns."""
PROBES: Final = 2
PROBE_SECONDS: Final = 0.05
_RETRY: Final = 1.0
_AGAIN_SOON: Final = 0.1
_FAREWELL: Final = 5.0
LINGER: Final = 1.0
"""Seconds for which this machine answers for an address that it gave away, unless it hears the next owner before."""
Emit: TypeAlias = Callable[[EventOf[AnnounceKind, Object]], None]
Follow: TypeAlias = Callable[[Emit], Coroutine[Any, Any, None]]
"""Emits all objects, then every change, until cancelled."""


class AddressKeeper:
    """Announces on one interface the addresses that `claims` has.

    The keeper begins when `serves` reports that this machine's proxy has programmed its rules; `serves` is None
    without a proxy. `named` reports whether this process holds the name of its Node.
    """

    def __init__(
        self,
        claims: Claims,
        announced: Announced,
        interface: str,
        serves: Callable[[], bool] | None = None,
        named: Callable[[], bool] = lambda: True,
    ) -> None:
        self._claims, self._announced, self._interface, self._named = claims, announced, interface, named
        self._serves = serves
        self._carrier: CarrierWatch | None = None
        self._link_news = asyncio.Event()
        self._view = View()
        self._announcer: Announcer | None = None
        self._speaking: set[str] = set()
        self._news = asyncio.Event()
        self._pending: set[asyncio.TimerHandle] = set()
        self._told = ""
        self._leaving = False
        announced.holders = self._view.holders

    async def run(self, follow: Follow, begun: Callable[[], None]) -> None:
        """Announce until cancelled. `follow` emits objects and changes. Raise ConfigError for the interface."""
        loop = asyncio.get_running_loop()
        self._view.listed.clear()
        self._announcer = announcer = Announcer(self._interface, self._announced.record_other_claim, self._speaks)
        self._carrier = carrier = CarrierWatch(self._interface)
        begun()
        announcer.listen(loop)
        loop.add_reader(carrier, self._look_at_carrier)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._announced.tasks = tasks
                tasks.create_task(follow(self._take), name="announcements: objects")
                tasks.create_task(self._renew(), name="announcements: Lease")
                tasks.create_task(self._reconcile_on_news(), name="announcements: addresses")
        finally:
            for each in self._pending:
                each.cancel()
            loop.remove_reader(carrier)
            for watched in announcer.sockets:
                loop.remove_reader(watched)
            announcer.close()
            carrier.close()
            self._announcer = self._carrier = None
            self._speaking.clear()
            self._claims.fall_silent()

    @property
    def trouble(self) -> str:
        """Why this machine announces no address; "" if it does, or has not begun."""
        if self._announcer is None or self._serves is not None or self._speaks():
            return ""
        if self._carrier is not None and not self._carrier.up:
            return f"not announcing: interface {self._interface} has no carrier"
        if not self._named():
            return f"not announcing: another machine may have the name of Node {self._claims.node}"
        return f"silent: {self._told or 'this machine cannot renew its Lease'}"

    @property
    def note(self) -> str:
        """Why no address can move, although this machine announces the addresses it has; "" for nothing."""
        return f"addresses stay where they are: {self._told}" if self._told and self._speaks() else ""

    async def hand_over(self) -> None:
        """Give all addresses to the next machines and announce nothing more."""
        if self._announcer is None or not self._named():
            return
        self._leaving = True
        others = {name: where for name, where in self._claims.alive().items() if name != self._claims.node}
        wanted, mine = self._view.wanted(others), tuple(self._claims.mine)
        with contextlib.suppress(ApiError, UnreachableError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._claims.leave()
                await self._give({address: wanted.get(address, "") for address in mine})
                await self._announcer.wait_until_released()
                await self._claims.resign()
        self._fall_silent_about(mine)
        for address in mine:
            log.info("handed over an address", address=address, to=wanted.get(address, ""))

    def _take(self, event: EventOf[AnnounceKind, Object]) -> None:
        match event:
            case Upserted(object=Held() as lease):
                self._claims.note(lease)
            case Listed(kind=AnnounceKind.LEASE, objects=leases):
                self._view.listed.add(AnnounceKind.LEASE)
                self._claims.clear()
                for each in leases:
                    if isinstance(each, Held):
                        self._claims.note(each)
            case Deleted(kind=AnnounceKind.LEASE, name=name):
                if name.namespace == SYSTEM:
                    self._claims.forget(name.name)
            case _:
                self._view.take(event)
        self._news.set()

    async def _renew(self) -> None:
        """Renew the Lease until cancelled. Raise VipwireError if the keeper must start again with new sockets."""
        number = self._carrier.number if self._carrier is not None else 0
        while not self._leaving:
            self._link_news.clear()
            if self._carrier is not None and self._carrier.number not in (0, number):
                raise VipwireError(f"a new interface has the name {self._interface}")
            pause: float | None
            if not self._named():
                self._claims.fall_silent()
                self._news.set()
                pause = _AGAIN_SOON
            elif self._carrier is not None and not self._carrier.up:
                pause = await self._withdraw()
            elif self._serves is not None and not self._serves():
                pause = _AGAIN_SOON
            else:
                self._serves = None
                pause = await self._renew_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._link_news.wait()

    def _speaks(self) -> bool:
        return self._claims.speaks() and self._named()

    async def _renew_once(self) -> float:
        spoke, error = self._claims.speaks(), ""
        try:
            await self._claims.renew()
        except (ApiError, UnreachableError) as failed:
            error = str(failed)
        if error != self._told or self._claims.speaks() != spoke:
            self._say(error, fell_silent=spoke and not self._claims.speaks())
        self._told = error
        self._news.set()
        return _AGAIN_SOON if error else SECONDS / PARTS

    async def _withdraw(self) -> float | None:
        """Resign, so that other machines may take the addresses; return seconds until the next try, or None."""
        try:
            await self._claims.resign()
        except (ApiError, UnreachableError):
            return _AGAIN_SOON
        return None

    def _look_at_carrier(self) -> None:
        carrier = self._carrier
        if carrier is None or not carrier.refresh():
            return
        if carrier.up:
            log.info("the interface has a carrier again", interface=self._interface)
        else:
            log.warning(
                "the interface has no carrier: other machines may take over the addresses",
                interface=self._interface,
            )
            self._claims.fall_silent()
            self._fall_silent_about(tuple(self._speaking))
        self._link_news.set()

    def _say(self, error: str, *, fell_silent: bool) -> None:
        if error:
            log.warning("cannot renew the Lease for announcements", error=error)
        if fell_silent:
            log.warning(
                "stopped announcing: other machines may take over the addresses", addresses=",".join(self._speaking)
            )

    async def _reconcile_on_news(self) -> None:
        while True:
            left = False
            if len(self._view.listed) == len(AnnounceKind) and not self._leaving:
                try:
                    left = await self._reconcile()
                except (ApiError, UnreachableError):
                    left = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._claims.next_end(), _RETRY) if left else None):
                    await self._news.wait()
            self._news.clear()

    async def _reconcile(self) -> bool:
        """Take and give addresses; report whether this machine still waits for some."""
        claims = self._claims
        self._fall_silent_about(self._speaking - claims.mine)
        if not self._speaks() or (self._carrier is not None and not self._carrier.up):
            return False
        wanted = self._view.wanted(claims.alive())
        going = [address for address in claims.mine.union(claims.named()) if wanted.get(address) != claims.node]
        await self._give({address: wanted.get(address, "") for address in going})
        coming = [each for each, node in wanted.items() if node == claims.node and each not in self._speaking]
        taken = await asyncio.gather(*(self._claim_address(each) for each in coming))
        fresh = [each for each, ours in zip(coming, taken, strict=True) if ours]
        await self._begin(fresh)
        return len(self._speaking) < len(wanted)

    async def _claim_address(self, address: str) -> bool:
        return address in self._claims.mine or await self._claims.take(address)

    async def _begin(self, addresses: Iterable[str]) -> None:
        """Probe for new addresses of this machine, and announce those that no other host answers for."""
        assert self._announcer is not None  # noqa: S101  # it runs
        addresses = [each for each in addresses if each in self._claims.mine]
        if not addresses:
            return
        given = self._claims.given.intersection(addresses)
        self._claims.given -= given
        others = await self._probe([each for each in addresses if each not in given])
        fresh = [each for each in addresses if each not in others and each in self._claims.mine]
        new = self._announcer.speak_for(fresh)
        self._announcer.tell(new)
        self._speaking.update(fresh)
        self._announced.began(new)
        for address, hardware in others.items():
            self._announced.record_in_use(address, hardware)
        loop = asyncio.get_running_loop()
        self._pending = {each for each in self._pending if each.when() > loop.time()}
        self._pending |= {loop.call_later(seconds, self._announcer.tell, new) for seconds in AGAIN}

    async def _probe(self, addresses: Sequence[str]) -> dict[str, bytes]:
        assert self._announcer is not None  # noqa: S101  # it runs
        return await self._announcer.probe(addresses, PROBES, PROBE_SECONDS) if addresses else {}

    async def _give(self, going: Mapping[str, str]) -> None:
        """Give addresses to other machines, or "" to none. Raise ApiError, UnreachableError.

        Addresses that another host answers for are given to no machine, so that the next one probes for them.
        """
        handed = [address for address, to in going.items() if to and address in self._speaking]
        self._fall_silent_about(address for address in going if address not in handed)
        if self._announcer is not None and handed:
            self._announcer.hand_on(handed)
            self._speaking.difference_update(handed)
            self._announced.record_end(handed)
            self._pending.add(asyncio.get_running_loop().call_later(LINGER, self._announcer.release, handed))
        await asyncio.gather(*(self._claims.give(each, to if each in handed else "") for each, to in going.items()))

    def _fall_silent_about(self, addresses: Iterable[str]) -> None:
        gone = [each for each in addresses if each in self._speaking]
        if gone and self._announcer is not None:
            self._announcer.speak_for((), gone)
            self._speaking.difference_update(gone)
            self._announced.record_end(gone)
