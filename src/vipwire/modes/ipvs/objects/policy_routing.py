"""Routes packets for addresses that this node does not have to IPVS, with a mark, a routing rule and a routing table.

External IPs and VIPs of direct return must not be addresses of the node: another host may have them, or the kernel
would drop the endpoints' packets as forged. The table has a local route for each VIP and no default route, so a
marked packet that other rules translated passes.
"""

import errno
import os
from collections.abc import Callable, Sequence

from vipwire.errors import CommitError
from vipwire.linux.netlink import route as rtnetlink
from vipwire.linux.netlink.batch import NetlinkRequest, send_batch
from vipwire.linux.netlink.links import LOOPBACK, SCOPE_ANY, SCOPE_HOST
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address, Family, Prefix, format_address
from vipwire.modes.ipvs.objects.names import ROUTE_TABLE as TABLE
from vipwire.modes.ipvs.objects.names import RULE_PRIORITY as PRIORITY
from vipwire.reconcile.delta import SentBytes


class PolicyRouting:
    """The routing rules of one family, in the network namespace of its creation."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._link = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        self._link.close()

    def list_marks(self) -> list[int]:
        """Read the marks that have a rule."""
        self._link.drain()
        request = rtnetlink.encode_list_routes(self._family)
        rules = [rtnetlink.decode_rule(payload) for payload in self._link.dump(rtnetlink.GET_RULE, request)]
        return [each.mark for each in rules if each.mark and (each.table, each.priority) == (TABLE, PRIORITY)]

    def add_marks(self, marks: Sequence[int]) -> SentBytes:
        return self._change_rules(rtnetlink.NEW_RULE, marks, errno.EEXIST)

    def remove_marks(self, marks: Sequence[int]) -> SentBytes:
        return self._change_rules(rtnetlink.DELETE_RULE, marks, errno.ENOENT)

    def list_routes(self) -> list[Address]:
        """Read the addresses with a local route in the table; 0.0.0.0 or :: is a default route."""
        self._link.drain()
        request = rtnetlink.encode_list_routes(self._family, TABLE)
        routes = [rtnetlink.decode_route(payload) for payload in self._link.dump(rtnetlink.GET_ROUTE, request)]
        local = (TABLE, rtnetlink.LOCAL)
        return [each.destination.network for each in routes if each and (each.table, each.type) == local]

    def add_routes(self, addresses: Sequence[Address]) -> SentBytes:
        payloads = [_encode_local_route(each, rtnetlink.STATIC, SCOPE_HOST) for each in addresses]
        return self._change_routes(rtnetlink.NEW_ROUTE, addresses, payloads, errno.EEXIST)

    def remove_routes(self, addresses: Sequence[Address]) -> SentBytes:
        """Remove local routes of any protocol (0) and scope, also those of other tools."""
        payloads = [_encode_local_route(each, 0, SCOPE_ANY) for each in addresses]
        return self._change_routes(rtnetlink.DELETE_ROUTE, addresses, payloads, errno.ESRCH)

    def _change_rules(self, kind: int, marks: Sequence[int], harmless: int) -> SentBytes:
        payloads = [
            rtnetlink.encode_rule(self._family, rtnetlink.RoutingRule(TABLE, PRIORITY, mark)) for mark in marks
        ]
        return self._send_requests(
            kind, payloads, harmless, lambda at: f"ip rule fwmark {marks[at]:#x} lookup {TABLE}"
        )

    def _change_routes(self, kind: int, to: Sequence[Address], payloads: Sequence[bytes], harmless: int) -> SentBytes:
        return self._send_requests(
            kind, payloads, harmless, lambda at: f"ip route local {format_address(to[at])} dev lo table {TABLE}"
        )

    def _send_requests(
        self, kind: int, payloads: Sequence[bytes], harmless: int, command: Callable[[int], str]
    ) -> SentBytes:
        new = kind in (rtnetlink.NEW_RULE, rtnetlink.NEW_ROUTE)
        flags = NLM_F_CREATE | NLM_F_EXCL if new else 0
        sent = send_batch(self._link, [NetlinkRequest(kind, payload, flags) for payload in payloads])
        for at, answer in sent.refused.items():
            if answer.errno != harmless:
                why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
                raise CommitError(f"{command(at)}: {why}", errno=answer.errno)
        return sent.size


def _encode_local_route(address: Address, protocol: int, scope: int) -> bytes:
    """Encode a route of the table; 0.0.0.0 and :: are the default route."""
    to = Prefix(address, len(address) * 8 if any(address) else 0)
    route = rtnetlink.Route(to, LOOPBACK, None, None, TABLE, protocol, scope, rtnetlink.LOCAL)
    return rtnetlink.encode_route(route)
