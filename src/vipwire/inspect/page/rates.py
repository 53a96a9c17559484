"""Rates for the page: `vipwire top` in a thread of its own, so that no event waits while the kernel is read."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from vipwire.errors import UnsupportedError, VipwireError
from vipwire.inspect.live.flows import FlowEvents, Frontends, tracked
from vipwire.inspect.live.top import Rates
from vipwire.inspect.status.document import Document
from vipwire.reconcile.counts import Counts

WINDOW_SECONDS: Final = 10.0
_STEP_SECONDS: Final = 0.5


class LiveRates:
    """Follows connections from `start` on. Where the kernel tells of none, only the modes' counts are known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates = Rates(Frontends({}, frozenset()), WINDOW_SECONDS, time.time())
        self.obstacle = ""

    def start(self) -> None:
        """Follow connections in a thread from now on. Says in `obstacle` why the kernel tells of none."""
        try:
            events = FlowEvents()
        except UnsupportedError as error:
            self.obstacle = str(error)
            return
        threading.Thread(target=self._follow, args=(events,), name="connections", daemon=True).start()

    def _follow(self, events: FlowEvents) -> None:
        with events:
            while True:
                for heard in events.until(time.monotonic() + _STEP_SECONDS):
                    with self._lock:
                        self._rates.take(heard)

    def recognise(self, frontends: Frontends) -> None:
        """Count for these frontends from now on."""
        with self._lock:
            self._rates.recognise(frontends)

    def document(self, read: Callable[[], Counts]) -> Document:
        """Describe the rates of now, as `vipwire top` does."""
        flows = []
        with suppress(VipwireError, OSError):
            flows = list(tracked()) if not self.obstacle else []
        counts = read()
        with self._lock:
            now = time.time()
            self._rates.count(now, counts)
            document = self._rates.document(now, flows)
            self._rates.lost = False
        return document | ({"obstacle": self.obstacle} if self.obstacle else {})
