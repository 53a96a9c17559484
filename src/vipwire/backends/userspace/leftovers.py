"""What connection tracking knows of a relay of userspace mode that is about to end: UDP flows, which go on to it.

A flow keeps the translation of its first datagram as long as its client sends. The first sync of another mode has
such flows deleted, but until the rules of userspace mode are gone a datagram may lead to the relay once more.
"""

import contextlib
from collections.abc import Collection
from typing import Final

from vipwire.backends.userspace.remote_relay import Remote
from vipwire.conntrack.flows import FlowTable
from vipwire.errors import UnsupportedError
from vipwire.model.net import Address, Family, Protocol
from vipwire.netlink.conntrack import Flow
from vipwire.netlink.socket import DumpInterruptedError

_ANYWHERE: Final = {Family.IPV4: Address(bytes(4)), Family.IPV6: Address(bytes(16))}


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
    """Tell whether a flow is answered at one of these addresses and ports. Pure."""
    anywhere = _ANYWHERE[Family.IPV4 if len(flow.reply_source) == 4 else Family.IPV6]
    return any((address, flow.reply_source_port) in places for address in (flow.reply_source, anywhere))
