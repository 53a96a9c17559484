"""Follows Services and endpoints, and configures BIRD with the routes of this machine."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeAlias

from vipwire.errors import VipwireError
from vipwire.kube.resource import Resource
from vipwire.linux.host.waiting import read_listening_sockets
from vipwire.logging import log
from vipwire.watched_objects.event import EventOf
from vipwire_up.announcing.kinds import NODES, SLICES, AnnounceKind, Followed, Machine, Placed
from vipwire_up.bgp.bird import Bird, render_bird_configuration
from vipwire_up.bgp.routes import SERVICES, Routed, choose_routes
from vipwire_up.bgp.settings import BgpSettings

Object: TypeAlias = Routed | Placed | Machine
Event: TypeAlias = EventOf[AnnounceKind, Object]
Follow: TypeAlias = Callable[[Callable[[Event], None]], Coroutine[Any, Any, None]]
RESOURCES: Final[tuple[Resource[AnnounceKind, Object], ...]] = (SERVICES, SLICES, NODES)
_LOOK_SECONDS: Final = 5.0
"""Seconds between checks that BIRD runs and which Gateways listen here."""
_GATHER_SECONDS: Final = 0.05
NO_ROUTER_ID: Final = "--bgp-router-id: required, because this machine has no IPv4 address"


class BgpSpeaker:
    """Announces routes from a machine. `addresses` are its own."""

    def __init__(
        self,
        settings: BgpSettings,
        node: str,
        addresses: Iterable[str],
        bird: Callable[[], Bird],
        waiting: Callable[[], frozenset[tuple[str, int]]] = read_listening_sockets,
    ) -> None:
        """Set up; `waiting` returns the sockets at which programs of this machine listen."""
        own = next((each for each in addresses if ":" not in each), "")
        if not own and not settings.router_id:
            raise VipwireError(NO_ROUTER_ID)
        self._settings, self._node, self._own, self._make, self._waiting = settings, node, own, bird, waiting
        self._known = Followed[Routed]()
        self._news = asyncio.Event()
        self._applied: tuple[str, ...] | None = None
        self._found: tuple[frozenset[tuple[str, int]], tuple[str, ...]] | None = None
        """The listening sockets at the last check, and the routes for them; None once an object changes."""

    async def run(self, follow: Follow, begun: Callable[[], None]) -> None:
        """Announce until cancelled, then withdraw all routes. Raise UnsupportedError without BIRD."""
        bird = self._make()
        begun()
        self._applied = None
        self._known.listed.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow(self._apply_event))
                tasks.create_task(self._apply_news(bird))
        finally:
            await bird.stop()

    async def _apply_news(self, bird: Bird) -> None:
        while True:
            if len(self._known.listed) == len(RESOURCES):
                await self._apply_routes(bird)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()
                await asyncio.sleep(_GATHER_SECONDS)
            self._news.clear()

    async def _apply_routes(self, bird: Bird) -> None:
        wanted = self._current_routes()
        if wanted == self._applied and await bird.is_ready():
            return
        await bird.apply_configuration(render_bird_configuration(self._settings, self._own, wanted))
        before = set(self._applied or ())
        for text, changed in (
            ("announcing by BGP", set(wanted) - before),
            ("withdrawn from BGP", before - set(wanted)),
        ):
            if changed:
                log.info(text, addresses=",".join(sorted(changed)))
        self._applied = wanted

    def _current_routes(self) -> tuple[str, ...]:
        """Return the routes; computed again only after a change of an object or of a listening socket."""
        places = self._find_listening_sockets()
        if self._found is None or self._found[0] != places:
            known, kinds = self._known, self._settings.kinds
            found = choose_routes(
                self._node, known.services.values(), known.nodes_with_endpoints(), known.machines, kinds, places
            )
            self._found = places, found
        return self._found[1]

    def _find_listening_sockets(self) -> frozenset[tuple[str, int]]:
        if not any(each.gateway for each in self._known.services.values()):
            return frozenset()
        try:
            return self._waiting()
        except OSError as error:
            log.warning("cannot list listening sockets; not announcing addresses of Gateways", error=str(error))
            return frozenset()

    def _apply_event(self, event: Event) -> None:
        self._known.apply_event(event)
        for problem in event.problems:
            log.warning("invalid object", problem=problem)
        self._found = None
        self._news.set()
