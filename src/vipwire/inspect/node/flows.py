"""Connections to frontends from connection tracking: those of one client, and new and ended ones as events.

Rules of a Service meet only the first packet of a connection; connection tracking holds the chosen endpoint. This
works for every mode that translates addresses in the kernel.
"""

import errno
import select
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Self

from vipwire.errors import DecodeError, UnsupportedError
from vipwire.inspect.node.situation import Situation
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.netlink.conntrack import GROUP_DESTROY, GROUP_NEW, Flow, FlowEvent, decode_event
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkSocket
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol, family_of
from vipwire.plan.plan import FrontendKey, RangeFrontend
from vipwire.plan.resolve import Packet


def read_flows_of(packet: Packet) -> tuple[Flow, ...]:
    """Find tracked connections from a packet's client to its destination. Raise UnsupportedError without rights."""
    found: list[Flow] = []
    with FlowTable() as tracked, suppress(DumpInterruptedError):
        found.extend(
            flow
            for flow in tracked.list_flows(family_of(packet.destination), packet.protocol, packet.port)
            if (flow.source, flow.destination) == (packet.source, packet.destination)
        )
    return tuple(found)


class Frontends:
    """Finds the Service port of a connection by its destination."""

    def __init__(
        self,
        names: Mapping[FrontendKey, ServicePortName],
        own: frozenset[Address],
        ranges: Iterable[RangeFrontend] = (),
    ) -> None:
        self._names, self._own = names, own
        self._ranges: dict[tuple[Address, Protocol], list[RangeFrontend]] = {}
        for wide in ranges:
            self._ranges.setdefault((wide.key.address, wide.key.protocol), []).append(wide)

    @classmethod
    def of(cls, situation: Situation) -> Self:
        names = {key: each.port_name for side in situation.sides for key, each in side.plan.frontends.items()}
        wide = [each for side in situation.sides for plan in side.plans.values() for each in plan.ranges]
        return cls(names, situation.own_addresses, wide)

    def name(self, flow: Flow) -> ServicePortName | None:
        """Return the Service port of a connection's destination; None if the destination is not a frontend."""
        try:
            protocol = Protocol(flow.protocol)
        except ValueError:
            return None
        found = self._names.get(FrontendKey(flow.destination, protocol, flow.destination_port))
        if found is None and flow.destination in self._own:
            found = self._names.get(FrontendKey(None, protocol, flow.destination_port))
        for wide in self._ranges.get((flow.destination, protocol), ()) if found is None else ():
            if wide.key.first <= flow.destination_port <= wide.key.last:
                return wide.frontend.port_name
        return found


class FlowNotification(NamedTuple):
    """A connection began or ended at `when` (seconds since the epoch). `lost`: the kernel dropped notifications."""

    when: float
    event: FlowEvent | None
    lost: bool = False


class FlowEvents:
    """New and ended connections of the current network namespace. Raise UnsupportedError if the kernel refuses."""

    def __init__(self) -> None:
        try:
            self._socket = NetlinkSocket(NETLINK_NETFILTER)
            self._socket.join(GROUP_NEW)
            self._socket.join(GROUP_DESTROY)
        except PermissionError as error:
            raise UnsupportedError(
                "the kernel sends connection events only to root or with the capability CAP_NET_ADMIN; `vipwire "
                "status`, `plan`, `explain` and `check` work without"
            ) from error
        except OSError as error:
            raise UnsupportedError(
                "the kernel sends no connection events: load the module nf_conntrack_netlink, in a kernel with "
                f"CONFIG_NF_CONNTRACK_EVENTS ({error.strerror})"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def yield_until(self, deadline: float | None) -> Iterator[FlowNotification]:
        """Yield notifications until the deadline (time.monotonic); forever without one."""
        while deadline is None or time.monotonic() < deadline:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if select.select([self._socket], [], [], left)[0]:
                yield from self._read_pending(time.time())

    def _read_pending(self, now: float) -> Iterator[FlowNotification]:
        try:
            for message in self._socket.read_pending_messages():
                with suppress(DecodeError):  # a protocol without ports, or a family other than IPv4 and IPv6
                    if event := decode_event(message):
                        yield FlowNotification(now, event)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            yield FlowNotification(now, None, lost=True)


def list_tracked_flows() -> Iterator[Flow]:
    """Yield every tracked connection of both families. A few may be missing if the table changes meanwhile."""
    with FlowTable() as table:
        for family in Family:
            with suppress(DumpInterruptedError):
                yield from table.list_flows(family)
