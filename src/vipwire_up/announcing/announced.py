"""Reports announced addresses in the log and in Events: which machine announces each, and conflicts."""

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NamedTuple

from vipwire.config.configuration import Config
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.proxy_daemon.announced import AnnouncedAddress, announced_file, write_announced
from vipwire_up.api.kinds.event import EVENTS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.nodes.objects import Objects
from vipwire_up.store_watch.events import build_event

_TOLD_AGAIN: Final = 600.0
_MOST_TOLD: Final = 1000
_MOST_EVENTS: Final = 1000
"""The Events that wait for the API server; later ones are dropped."""


class _Event(NamedTuple):
    service: ObjectName
    reason: str
    message: str
    kind: str


class Announced:
    """Reports the addresses of Services that one interface of a machine announces.

    `services_at` names the Services of an address. `proxy` is the configuration of the proxy on this machine: its
    state directory gets the addresses for `vipwire view`.
    """

    def __init__(
        self,
        objects: Objects,
        node: str,
        interface: str,
        now: Callable[[], datetime],
        services_at: Callable[[str], Iterable[ObjectName]],
        proxy: Config | None = None,
    ) -> None:
        self._path = None if proxy is None else announced_file(proxy.state_dir)
        self._addresses: dict[str, AnnouncedAddress] = {}
        self._objects, self._node, self._interface, self._now = objects, node, interface, now
        self._services_at = services_at
        self._events = asyncio.Queue[_Event](_MOST_EVENTS)
        self._told: dict[tuple[bytes, bytes], float] = {}

    def record_start(self, addresses: Iterable[bytes]) -> None:
        """Record an Event for each Service whose address this machine now announces."""
        for address in addresses:
            text = str(ipaddress.ip_address(address))
            self._record_announced(text, AnnouncedAddress(self._interface))
            log.info("announcing an address", address=text, interface=self._interface, node=self._node)
            message = f"{text} is announced by {self._node} on {self._interface}"
            self._report_to_services(text, "AddressAnnounced", message, "Normal")

    def record_end(self, addresses: Iterable[str]) -> None:
        """Log addresses that this machine no longer announces. The next machine reports that it announces them."""
        for address in addresses:
            self._record_announced(address, None)
            log.info("stopped announcing an address", address=address, interface=self._interface)

    def record_other_claim(self, address: bytes, hardware: bytes) -> None:
        text, other = str(ipaddress.ip_address(address)), hardware.hex(":")
        self._record_announced(text, AnnouncedAddress(self._interface, other=other))
        self._report_conflict(address, hardware, "another machine announces this machine's address", "too")

    def record_in_use(self, address: str, hardware: bytes) -> None:
        """Report a machine that already answers for an address. vipwire does not announce that address."""
        packed = ipaddress.ip_address(address).packed
        self._record_announced(address, AnnouncedAddress(self._interface, here=False, other=hardware.hex(":")))
        self._report_conflict(
            packed, hardware, "another machine uses the address; not announcing the address", "and so not by us"
        )

    def _record_announced(self, address: str, announced: AnnouncedAddress | None) -> None:
        if self._path is None or self._addresses.get(address) == announced:
            return
        if announced is None:
            del self._addresses[address]
        else:
            self._addresses[address] = announced
        write_announced(self._path, self._addresses)

    def _report_conflict(self, address: bytes, hardware: bytes, said: str, more: str) -> None:
        now = time.monotonic()
        last = self._told.get((address, hardware))
        if len(self._told) >= _MOST_TOLD or (last is not None and last > now - _TOLD_AGAIN):
            return
        self._told[address, hardware] = now
        text, other, where = str(ipaddress.ip_address(address)), hardware.hex(":"), self._interface
        log.warning(said, address=text, hardware=other, interface=where)
        self._report_to_services(text, "AddressConflict", f"{other} announces {text} on {where}, {more}", "Warning")

    def _report_to_services(self, address: str, reason: str, message: str, kind: str) -> None:
        for name in self._services_at(address):
            with contextlib.suppress(asyncio.QueueFull):  # the API server does not answer; an Event only informs
                self._events.put_nowait(_Event(name, reason, message, kind))

    async def write_events(self) -> None:
        """Write the Events until cancelled."""
        while True:
            await self._write_event(await self._events.get())

    async def _write_event(self, told: _Event) -> None:
        namespace = told.service.namespace
        try:
            service = await self._objects.read(SERVICES, namespace, told.service.name)
            if service is not None:
                event = build_event(SERVICES, service, told.reason, told.message, self._now(), kind=told.kind)
                await self._objects.create(EVENTS, namespace, event)
        except (ApiError, UnreachableError):  # the Event only informs
            return
