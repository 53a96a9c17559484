"""Reads the templates among IPVS's connections, which bind a client to a real server. Pure.

A line of /proc/net/ip_vs_conn (ip_vs_conn_seq_show in net/netfilter/ipvs/ip_vs_conn.c), addresses and ports in hex:

    Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
    TCP C0A80001 0000 0A600001 0050 0AF4010B 0050 NONE             97

A template has no client's port. That of a virtual server of a mark has the protocol IP, and the mark as the first
four bytes of the VIP's place.
"""

from collections.abc import Iterable, Mapping

from vipwire.linux.netlink.ipvs import VirtualServer
from vipwire.model.net import Address, Protocol


def find_template(
    lines: Iterable[str], server: VirtualServer, client: Address, taking: Mapping[Address, int]
) -> tuple[Address, int, float] | None:
    """Find to which real server a client is bound, and for how many seconds more.

    `taking` are the real servers that take connections, address and port: who is bound to another is free.
    """
    protocol = "IP" if server.mark else Protocol(server.protocol).name
    for line in lines:
        fields = line.split()
        if len(fields) < 9 or fields[0] != protocol or fields[2] != "0000":
            continue
        try:
            source, place, target = (_address(fields[at]) for at in (1, 3, 5))
            seconds = float(fields[8])
        except ValueError:
            continue
        if source == client and target in taking and _names(place, int(fields[4], 16), server):
            return target, taking[target], seconds
    return None


def _names(place: Address, port: int, server: VirtualServer) -> bool:
    if server.mark:
        return int.from_bytes(place[:4]) == server.mark
    return (place, port) == (server.address, server.port)


def _address(text: str) -> Address:
    return Address(bytes.fromhex(text.replace(":", "")))
