"""Removes the relay and the conntrack entries that userspace mode left behind.

The relay ends with its last connection, and still accepts connections that began before its rules went. A UDP flow
keeps its translation while its client sends. The next mode's first sync deletes such flows, but a datagram may create
one again until userspace mode's rules are gone.
"""

import contextlib
import time
from collections.abc import Collection
from typing import Final

from vipwire.errors import UnsupportedError
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.netlink.conntrack import Flow
from vipwire.linux.netlink.socket import DumpInterruptedError
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.spec import Remains, RemovalResult
from vipwire.relay.client import Remote, relay_name
from vipwire.relay.messages import RelaySettings

_ANYWHERE: Final = {Family.IPV4: Address(bytes(4)), Family.IPV6: Address(bytes(16))}


RELAY_SECONDS: Final = 2.0
"""Seconds for which a relay listens after its rules have gone, so that handshakes complete."""


class RelayRemains(Remains):
    """The relay of one family, for `proxy.handover.leftovers`."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._retires: float | None = None

    def remove_after_rules(self) -> RemovalResult:
        """Retire the relay: no rule leads to it any more."""
        remote = Remote(relay_name(self._family), RelaySettings((0, 0), 0.0), starts=False)
        try:
            if self._retires is not None and time.monotonic() >= self._retires:
                delete_relayed_flows(self._family, remote)
                return RemovalResult(removed=("the relay accepts no more connections",) if remote.retire() else ())
            if not remote.read_listeners():
                return RemovalResult()
            self._retires = self._retires or time.monotonic() + RELAY_SECONDS
            return RemovalResult(waiting=("the relay finishes handshakes",))
        finally:
            remote.close()


def delete_relayed_flows(family: Family, remote: Remote) -> None:
    """Delete a family's UDP flows to the relay: new rules then decide about the next datagram.

    Without access to connection tracking the flows stay; the caller has logged a warning. Raise OSError if the
    relay is lost or the kernel refuses.
    """
    places = remote.list_places(remote.read_listeners(), Protocol.UDP)
    if not places:
        return
    found: list[Flow] = []
    with contextlib.suppress(UnsupportedError), FlowTable() as table:
        with contextlib.suppress(DumpInterruptedError):  # an interrupted dump may miss some flows, which time out
            found.extend(flow for flow in table.list_flows(family, Protocol.UDP) if is_relayed_here(flow, places))
        table.delete(found)


def is_relayed_here(flow: Flow, places: Collection[tuple[Address, int]]) -> bool:
    """Report whether one of these places answers a flow. Pure."""
    anywhere = _ANYWHERE[Family.IPV4 if len(flow.reply_source) == 4 else Family.IPV6]
    return any((address, flow.reply_source_port) in places for address in (flow.reply_source, anywhere))
