"""Reports announced addresses in the log and in Events: that they are announced, and that another machine has one."""

import asyncio
import ipaddress
import time
from collections.abc import Iterable
from typing import Final

from vipwire.cluster.api.kinds.service import SERVICES
from vipwire.cluster.api.object import key_of, readable
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.controllers.allocation.holders import Holders
from vipwire.cluster.controllers.events import warn
from vipwire.process import log

_TOLD_AGAIN: Final = 600.0
_MOST_TOLD: Final = 1000


class Announced:
    """Tells of the addresses of Services on one interface; Events are written by `tasks`."""

    def __init__(self, registry: Registry, interface: str, holders: Holders, tasks: asyncio.TaskGroup) -> None:
        self._registry, self._interface, self._holders, self._tasks = registry, interface, holders, tasks
        self._told: dict[tuple[bytes, bytes], float] = {}

    def began(self, addresses: Iterable[bytes]) -> None:
        """Record an Event about addresses that are announced from now on."""
        for address in addresses:
            text = str(ipaddress.ip_address(address))
            log.info("an address is announced", address=text, interface=self._interface)
            self._report(text, "AddressAnnounced", f"{text} is announced on {self._interface}", "Normal")

    def claimed(self, address: bytes, hardware: bytes) -> None:
        """Report another machine that has an address of ours, every ten minutes at most."""
        now = time.monotonic()
        last = self._told.get((address, hardware))
        if len(self._told) >= _MOST_TOLD or (last is not None and last > now - _TOLD_AGAIN):
            return
        self._told[address, hardware] = now
        text, other, where = str(ipaddress.ip_address(address)), hardware.hex(":"), self._interface
        log.warning("another machine announces an address of ours", address=text, hardware=other, interface=where)
        self._report(text, "AddressConflict", f"{text} is announced by {other} on {where}, too", "Warning")

    def _report(self, address: str, reason: str, message: str, kind: str) -> None:
        for name in self._holders.of(address):
            record = self._registry.store.read(key_of(SERVICES, *name))
            uid = readable(record)["metadata"].get("uid", "") if record is not None else ""
            about = {"metadata": {"namespace": name[0], "name": name[1], "uid": uid}}
            self._tasks.create_task(warn(self._registry, SERVICES, about, reason, message, kind=kind))
