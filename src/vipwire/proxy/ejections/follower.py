"""Follows the engine's ejections: has new connections watched, reports, and keeps the list for the proxy's record."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vipwire.model.names import ServicePortName
from vipwire.model.net import format_address
from vipwire.modes.spec import ModeSpec
from vipwire.plan.ejection import EndpointKey, Tallies
from vipwire.proxy.serve.metrics import Metrics
from vipwire.proxy.start.record import EjectedEndpoint
from vipwire.proxy.sync.engine import Engine
from vipwire.proxy.sync.report import Reporter

if TYPE_CHECKING:
    from vipwire.proxy.ejections.watch import EjectionWatch


class EjectionFollower:
    """Is told after each sync. `spec` is the mode's: where it relays, conntrack sees none of its connections.

    `changed` is called when `current`, which is what is ejected now, is another list.
    """

    def __init__(
        self, engine: Engine, metrics: Metrics, reporter: Reporter, changed: Callable[[], None], spec: ModeSpec
    ) -> None:
        self._engine, self._metrics, self._reporter, self._changed = engine, metrics, reporter, changed
        self._watch: EjectionWatch | None = None
        self._watches, self._direct = not spec.relays, spec.direct
        self.current: tuple[EjectedEndpoint, ...] = ()
        metrics.ejected_endpoints.set_function(lambda: len(self.current))

    def follow(self, tell: Callable[[Tallies], None], now: float) -> None:
        """Watch what is to be watched, and report. `tell` is given what became of connections; `now` is the time."""
        if self._watches:
            self._watch = self._watch or self._begin(tell)
            self._watch.settle()
        notes = self._engine.ejection_notes()
        for note in notes:
            self._reporter.ejection(note)
        ejected = self._engine.ejected() if notes or self.current else {}
        if notes or len(ejected) != len(self.current):
            since = now - time.monotonic()
            self.current = tuple(_told(port, key, until + since) for (port, key), until in ejected.items())
            self._changed()

    def _begin(self, tell: Callable[[Tallies], None]) -> "EjectionWatch":
        from vipwire.proxy.ejections.watch import EjectionWatch  # noqa: PLC0415  # the first sync is over

        return EjectionWatch(self._engine, self._metrics, tell, direct=self._direct)

    def close(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.close()


def _told(port: ServicePortName, key: EndpointKey, until: float) -> EjectedEndpoint:
    name = port.service
    return EjectedEndpoint(
        name.namespace, name.name, port.port, int(key.protocol), format_address(key.address), key.port, until
    )
