"""Reads /proc/net/ip_vs: the real servers of many virtual servers at the price of one read. Pure.

Over netlink that takes a dump for each virtual server. What the file lacks (flags, timeouts) a dump of the virtual
servers alone has.

The file may lack whole virtual servers, though. The kernel hands it out in pieces of a page; where it goes on it
counts the virtual servers of this network namespace (ip_vs_info_array), but where it has stopped it has counted those
of all (ip_vs_info_seq_next). So each piece but the first begins too late where other network namespaces have any:
those of other nodes on the same machine, for instance. What the file does not list has to be asked for.

Format: ip_vs_info_seq_show in net/netfilter/ipvs/ip_vs_ctl.c; addresses and ports in hex.

    Prot LocalAddress:Port Scheduler Flags
      -> RemoteAddress:Port Forward Weight ActiveConn InActConn
    TCP  0A600001:0050 rr
      -> 0AF4010B:0050      Masq    1      0          0
    FWM  00000064 rr
"""

from collections.abc import Iterable
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, VirtualServer
from vipwire.model.net import Address, Family

_PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}
_METHODS = {
    "Masq": Method.MASQUERADE,
    "Local": Method.LOCAL,
    "Tunnel": Method.TUNNEL,
    "Route": Method.ROUTE,
    "Bypass": Method.BYPASS,
}


class Row(NamedTuple):
    """One real server; `active` and `inactive` count its connections."""

    real: RealServer
    forwarding: Forwarding
    active: int
    inactive: int


class Table(NamedTuple):
    """The real servers of one family, and the virtual servers that are listed with all that they have."""

    rows: list[Row]
    listed: set[VirtualServer]


def parse_table(text: str, family: Family) -> Table:
    """Collect the real servers of one family.

    A virtual server of a mark does not say its family; its real servers do. One that has none is not seen.
    """
    table = Table([], set())
    server: VirtualServer | None = None
    for line in text.splitlines()[3:]:
        fields = line.split()
        try:
            if fields[0] == "->":
                if server is not None and (fields[1][0] == "[") is (family is Family.IPV6):
                    table.rows.append(_row(server, fields))
                    table.listed.add(server)
            else:
                server = _server(fields, family)
                if server is not None and not server.mark:
                    table.listed.add(server)
        except (IndexError, ValueError, KeyError) as error:
            raise DecodeError(f"/proc/net/ip_vs has the line {line!r}, which is not understood") from error
    return table


def with_resting(rows: Iterable[Row]) -> dict[VirtualServer, dict[RealServer, Forwarding]]:
    """Choose the virtual servers of which a real server takes nothing new; all that they have, in the same order."""
    servers: dict[VirtualServer, dict[RealServer, Forwarding]] = {}
    for row in rows:
        servers.setdefault(row.real.server, {})[row.real] = row.forwarding
    return {server: reals for server, reals in servers.items() if not all(how.weight for how in reals.values())}


def _row(server: VirtualServer, fields: list[str]) -> Row:
    address, port = _place(fields[1])
    forwarding = Forwarding(int(fields[3]), _METHODS[fields[2]])
    return Row(RealServer(server, address, port), forwarding, int(fields[4]), int(fields[5]))


def _server(fields: list[str], family: Family) -> VirtualServer | None:
    if fields[0] == "FWM":
        return VirtualServer(0, Address(b""), 0, int(fields[1], 16))
    if (fields[1][0] == "[") is not (family is Family.IPV6):
        return None
    address, port = _place(fields[1])
    return VirtualServer(_PROTOCOLS[fields[0]], address, port)


def _place(text: str) -> tuple[Address, int]:
    address, _, port = text.rpartition(":")
    if address.startswith("["):
        return Address(bytes.fromhex(address[1:-1].replace(":", ""))), int(port, 16)
    return Address(bytes.fromhex(address.rjust(8, "0"))), int(port, 16)
