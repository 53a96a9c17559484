"""Listens to conntrack for endpoints that do not answer, while a Service asks for ejection.

Without such a Service no socket is open, and the kernel makes no events. With one, a socket filter passes one message
for each connection to a watched endpoint. Messages are read in batches, so that a storm of connections does not block
the loop.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from vipwire.errors import DecodeError
from vipwire.linux.conntrack.attempts import Attempts
from vipwire.linux.host.settings import read_sysctl
from vipwire.linux.netlink.conntrack import (
    CT_GET,
    GROUP_DESTROY,
    GROUP_NEW,
    STATUS_SEEN_REPLY,
    Flow,
    FlowDecoder,
    decode,
    decode_event,
    encode_lookup,
)
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.linux.netlink.socket_filter import pass_new_and_ended_flows
from vipwire.logging import log
from vipwire.plan.ejection import EndpointKey, Tallies
from vipwire.proxy_daemon.serve.metrics import Metrics

_PAUSE: Final = 0.05
"""Seconds between two batches."""
_BATCH: Final = 4096
_LARGEST: Final = 4096
"""Buffer for one event in bytes; an event has a few hundred."""
_EVENTS: Final = "net/netfilter/nf_conntrack_events"


class Watching(Protocol):
    """The part of an engine that names the endpoints to watch."""

    @property
    def watch_version(self) -> int: ...

    def list_watched_endpoints(self) -> frozenset[EndpointKey]: ...


class EjectionWatch:
    """Reports the results of new connections. Call its methods in its event loop only."""

    def __init__(
        self,
        engine: Watching,
        metrics: Metrics,
        tell: Callable[[Tallies], None],
        make_socket: Callable[[], NetlinkSocket] = lambda: NetlinkSocket(NETLINK_NETFILTER),
        *,
        direct: bool = False,
    ) -> None:
        self._engine, self._metrics, self._tell, self._make_socket = engine, metrics, tell, make_socket
        self._attempts, self._decoder = Attempts(direct), FlowDecoder()
        self._socket: NetlinkSocket | None = None
        self._asker: NetlinkSocket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0
        self._refused = False

    def watch_named_endpoints(self) -> None:
        """Listen to the endpoints that the engine now names, if they changed."""
        if (version := self._engine.watch_version) == self._seen or self._refused:
            return
        self._seen = version
        watched = self._engine.list_watched_endpoints()
        self._attempts.watch(watched)
        if not watched:
            self.close()
            return
        try:
            fresh = self._socket or self._make_socket()
            fresh.filter(
                pass_new_and_ended_flows({key.address for key in watched}, {key.protocol for key in watched})
            )
            if self._socket is None:
                self._socket = fresh
                self._open_socket()
        except OSError as error:
            self._report_refusal(error)

    def _report_refusal(self, error: OSError) -> None:
        self._refused = True
        self.close()
        log.warning("cannot receive conntrack events; ejecting no endpoint", error=error)

    def _open_socket(self) -> None:
        assert self._socket is not None  # noqa: S101 - it was made just now
        self._asker = self._make_socket()
        for group in (GROUP_NEW, GROUP_DESTROY):
            self._socket.join(group)
        if not _kernel_has_events():
            why = "net.netfilter.nf_conntrack_events is 0: the kernel sends no connection events"
            log.warning("cannot eject endpoints", reason=why, remedy="sysctl -w net.netfilter.nf_conntrack_events=1")
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read_events)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._asker is not None:
            self._asker.close()
            self._asker = None
        self._attempts.watch(())

    def _read_events(self) -> None:
        """Read a batch; read again after a pause, or when a connection has waited too long."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        busy = self._handle_events(self._socket, now)
        if busy is None:
            return
        if tallies := self._attempts.take_outcomes(now, self._look_up_flow):
            self._tell(tallies)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if busy:
            loop.remove_reader(self._socket.fileno())
            self._timer = loop.call_later(_PAUSE, self._resume_reading)
        elif (due := self._attempts.due()) is not None:
            self._timer = loop.call_later(max(0.0, due - now), self._read_events)

    def _resume_reading(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read_events)
            self._read_events()

    def _handle_events(self, source: NetlinkSocket, now: float) -> bool | None:
        """Read the waiting messages; report whether any came. None: the socket failed."""
        count = 0
        try:
            for message in islice(source.read_pending_messages(_LARGEST), _BATCH):
                count += 1
                event = decode_event(message, self._decoder.decode)
                if event is not None:
                    self._attempts.see(event, now)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                self._report_refusal(error)
                return None
            self._metrics.conntrack_events_lost_total.inc()
            return True
        except DecodeError as error:
            log.detail(2, "cannot decode a conntrack event", error=error)
        return count > 0

    def _look_up_flow(self, flow: Flow) -> bool | None:
        assert self._asker is not None  # noqa: S101 - it is as old as the listening socket
        try:
            (answer,) = self._asker.request(CT_GET, encode_lookup(flow))
            found = decode(answer.payload)
        except (OSError, ValueError, DecodeError):
            return None
        return bool(found.status & STATUS_SEEN_REPLY) if found.identifier == flow.identifier else None


def _kernel_has_events() -> bool:
    try:
        return read_sysctl(_EVENTS) != 0
    except (OSError, ValueError):  # a kernel without the setting, or no /proc
        return True
