"""Decides which tracked UDP flows are stale: those that still go where no packet of theirs should go any more.

DNAT is decided by the first packet of a flow and remembered in its conntrack entry. A UDP client that keeps sending
from one port keeps its entry alive for ever, and with it an endpoint that is gone, or no translation at all when the
first packet came before there was a rule. So such entries have to be deleted when a Service changes; the next packet
then meets the rules anew. TCP and SCTP need none of this: an endpoint answers with a reset, or the client gives up.

    original:  client:port  ->  10.96.0.10:53      is this a frontend that we were told of?
    reply:     10.1.2.3:53  ->  client:port        is this one of its serving endpoints?

What kube-proxy does otherwise: it skips Services that have lost their last endpoint or are gone (k/k#139628), and it
takes any flow to the number of a node port for its own, whichever machine that flow goes to.
"""

from collections.abc import Mapping
from typing import TypeAlias

from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.net import Address, Family, Prefix, Protocol, family_of
from vipwire.model.value import Value

UdpEndpoint: TypeAlias = tuple[Address, int]
"""Address and port of an endpoint."""

UdpFrontend: TypeAlias = tuple[Address | None, int]
"""Address and port by which clients reach a Service; without an address it is a node port."""

UdpFrontends: TypeAlias = Mapping[UdpFrontend, frozenset[UdpEndpoint]]
"""Each frontend's serving endpoints (ready, or terminating but serving); the empty set where it has none or is gone.

All serving endpoints count, whatever the traffic policy now chooses among them: a flow that works is left alone.
"""

_UDP = int(Protocol.UDP)  # comparing with the enum's member takes longer than the rest of a judgement


class Staleness(Value, frozen=True):
    """Decides which flows are stale, given what is true now.

    `frontends` are those to judge flows by: the ones that have changed, or all of them. `node_addresses` are the
    addresses at which node ports are served here. `service_cidrs` may be given only along with *all* frontends:
    translated flows into these ranges that meet no frontend are stale too: their Service went while nobody watched.
    """

    frontends: UdpFrontends
    node_addresses: frozenset[Address] = frozenset()
    service_cidrs: tuple[Prefix, ...] = ()

    def __call__(self, flow: Flow) -> bool:
        """Report whether this flow is stale.

        Zones are somebody else's tables (OVS tracks the same packet untranslated in one): only the default zone, in
        which the rules of a service proxy work, is judged.
        """
        if flow.protocol != _UDP or flow.zone:
            return False
        address, port = flow.destination, flow.destination_port
        serving = self.frontends.get((address, port))
        if address in self.node_addresses:
            at_node = self.frontends.get((None, port))
            if at_node is not None:
                serving = at_node if serving is None else serving | at_node
        source = flow.reply_source, flow.reply_source_port
        if serving is not None:
            return source not in serving
        return source != (address, port) and any(address in cidr for cidr in self.service_cidrs)

    def families(self) -> tuple[Family, ...]:
        """Name the families in which there can be stale flows."""
        addresses = {address for address, _ in self.frontends if address is not None}
        addresses.update(cidr.network for cidr in self.service_cidrs)
        if any(address is None for address, _ in self.frontends):
            addresses |= self.node_addresses
        present = {family_of(address) for address in addresses}
        return tuple(family for family in Family if family in present)

    def protocols(self) -> tuple[Protocol, ...]:
        """Name the only protocol that has stale flows."""
        return (Protocol.UDP,)

    def ports(self) -> frozenset[int] | None:
        """Name the destination ports that stale flows can have; None for any."""
        return None if self.service_cidrs else frozenset(port for _, port in self.frontends)
