"""Serves UDPRoutes by a relay beside HAProxy, and updates the relay after each plan.

The relay is that of userspace mode, as a separate process: neither planning nor a restart of the gateway delays
datagrams. Like HAProxy, the relay survives a gateway that is killed, and the next gateway takes it over.
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
from vipwire_l7.gateway.run.relayed import RelayListener, build_relay_listeners
from vipwire_l7.run.controller import Controller

_EVERY: Final = 2.0
"""Seconds between two checks of the relay without a change of the plan: whether it runs, and its counters."""
_NOTES_EVERY: Final = 30.0
_LABELS: Final = ("listener", "namespace", "service", "port", "pod", "endpoint")
_IPV6: Final = Path("/proc/net/if_inet6")


def name_datagram_relay(folder: Path) -> str:
    return f"vipwire-gateway-{os.geteuid()}-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


class DatagramCounters(Collector):
    """The relay's counters, as of the last answer."""

    def __init__(self) -> None:
        self._counted = RelayCounters({}, {}, 0)
        self._relayed: Mapping[str, RelayListener] = {}

    def update(self, counted: RelayCounters, listeners: Mapping[str, RelayListener]) -> None:
        self._counted, self._relayed = counted, listeners

    def collect(self) -> Iterable[Metric]:
        sessions = CounterMetricFamily(
            "vipwire_gateway_udp_sessions", "Clients assigned to endpoints", labels=_LABELS
        )
        failed = CounterMetricFamily("vipwire_gateway_udp_failures", "Clients that endpoints refused", labels=_LABELS)
        sent = CounterMetricFamily("vipwire_gateway_udp_received_bytes", "Bytes from clients", labels=_LABELS)
        received = CounterMetricFamily("vipwire_gateway_udp_sent_bytes", "Bytes to clients", labels=_LABELS)
        current = GaugeMetricFamily("vipwire_gateway_udp_current_sessions", "Current clients", labels=_LABELS)
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
    """Updates the relay to the plan's UDP listeners."""

    def __init__(self, folder: Path, controller: Controller, registry: CollectorRegistry, timeout: float) -> None:
        """`timeout`: seconds without a datagram after which the relay forgets a client."""
        self._controller = controller
        self._remote = Remote(name_datagram_relay(folder), RelaySettings((0, 0), timeout), starts=True)
        self._counters = DatagramCounters()
        registry.register(self._counters)
        self._ended = False
        self._noted = float("-inf")

    async def run(self) -> None:
        """Follow the plan until cancelled. Before the first plan, the listeners of an earlier gateway stay."""
        updated = self._controller.updated
        await updated.wait()
        while True:
            updated.clear()
            desired = self._controller.desired
            wanted = build_relay_listeners(desired.datagrams, desired.choose_servers, ipv6=_IPV6.exists())
            for name, why in (await asyncio.to_thread(self._update_relay, wanted)).items():
                log.warning("cannot listen on a UDP port", listener=name, error=why)
                self._controller.desired.exclude_frontend(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY if wanted else None):
                    await updated.wait()

    async def stop(self, *, goes_on: bool) -> None:
        with suppress(OSError):
            await asyncio.to_thread(self._remote.close if goes_on else self._remote.retire)

    def _update_relay(self, wanted: Mapping[str, RelayListener]) -> Mapping[str, str]:
        """Send the relay the changes; return the listeners that failed, with the reason.

        Raise OSError if the relay is lost.
        """
        if not wanted:
            if not self._ended:
                self._remote.retire()
                self._counters.update(RelayCounters({}, {}, 0), {})
                self._ended = True
            return {}
        self._ended = False
        there = self._remote.read_listeners()
        self._remote.remove(there.keys() - wanted.keys())
        failed: dict[str, str] = {}
        for name, each in wanted.items():
            if there.get(name) != each.listener:
                try:
                    self._remote.put({name: each.listener}, there)
                except CommitError as error:
                    failed[name] = str(error)
        self._counters.update(self._remote.read_counters(), wanted)
        if time.monotonic() - self._noted >= _NOTES_EVERY:
            self._noted = time.monotonic()
            for text, times in self._remote.read_notes():
                log.warning(text, times=times)
        return failed
