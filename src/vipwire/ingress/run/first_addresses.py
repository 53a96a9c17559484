"""Asks the system's resolver for the names of ExternalName Services, so that HAProxy has an address when it starts.

HAProxy follows a name itself once it runs. Asked to find a first address, it waits for the system's resolver at each
check and at each start: twelve seconds for one name whose servers are silent, in which nothing else changes. So it is
asked here, for all names at once, and nobody waits long: a name without an answer has no first address.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Collection, Mapping
from threading import Thread

_PATIENCE = 1.0
"""Seconds that a name is waited for which has not been asked for before."""
_AT_ONCE = 32
"""Names that are asked for at a time; the others have no first address meanwhile."""


def system_address(name: str) -> str:
    """Ask the system for an address of a name; "" if there is none."""
    try:
        found = [str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return ""
    return next((text for text in found if "%" not in text and ipaddress.ip_address(text)), "")


class FirstAddresses:
    """Knows the last answer for each name. `find` asks, and may take its time."""

    def __init__(self, find: Callable[[str], str] = system_address, patience: float = _PATIENCE) -> None:
        self._find, self._patience = find, patience
        self._known: dict[str, str] = {}
        self._asking: dict[str, asyncio.Future[None]] = {}

    async def of(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the addresses of names, as far as they are known; ask again for later."""
        self._known = {name: address for name, address in self._known.items() if name in names}
        strangers = []
        for name in names:
            if name not in self._asking and len(self._asking) < _AT_ONCE:
                self._ask(name)
                strangers += [] if name in self._known else [self._asking[name]]
        if strangers:
            await asyncio.wait(strangers, timeout=self._patience)
        return {name: address for name, address in self._known.items() if address}

    async def settled(self) -> None:
        """Wait for all answers."""
        if self._asking:
            await asyncio.wait(tuple(self._asking.values()))

    def _ask(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self._asking[name] = loop.create_future()

        def ask() -> None:
            address = self._find(name)
            with contextlib.suppress(RuntimeError):  # we have ended meanwhile
                loop.call_soon_threadsafe(self._answered, name, address)

        # A thread that waits for an answer must not keep us from ending.
        Thread(target=ask, name=f"address of {name}", daemon=True).start()

    def _answered(self, name: str, address: str) -> None:
        self._known[name] = address
        self._asking.pop(name).set_result(None)
