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
    """Announces on one interface the addresses that `claims` has, of the Services in `view`.

    The keeper begins when `serves` reports that this machine's proxy has programmed its rules; `serves` is None
    without a proxy. `named` reports whether this process holds the name of its Node.
    """

    def __init__(
        self,
        claims: Claims,
        view: View,
        announced: Announced,
        interface: str,
        serves: Callable[[], bool] | None = None,
        named: Callable[[], bool] = lambda: True,
    ) -> None:
        self._claims, self._announced, self._interface, self._named = claims, announced, interface, named
        self._serves = serves
        self._carrier: CarrierWatch | None = None
        self._link_news = asyncio.Event()
        self._view = view
        self._announcer: Announcer | None = None
        self._speaking: set[str] = set()
        self._news = asyncio.Event()
        self._pending: set[asyncio.TimerHandle] = set()
        self._told = ""
        self._leaving = False

    async def run(self, follow: Follow, begun: Callable[[], None]) -> None:
        """Announce until cancelled. `follow` emits objects and changes. Raise ConfigError for the interface."""
        loop = asyncio.get_running_loop()
        self._view.listed.clear()
        self._announcer = announcer = Announcer(
            self._interface, self._announced.record_other_claim, self._may_announce
        )
        self._carrier = carrier = CarrierWatch(self._interface)
        begun()
        announcer.listen(loop)
        loop.add_reader(carrier, self._follow_carrier)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._announced.write_events(), name="announcements: Events")
                tasks.create_task(follow(self._apply_event), name="announcements: objects")
                tasks.create_task(self._renew_until_cancelled(), name="announcements: Lease")
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
            self._claims.stop_announcing()

    @property
    def trouble(self) -> str:
        """Why this machine announces no address; "" if it does, or has not begun."""
        if self._announcer is None or self._serves is not None or self._may_announce():
            return ""
        if self._carrier is not None and not self._carrier.up:
            return f"not announcing: interface {self._interface} has no carrier"
        if not self._named():
            return f"not announcing: another machine may have the name of Node {self._claims.node}"
        return f"silent: {self._told or 'this machine cannot renew its Lease'}"

    @property
    def note(self) -> str:
        """Why no address can move, although this machine announces the addresses it has; "" for nothing."""
        return f"addresses stay where they are: {self._told}" if self._told and self._may_announce() else ""

    async def hand_over(self) -> None:
        """Give all addresses to the next machines and announce nothing more."""
        if self._announcer is None or not self._named():
            return
        self._leaving = True
        others = {name: where for name, where in self._claims.machines_alive().items() if name != self._claims.node}
        wanted, mine = self._view.choose_holders(others), tuple(self._claims.mine)
        with contextlib.suppress(ApiError, UnreachableError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._claims.mark_as_leaving()
                await self._give_addresses({address: wanted.get(address, "") for address in mine})
                await self._announcer.wait_until_released()
                await self._claims.release_own_lease()
        self._stop_announcing(mine)
        for address in mine:
            log.info("handed over an address", address=address, to=wanted.get(address, ""))

    def _apply_event(self, event: EventOf[AnnounceKind, Object]) -> None:
        match event:
            case Upserted(object=Held() as lease):
                self._claims.record_lease(lease)
            case Listed(kind=AnnounceKind.LEASE, objects=leases):
                self._view.listed.add(AnnounceKind.LEASE)
                self._claims.forget_address_leases()
                for each in leases:
                    if isinstance(each, Held):
                        self._claims.record_lease(each)
            case Deleted(kind=AnnounceKind.LEASE, name=name):
                if name.namespace == SYSTEM:
                    self._claims.forget_lease(name.name)
            case _:
                self._view.apply_event(event)
        self._news.set()

    async def _renew_until_cancelled(self) -> None:
        """Renew the Lease until cancelled. Raise VipwireError if the keeper must start again with new sockets."""
        number = self._carrier.number if self._carrier is not None else 0
        while not self._leaving:
            self._link_news.clear()
            if self._carrier is not None and self._carrier.number not in (0, number):
                raise VipwireError(f"a new interface has the name {self._interface}")
            pause: float | None
            if not self._named():
                self._claims.stop_announcing()
                self._news.set()
                pause = _AGAIN_SOON
            elif self._carrier is not None and not self._carrier.up:
                pause = await self._resign()
            elif self._serves is not None and not self._serves():
                pause = _AGAIN_SOON
            else:
                self._serves = None
                pause = await self._renew_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._link_news.wait()

    def _may_announce(self) -> bool:
        return self._claims.may_announce() and self._named()

    async def _renew_once(self) -> float:
        spoke, error = self._claims.may_announce(), ""
        try:
            await self._claims.renew_own_lease()
        except (ApiError, UnreachableError) as failed:
            error = str(failed)
        if error != self._told or self._claims.may_announce() != spoke:
            self._log_renewal(error, fell_silent=spoke and not self._claims.may_announce())
        self._told = error
        self._news.set()
        return _AGAIN_SOON if error else SECONDS / PARTS

    async def _resign(self) -> float | None:
        """Resign, so that other machines may take the addresses; return seconds until the next try, or None."""
        try:
            await self._claims.release_own_lease()
        except (ApiError, UnreachableError):
            return _AGAIN_SOON
        return None

    def _follow_carrier(self) -> None:
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
            self._claims.stop_announcing()
            self._stop_announcing(tuple(self._speaking))
        self._link_news.set()

    def _log_renewal(self, error: str, *, fell_silent: bool) -> None:
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
                async with asyncio.timeout(min(self._claims.seconds_until_next_end(), _RETRY) if left else None):
                    await self._news.wait()
            self._news.clear()

    async def _reconcile(self) -> bool:
        """Take and give addresses; report whether this machine still waits for some."""
        claims = self._claims
        self._stop_announcing(self._speaking - claims.mine)
        if not self._may_announce() or (self._carrier is not None and not self._carrier.up):
            return False
        wanted = self._view.choose_holders(claims.machines_alive())
        going = [
            address
            for address in claims.mine.union(claims.addresses_named_here())
            if wanted.get(address) != claims.node
        ]
        await self._give_addresses({address: wanted.get(address, "") for address in going})
        coming = [each for each, node in wanted.items() if node == claims.node and each not in self._speaking]
        taken = await asyncio.gather(*(self._claim_address(each) for each in coming))
        fresh = [each for each, ours in zip(coming, taken, strict=True) if ours]
        await self._start_announcing(fresh)
        return len(self._speaking) < len(wanted)

    async def _claim_address(self, address: str) -> bool:
        return address in self._claims.mine or await self._claims.take_address(address)

    async def _start_announcing(self, addresses: Iterable[str]) -> None:
        """Probe for new addresses of this machine, and announce those that no other host answers for."""
        assert self._announcer is not None  # noqa: S101  # it runs
        addresses = [each for each in addresses if each in self._claims.mine]
        if not addresses:
            return
        given = self._claims.given.intersection(addresses)
        self._claims.given -= given
        others = await self._probe_addresses([each for each in addresses if each not in given])
        fresh = [each for each in addresses if each not in others and each in self._claims.mine]
        new = self._announcer.set_announced(fresh)
        self._announcer.send_announcements(new)
        self._speaking.update(fresh)
        self._announced.record_start(new)
        for address, hardware in others.items():
            self._announced.record_in_use(address, hardware)
        loop = asyncio.get_running_loop()
        self._pending = {each for each in self._pending if each.when() > loop.time()}
        self._pending |= {loop.call_later(seconds, self._announcer.send_announcements, new) for seconds in AGAIN}

    async def _probe_addresses(self, addresses: Sequence[str]) -> dict[str, bytes]:
        assert self._announcer is not None  # noqa: S101  # it runs
        return await self._announcer.probe(addresses, PROBES, PROBE_SECONDS) if addresses else {}

    async def _give_addresses(self, going: Mapping[str, str]) -> None:
        """Give addresses to other machines, or "" to none. Raise ApiError, UnreachableError.

        Addresses that another host answers for are given to no machine, so that the next one probes for them.
        """
        handed = [address for address, to in going.items() if to and address in self._speaking]
        self._stop_announcing(address for address in going if address not in handed)
        if self._announcer is not None and handed:
            self._announcer.answer_until_handed_over(handed)
            self._speaking.difference_update(handed)
            self._announced.record_end(handed)
            self._pending.add(asyncio.get_running_loop().call_later(LINGER, self._announcer.stop_answering, handed))
        await asyncio.gather(
            *(self._claims.give_address(each, to if each in handed else "") for each, to in going.items())
        )

    def _stop_announcing(self, addresses: Iterable[str]) -> None:
        gone = [each for each in addresses if each in self._speaking]
        if gone and self._announcer is not None:
            self._announcer.set_announced((), gone)
            self._speaking.difference_update(gone)
            self._announced.record_end(gone)
