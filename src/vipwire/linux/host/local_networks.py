"""The destinations that are local to this machine, by the kernel's local routes."""

from collections.abc import Iterator

from vipwire.linux.host.route_watch import RouteWatch, repeat_dump
from vipwire.linux.netlink.route import (
    ANYCAST,
    BROADCAST,
    GET_ROUTE,
    LOCAL,
    TABLE_LOCAL,
    decode_route,
    encode_list_routes,
)
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Family, Prefix

_GROUPS = 7, 11  # RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE


class LocalRouteWatch(RouteWatch):
    """Notices new local routes. The kernel does not report all removals, such as those with an interface."""

    def __init__(self) -> None:
        super().__init__(*_GROUPS)

    def changed(self) -> bool:
        """Report, without waiting, whether the kernel has reported a local route."""
        heard = self._read_notifications()
        if heard is None:
            return True
        routes = [decode_route(message.payload) for message in heard]
        return any(route is not None and route.table == TABLE_LOCAL for route in routes)


def read_local_networks() -> frozenset[Prefix]:
    """Read the local destinations of this network namespace: addresses of interfaces, and ranges of local routes.

    `ip route add local RANGE dev lo` adds a range, as for Gateways' addresses. Includes broadcast addresses.
    """
    with NetlinkSocket(NETLINK_ROUTE) as rtnetlink:
        rtnetlink.filter_dumps()
        return frozenset(repeat_dump(lambda: tuple(_dump_local(rtnetlink))))


def _dump_local(rtnetlink: NetlinkSocket) -> Iterator[Prefix]:
    for family in Family:
        for payload in rtnetlink.dump(GET_ROUTE, encode_list_routes(family, TABLE_LOCAL)):
            found = decode_route(payload)
            if found is not None and found.type in (LOCAL, BROADCAST, ANYCAST):
                yield found.destination
