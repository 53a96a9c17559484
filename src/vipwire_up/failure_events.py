"""Reports an exception about an object in a part of `vipwire up`: an Event on the object, once per new error."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Final

from vipwire.process_lifecycle.supervision import shorten_error
from vipwire_up.api.kinds.catalogue import BY_ID
from vipwire_up.api.kinds.event import EVENTS
from vipwire_up.api.objects.object import decode_damaged_record, value_at
from vipwire_up.api.registry import Registry
from vipwire_up.store.record import Key
from vipwire_up.store_watch.events import write_warning_event

REASON: Final = "PartFailed"
_MOST: Final = 1000
"""Failures that wait to become Events; further ones are only logged."""


class Complaints:
    """Queues failures, and writes Events while `run` runs. Failures about Events only go to the log."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._waiting: deque[tuple[Key, str]] = deque()
        self._heard = asyncio.Event()

    def record_failure(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        known = isinstance(thing, Key) and thing.resource in BY_ID and thing.resource != EVENTS.id
        if known and not again and len(self._waiting) < _MOST:
            assert isinstance(thing, Key)  # noqa: S101  # as above
            self._waiting.append((thing, f"{part} cannot use this object, and ignores it: {shorten_error(error)}"))
            self._heard.set()

    async def run(self) -> None:
        while True:
            await self._heard.wait()
            self._heard.clear()
            while self._waiting:
                await self._write_event(*self._waiting.popleft())

    async def _write_event(self, key: Key, message: str) -> None:
        record = self._registry.store.read(key)
        uid = value_at(decode_damaged_record(record), "metadata", "uid") if record is not None else None
        about = {"name": key.name, "namespace": key.namespace, "uid": uid if isinstance(uid, str) else ""}
        await write_warning_event(self._registry, BY_ID[key.resource], {"metadata": about}, REASON, message)
