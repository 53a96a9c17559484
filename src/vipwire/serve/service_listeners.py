"""The health-check servers of Services: opens and closes their ports, and keeps trying where a port is taken.

A port that cannot be bound is reported once, as a `Problem` of the Service, and tried again at every call of `update`
(the loop calls it with every sync): another process may hold the port, and that is no reason to stop proxying.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from aiohttp import web

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.serve.listen import listen
from vipwire.serve.service_health import ServiceHealthCheck, port_changes

_GRACE_SECONDS: Final = 1.0  # a check that is being answered must not hold up a sync


@dataclass(frozen=True, slots=True)
class _Listening:
    service: ObjectName
    runner: web.ServerRunner


class ServiceListeners:
    """Serves the desired checks. Use as an async context manager; leaving it closes every port.

    `addresses` are the IP addresses to bind, the wildcard for all; `proxy_healthy` is asked at every request.
    """

    def __init__(self, proxy_healthy: Callable[[], bool], addresses: tuple[str, ...] = ("0.0.0.0",)) -> None:  # noqa: S104
        self._proxy_healthy = proxy_healthy
        self._addresses = addresses
        self._listening: dict[int, _Listening] = {}
        self._desired: Mapping[int, ServiceHealthCheck] = {}
        self._reported: set[tuple[int, ObjectName]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.update({})

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are served now."""
        return tuple(sorted(self._listening))

    async def update(self, desired: Mapping[int, ServiceHealthCheck]) -> tuple[Problem, ...]:
        """Serve these checks, by port, and no others; return what could not be served, each once."""
        self._desired = dict(desired)
        changes = port_changes({port: item.service for port, item in self._listening.items()}, desired)
        for port in changes.close:
            await self._listening.pop(port).runner.cleanup()
        failed = [(port, reason) for port in changes.open if (reason := await self._open(port))]
        found = {(port, desired[port].service) for port, _ in failed}
        new, self._reported = found - self._reported, found
        return tuple(
            Problem("Service", desired[port].service, "spec.healthCheckNodePort", reason)
            for port, reason in failed
            if (port, desired[port].service) in new
        )

    async def _open(self, port: int) -> str:
        """Open one port at every address; give the reason where that fails, and leave nothing half open."""
        service = self._desired[port].service
        runner = web.ServerRunner(web.Server(self._handler(port), access_log=None), shutdown_timeout=_GRACE_SECONDS)
        await runner.setup()
        try:
            for address in self._addresses:
                await web.SockSite(runner, listen(address, port)).start()
        except OSError as error:
            await runner.cleanup()
            return f"cannot listen on port {port}: {error.strerror or error}"
        self._listening[port] = _Listening(service, runner)
        return ""

    def _handler(self, port: int) -> Callable[[web.BaseRequest], Awaitable[web.Response]]:
        async def handle(_request: web.BaseRequest) -> web.Response:
            answer = self._desired[port].answer(proxy_healthy=self._proxy_healthy())
            return web.Response(status=answer.status, body=answer.body.encode(), headers=answer.headers)

        return handle
