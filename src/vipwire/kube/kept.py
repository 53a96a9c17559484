"""Runs a source of objects again whenever it fails: no object and no file ends what reads them."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol

from vipwire.kube.contact import Health
from vipwire.process.supervision import Supervisor
from vipwire.state.event import EventOf, K, T


class _Source(Protocol[K, T]):  # type: ignore[misc]  # they stand in an argument's argument
    def health(self) -> tuple[Health, ...]: ...

    def run(self, emit: Callable[[EventOf[K, T]], None]) -> Awaitable[None]: ...


class KeptSource(Generic[K, T]):
    """A source that a failure does not end: the failure is told, as its health too, and the source runs again."""

    def __init__(self, source: _Source[K, T]) -> None:
        self._source, self._supervisor = source, Supervisor()

    def health(self) -> tuple[Health, ...]:
        """Return how the source is, and how its running is once that has failed."""
        failures = self._supervisor.failures["source"]
        own = Health("source", error=self._supervisor.troubles().get("source", ""), total=failures)
        return (*self._source.health(), *([own] if failures else []))

    async def run(self, emit: Callable[[EventOf[K, T]], None]) -> None:
        """Emit events until cancelled."""
        await self._supervisor.keep("source", lambda _begun: self._source.run(emit))
