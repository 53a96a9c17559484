"""Serves healthCheckNodePorts of LoadBalancer Services with `externalTrafficPolicy: Local`.

A cloud's load balancer asks every node for its local endpoints. Only ready local endpoints count, terminating ones do
not, so that a draining node leaves the load balancer first. An unhealthy proxy answers 503 regardless of endpoints.
Source: KEP-1669 and kube-proxy's healthcheck package, including the body's tabs.

A port that cannot be bound is reported once as a `Problem` of the Service, and tried again at every `update` (after
every sync), because another process may hold the port.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Self

from vipwire.http_server.exchange import Reply
from vipwire.http_server.pages import Request, Site, serve_pages
from vipwire.http_server.room import Room
from vipwire.http_server.server import Serving
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.model.value import Value
from vipwire.proxy_daemon.serve.server import open_listening_socket

WEIGHT_HEADER: Final = "X-Load-Balancing-Endpoint-Weight"
"""Header with the number of endpoints on this node, for load balancers that weigh nodes."""


class ServiceHealthCheck(Value, frozen=True):
    """A Service with a healthCheckNodePort and the number of its ready endpoints on this node."""

    service: ObjectName
    local_endpoints: int

    def answer(self, *, proxy_healthy: bool) -> Reply:
        body = {
            "service": {"namespace": self.service.namespace, "name": self.service.name},
            "localEndpoints": self.local_endpoints,
            "serviceProxyHealthy": proxy_healthy,
        }
        headers = {
            "Content-Type": "application/json",
            "X-Content-Type-Options": "nosniff",
            WEIGHT_HEADER: str(self.local_endpoints),
        }
        status = 200 if self.local_endpoints and proxy_healthy else 503
        return Reply(json.dumps(body, indent="\t"), status, headers)


class PortChanges(Value, frozen=True):
    """The ports to close and to open for the desired checks."""

    close: tuple[int, ...]
    open: tuple[int, ...]


def compare_ports(listening: Mapping[int, ObjectName], desired: Mapping[int, ServiceHealthCheck]) -> PortChanges:
    """Compare the served ports and their Services with the desired ones.

    A port that passes to another Service is closed and opened, so that a kept-alive connection for the old Service
    gets no answer of the new one.
    """
    gone = {port for port, name in listening.items() if port not in desired or desired[port].service != name}
    missing = {port for port in desired if port not in listening or port in gone}
    return PortChanges(tuple(sorted(gone)), tuple(sorted(missing)))


_GRACE_SECONDS: Final = 1.0  # a running check must not delay a sync


class _Listening(Value, frozen=True):
    service: ObjectName
    serving: dict[str, Serving]


class ServiceListeners:
    """Serves the desired checks. Use as an async context manager; leaving it closes every port.

    `read_addresses` returns the IP addresses to bind now, the wildcard for all; each request calls `proxy_healthy`.
    """

    def __init__(self, proxy_healthy: Callable[[], bool], read_addresses: Callable[[], tuple[str, ...]]) -> None:
        self._proxy_healthy = proxy_healthy
        self._read_addresses = read_addresses
        self._addresses = read_addresses()
        self._listening: dict[int, _Listening] = {}
        self._desired: dict[int, ServiceHealthCheck] = {}
        self._failing: dict[int, ObjectName] = {}
        self._room = Room()  # shared by all ports: a cluster may have thousands
        self._one_at_a_time = asyncio.Lock()  # concurrent updates would open a port twice

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.update(dict.fromkeys(self._desired))

    @property
    def complete(self) -> bool:
        return not self._failing

    async def update(self, changes: Mapping[int, ServiceHealthCheck | None]) -> tuple[Problem, ...]:
        """Change the served checks, by port; None closes a port. All other ports stay.

        Failed ports are tried again at the next call. Return new failures, each once.
        """
        if not changes and self.complete:
            return ()
        async with self._one_at_a_time:
            for port, check in changes.items():
                if check is None:
                    self._desired.pop(port, None)
                else:
                    self._desired[port] = check
            return await self._open_and_close(changes.keys() | self._failing.keys())

    async def move(self) -> tuple[Problem, ...]:
        """Serve at the addresses of now; the listeners at those that stay go on. Return new failures."""
        async with self._one_at_a_time:
            before, self._addresses = self._addresses, self._read_addresses()
            if before == self._addresses:
                return ()
            for each in self._listening.values():
                gone = each.serving.keys() - set(self._addresses)
                await _close_servers([each.serving.pop(address) for address in gone])
            return await self._open_and_close(self._desired.keys())

    async def _open_and_close(self, ports: Collection[int]) -> tuple[Problem, ...]:
        """Open and close some ports as desired; return new failures."""
        desired = {port: self._desired[port] for port in ports if port in self._desired}
        todo = compare_ports(
            {port: self._listening[port].service for port in ports if port in self._listening}, desired
        )
        for port in todo.close:
            await _close_servers(self._listening.pop(port).serving.values())
        failed = {port: reason for port in desired if (reason := await self._open_port(port))}
        before, self._failing = self._failing, {port: desired[port].service for port in failed}
        return tuple(
            Problem("Service", desired[port].service, "spec.healthCheckNodePort", reason)
            for port, reason in failed.items()
            if before.get(port) != desired[port].service
        )

    async def _open_port(self, port: int) -> str:
        """Open one port at the missing addresses; on failure close these and return the reason, otherwise ""."""
        there = self._listening.get(port) or _Listening(self._desired[port].service, {})
        opened: dict[str, Serving] = {}
        try:
            for address in self._addresses:
                if address not in there.serving:
                    opened[address] = serve_pages(
                        open_listening_socket(address, port), self._build_handler(port), self._room
                    )
        except OSError as error:
            await _close_servers(opened.values())
            return f"cannot listen on port {port}: {error.strerror or error}"
        there.serving.update(opened)
        self._listening[port] = there
        return ""

    def _build_handler(self, port: int) -> Site:
        async def handle(_request: Request) -> Reply:
            return self._desired[port].answer(proxy_healthy=self._proxy_healthy())

        return handle


async def _close_servers(serving: Iterable[Serving]) -> None:
    for each in serving:
        await each.close(_GRACE_SECONDS)
