"""The work after a sync: delete stale flows, open and close health check node ports, follow ejections.

Also listens to changes of other programs.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self

from vipwire.linux.host.addresses import AddressWatch
from vipwire.logging import log
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import format_address
from vipwire.model.problem import Problem
from vipwire.modes.spec import ModeSpec
from vipwire.plan.ejection import EndpointKey, Tallies
from vipwire.plan.plan import HealthCheck, join_health_checks
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.service_health import ServiceHealthCheck, ServiceListeners
from vipwire.proxy_daemon.start.record import EjectedEndpoint
from vipwire.proxy_daemon.sync.engine import Engine, Line, Outcome
from vipwire.proxy_daemon.sync.report import Reporter
from vipwire.reconcile.backend import ChangeListener, Listening

if TYPE_CHECKING:
    from vipwire.proxy_daemon.sync.flow_keeper import FlowKeeper


class StaleFlowDeleter:
    """Deletes stale flows from the first sync on. Imports its modules then, which keeps the start short."""

    def __init__(self, addresses: AddressWatch, metrics: Metrics) -> None:
        self._addresses, self._metrics = addresses, metrics
        self._keeper: FlowKeeper | None = None

    def delete_stale(self, line: Line, outcome: Outcome) -> None:
        if self._keeper is None:
            from vipwire.proxy_daemon.sync.flow_keeper import FlowKeeper  # noqa: PLC0415  # the first sync is over

            self._keeper = FlowKeeper(self._addresses, self._metrics)
        self._keeper.delete_stale(line, outcome)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()


class ForeignChanges:
    """Hears of other programs' changes of the kernel; all families share the listener.

    `alarm` gets the name of the program, "" for unknown.
    """

    def __init__(self, alarm: Callable[[str], None]) -> None:
        self._alarm = alarm
        self._listener: ChangeListener | None = None
        self._lines: list[Line] = []

    def listen(self, line: Line) -> None:
        """Listen after a family's first sync. The family keeps its regular checks unless the kernel tells all."""
        if not isinstance(line.backend, Listening):
            return
        try:
            listener = line.backend.listen()
        except OSError as error:
            log.detail(2, "cannot hear of other programs' changes; checking every sync period", error=error)
            return
        if listener is None:
            return
        if line.backend.hears_all:
            line.pacer.rely(time.monotonic())
            self._lines.append(line)
        if self._listener is None:
            self._listener = listener
            asyncio.get_running_loop().add_reader(listener.fileno(), self.read_notifications)

    def read_notifications(self) -> None:
        """Raise an alarm if another program has made a change."""
        if self._listener is None:
            return
        heard = self._listener.heard()
        if not self._listener.listening:
            log.info("another program made a very large change; checking the kernel every sync period from now on")
            self.close()
        if heard is not None:
            program, process = heard
            self._alarm(f"{program} (pid {process})" if process else "")

    def close(self) -> None:
        """Stop listening; regular checks follow."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener = None
        for line in self._lines:
            line.pacer.told = False


class HealthPorts:
    """Serves the healthCheckNodePorts of the plans; leaving the context closes them."""

    def __init__(self, engine: Engine, listeners: ServiceListeners) -> None:
        self._engine, self._listeners = engine, listeners
        self._ports: dict[ObjectName, int] = {}
        self._claims: dict[int, dict[ObjectName, ServiceHealthCheck]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._listeners.close()

    async def move(self) -> tuple[Problem, ...]:
        """Serve at the addresses of now; return new failures."""
        return await self._listeners.move()

    @property
    def complete(self) -> bool:
        """Whether every wanted port is open. Ports that another process holds are tried again."""
        return self._listeners.complete

    async def update(self, names: Iterable[ObjectName]) -> tuple[Problem, ...]:
        """Open and close ports for the changed plans. Return new failures; failed ports are tried again."""
        ports: set[int] = set()
        for name in names:
            check = self._choose_health_check(name)
            if check is not None or name in self._ports:
                ports.update(self._claim_port(name, check))
        if not ports and self._listeners.complete:
            return ()
        return await self._listeners.update({port: self._choose_check(port) for port in ports})

    def _choose_health_check(self, name: ObjectName) -> HealthCheck | None:
        plans = [line.plans.get(name) for line in self._engine.lines]
        asking = [plan for plan in plans if plan is not None and plan.health_check is not None]
        return join_health_checks(asking) if asking else None

    def _claim_port(self, name: ObjectName, check: HealthCheck | None) -> Iterator[int]:
        """Record a Service's check; yield the affected ports."""
        before = self._ports.get(name)
        if before is not None and (check is None or check.port != before):
            del self._ports[name], self._claims[before][name]
            yield before
        if check is not None:
            self._ports[name] = check.port
            self._claims.setdefault(check.port, {})[name] = ServiceHealthCheck(name, check.local_endpoints)
            yield check.port

    def _choose_check(self, port: int) -> ServiceHealthCheck | None:
        """Choose the check that answers at a port: if several Services ask, the latest."""
        return next(reversed(self._claims[port].values()), None)


if TYPE_CHECKING:
    from vipwire.proxy_daemon.sync.ejection_watch import EjectionWatch


class EjectionReporter:
    """Follows ejections after each sync. `spec` is the mode's: conntrack sees no connections of a relay.

    Calls `changed` when `current`, the list of ejected endpoints, changes.
    """

    def __init__(
        self, engine: Engine, metrics: Metrics, reporter: Reporter, changed: Callable[[], None], spec: ModeSpec
    ) -> None:
        self._engine, self._metrics, self._reporter, self._changed = engine, metrics, reporter, changed
        self._watch: EjectionWatch | None = None
        self._watches, self._direct = not spec.relays, spec.direct
        self.current: tuple[EjectedEndpoint, ...] = ()
        metrics.ejected_endpoints.set_function(lambda: len(self.current))

    def watch_and_report(self, tell: Callable[[Tallies], None], now: float) -> None:
        """Start or stop watching, and report ejections. `tell` receives results of connections."""
        if self._watches:
            self._watch = self._watch or self._start_watch(tell)
            self._watch.watch_named_endpoints()
        notes = self._engine.take_ejection_notes()
        for note in notes:
            self._reporter.report_ejection(note, now)
        ejected = self._engine.list_ejections() if notes or self.current else {}
        if notes or len(ejected) != len(self.current):
            since = now - time.monotonic()
            self.current = tuple(
                _build_ejected_endpoint(port, key, until + since) for (port, key), until in ejected.items()
            )
            self._changed()

    def _start_watch(self, tell: Callable[[Tallies], None]) -> "EjectionWatch":
        from vipwire.proxy_daemon.sync.ejection_watch import EjectionWatch  # noqa: PLC0415  # the first sync is over

        return EjectionWatch(self._engine, self._metrics, tell, direct=self._direct)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


def _build_ejected_endpoint(port: ServicePortName, key: EndpointKey, until: float) -> EjectedEndpoint:
    name = port.service
    return EjectedEndpoint(
        name.namespace, name.name, port.port, int(key.protocol), format_address(key.address), key.port, until
    )
