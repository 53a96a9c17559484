"""Removes what userspace mode left beside its rules: tells the relay to retire, deletes entries in conntrack.

The relay ends with the last connection that it relays. It still takes connections that came before its rules went.

A flow keeps the translation of its first datagram as long as its client sends. The first sync of another mode has
such flows deleted, but until the rules of userspace mode are gone a datagram may lead to the relay once more.
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
from vipwire.modes.spec import RemovalResult
from vipwire.modes.xtables.save import ChainName
from vipwire.relay.client import Remote, relay_name
from vipwire.relay.messages import RelaySettings

_ANYWHERE: Final = {Family.IPV4: Address(bytes(4)), Family.IPV6: Address(bytes(16))}


RELAY_SECONDS: Final = 2.0
"""How long a relay listens after its rules have gone: a handshake that had begun ends well."""


class RelayRemains:
    """The relay of one family, for `proxy.handover.leftovers`."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._retires: float | None = None

    def before_rules(self) -> RemovalResult:
        """Wait: the rules still lead to the relay."""
        return RemovalResult()

    def held(self) -> frozenset[ChainName]:
        """Return nothing: this mode holds no chain."""
        return frozenset()

    def after_rules(self) -> RemovalResult:
        """Tell the relay to retire, now that no rule leads to it."""
        remote = Remote(relay_name(self._family), RelaySettings((0, 0), 0.0), starts=False)
        try:
            if self._retires is not None and time.monotonic() >= self._retires:
                forget_relayed(self._family, remote)
                return RemovalResult(removed=("the relay takes no more connections",) if remote.retire() else ())
            if not remote.listeners():
                return RemovalResult()
            self._retires = self._retires or time.monotonic() + RELAY_SECONDS
            return RemovalResult(waiting=("the relay finishes handshakes",))
        finally:
            remote.close()


def forget_relayed(family: Family, remote: Remote) -> None:
    """Delete the UDP flows of a family that its relay answers: new rules decide about their next datagram.

    Without access to connection tracking, which the keeper of flows has told of, they stay. Raise OSError if the
    relay is lost, or the kernel refuses.
    """
    places = remote.places(remote.listeners(), Protocol.UDP)
    if not places:
        return
    found: list[Flow] = []
    with contextlib.suppress(UnsupportedError), FlowTable() as table:
        with contextlib.suppress(DumpInterruptedError):  # some may be left out: their clients wait for the timeout
            found.extend(flow for flow in table.flows(family, Protocol.UDP) if is_answered(flow, places))
        table.delete(found)


def is_answered(flow: Flow, places: Collection[tuple[Address, int]]) -> bool:
    """Report whether a flow is answered at one of these addresses and ports. Pure."""
    anywhere = _ANYWHERE[Family.IPV4 if len(flow.reply_source) == 4 else Family.IPV6]
    return any((address, flow.reply_source_port) in places for address in (flow.reply_source, anywhere))
