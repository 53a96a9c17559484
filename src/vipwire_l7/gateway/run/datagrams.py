"""Serves UDPRoutes beside HAProxy: tells a relay what to listen for, and follows the plan.

It is the relay of userspace mode, as a process of its own under a name of its own: neither planning nor a restart of
the gateway holds datagrams up. Like HAProxy it outlives a gateway that is killed, and the next one takes it over.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vipwire.errors import CommitError
from vipwire.logging import log
from vipwire.relay.client import Remote
from vipwire.relay.messages import RelayCounters, RelaySettings
from vipwire_l7.gateway.run.relayed import Relayed, relayed
from vipwire_l7.run.controller import Controller

_EVERY: Final = 2.0
"""Seconds after which it is looked at though nothing has changed: whether it lives, and what it has counted."""
_NOTES_EVERY: Final = 30.0
_LABELS: Final = ("listener", "namespace", "service", "port", "pod", "endpoint")
_IPV6: Final = Path("/proc/net/if_inet6")


def datagram_relay_name(folder: Path) -> str:
    """Name the socket of the relay of a gateway that has a folder."""
    return f"vipwire-gateway-{os.geteuid()}-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


class DatagramCounters(Collector):
    """What the relay has counted, as it was asked last."""

    def __init__(self) -> None:
        self._counted = RelayCounters({}, {}, 0)
        self._relayed: Mapping[str, Relayed] = {}

    def update(self, counted: RelayCounters, listeners: Mapping[str, Relayed]) -> None:
        """Take new numbers."""
        self._counted, self._relayed = counted, listeners

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        sessions = CounterMetricFamily("vipwire_gateway_udp_sessions", "Clients that endpoints got", labels=_LABELS)
        failed = CounterMetricFamily("vipwire_gateway_udp_failures", "Clients that endpoints refused", labels=_LABELS)
        sent = CounterMetricFamily("vipwire_gateway_udp_received_bytes", "Bytes from clients", labels=_LABELS)
        received = CounterMetricFamily("vipwire_gateway_udp_sent_bytes", "Bytes to clients", labels=_LABELS)
        current = GaugeMetricFamily("vipwire_gateway_udp_current_sessions", "Clients that are there", labels=_LABELS)
        for name, endpoints in self._counted.listeners.items():
            known = self._relayed[name].labels if name in self._relayed else {}
            for each in endpoints:
                if each.place in known:
                    labels = (name, *known[each.place])
                    sessions.add_metric(labels, each.connections)
                    failed.add_metric(labels, each.failed)
                    sent.add_metric(labels, each.sent)
                    received.add_metric(labels, each.received)
                    current.add_metric(labels, each.open)
        dropped = CounterMetricFamily(
            "vipwire_gateway_udp_dropped", "Datagrams dropped, by reason", labels=("reason",)
        )
        for reason, count in self._counted.refused.items():
            dropped.add_metric((reason,), count)
        return sessions, failed, sent, received, current, dropped


class DatagramRelay:
    """Keeps the relay at what the plan says."""

    def __init__(self, folder: Path, controller: Controller, registry: CollectorRegistry, timeout: float) -> None:
        """`timeout`: seconds of silence after which a client is forgotten."""
        self._controller = controller
        self._remote = Remote(datagram_relay_name(folder), RelaySettings((0, 0), timeout), starts=True)
        self._counters = DatagramCounters()
        registry.register(self._counters)
        self._ended = False
        self._noted = float("-inf")

    async def run(self) -> None:
        """Follow until cancelled. Whatever an earlier gateway has left there goes on until there is a plan."""
        updated = self._controller.updated
        await updated.wait()
        while True:
            updated.clear()
            desired = self._controller.desired
            wanted = relayed(desired.datagrams, desired.servers, ipv6=_IPV6.exists())
            for name, why in (await asyncio.to_thread(self._follow, wanted)).items():
                log.warning("cannot listen for datagrams", listener=name, error=why)
                self._controller.desired.exclude_frontend(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await updated.wait()

    async def stop(self, *, goes_on: bool) -> None:
        """End the relay, or leave it to the next gateway."""
        with suppress(OSError):
            await asyncio.to_thread(self._remote.close if goes_on else self._remote.retire)

    def _follow(self, wanted: Mapping[str, Relayed]) -> Mapping[str, str]:
        """Tell the relay what has changed; return which listeners cannot be, and why. Raise OSError if it is lost."""
        if not wanted:
            if not self._ended:
                self._remote.retire()
                self._counters.update(RelayCounters({}, {}, 0), {})
                self._ended = True
            return {}
        self._ended = False
        there = self._remote.listeners()
        self._remote.remove(there.keys() - wanted.keys())
        failed: dict[str, str] = {}
        for name, each in wanted.items():
            if there.get(name) != each.listener:
                try:
                    self._remote.put({name: each.listener}, there)
                except CommitError as error:
                    failed[name] = str(error)
        self._counters.update(self._remote.counters(), wanted)
        if time.monotonic() - self._noted >= _NOTES_EVERY:
            self._noted = time.monotonic()
            for text, times in self._remote.notes():
                log.warning(text, times=times)
        return failed
