"""Reads and writes IPVS of one family, in batches, and explains the kernel's refusals."""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from vipwire.errors import CommitError, DecodeError, UnsupportedError
from vipwire.linux.netlink import ipvs
from vipwire.linux.netlink.batch import NetlinkRequest, send_batch
from vipwire.linux.netlink.ipvs import (
    CONTROL,
    Command,
    Forwarding,
    Method,
    RealServer,
    RealServerState,
    Scheduling,
    Timeouts,
    TrafficStats,
    VirtualServer,
    encode_get_family,
    family_number,
)
from vipwire.linux.netlink.socket import NETLINK_GENERIC, NetlinkError, NetlinkSocket
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.objects.names import describe_server
from vipwire.reconcile.delta import SentBytes

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


class ServerTable(NamedTuple):
    """The real servers of one family, and the virtual servers whose listing is complete."""

    rows: list[Row]
    listed: set[VirtualServer]


def parse_table(text: str, family: Family) -> ServerTable:
    """Read the real servers of one family from /proc/net/ip_vs. Pure.

    Netlink would need a dump for each virtual server. The file lacks flags and timeouts; a dump of the virtual
    servers has them. Only real servers show the family of a mark's virtual server, so one without real servers is not
    seen.

    The file can lack virtual servers. The kernel prints it a page at a time and counts virtual servers to continue:
    those of all network namespaces where it stopped (ip_vs_info_seq_next), those of this one where it resumes
    (ip_vs_info_array). So other network namespaces shift each later page. The caller asks for unlisted ones by
    netlink.

    Format: ip_vs_info_seq_show in net/netfilter/ipvs/ip_vs_ctl.c; addresses and ports in hex.

        Prot LocalAddress:Port Scheduler Flags
          -> RemoteAddress:Port Forward Weight ActiveConn InActConn
        TCP  0A600001:0050 rr
          -> 0AF4010B:0050      Masq    1      0          0
        FWM  00000064 rr
    """
    table = ServerTable([], set())
    server: VirtualServer | None = None
    for line in text.splitlines()[3:]:
        fields = line.split()
        try:
            if fields[0] == "->":
                if server is not None and (fields[1][0] == "[") is (family is Family.IPV6):
                    table.rows.append(_parse_row(server, fields))
                    table.listed.add(server)
            else:
                server = _parse_server(fields, family)
                if server is not None and not server.mark:
                    table.listed.add(server)
        except (IndexError, ValueError, KeyError) as error:
            raise DecodeError(f"/proc/net/ip_vs has the line {line!r}, which is not understood") from error
    return table


def include_resting_servers(rows: Iterable[Row]) -> dict[VirtualServer, dict[RealServer, Forwarding]]:
    """Return the virtual servers with a real server of weight 0, each with all its real servers in order."""
    servers: dict[VirtualServer, dict[RealServer, Forwarding]] = {}
    for row in rows:
        servers.setdefault(row.real.server, {})[row.real] = row.forwarding
    return {server: reals for server, reals in servers.items() if not all(how.weight for how in reals.values())}


def _parse_row(server: VirtualServer, fields: list[str]) -> Row:
    address, port = _parse_place(fields[1])
    forwarding = Forwarding(int(fields[3]), _METHODS[fields[2]])
    return Row(RealServer(server, address, port), forwarding, int(fields[4]), int(fields[5]))


def _parse_server(fields: list[str], family: Family) -> VirtualServer | None:
    if fields[0] == "FWM":
        return VirtualServer(0, Address(b""), 0, int(fields[1], 16))
    if (fields[1][0] == "[") is not (family is Family.IPV6):
        return None
    address, port = _parse_place(fields[1])
    return VirtualServer(_PROTOCOLS[fields[0]], address, port)


def _parse_place(text: str) -> tuple[Address, int]:
    address, _, port = text.rpartition(":")
    if address.startswith("["):
        return Address(bytes.fromhex(address[1:-1].replace(":", ""))), int(port, 16)
    return Address(bytes.fromhex(address.rjust(8, "0"))), int(port, 16)


_ATTEMPTS = 5
_NAMED = 52
"""The bytes of a listed virtual server before its statistics; they identify it."""
_TABLE = Path("/proc/thread-self/net/ip_vs")


class ServerCommand(NamedTuple):
    """One command for a virtual server (with scheduling) or a real server (with forwarding)."""

    command: Command
    key: VirtualServer | RealServer
    value: Scheduling | Forwarding


class IpvsServers:
    """IPVS of one family, in the network namespace of its creation. Raise UnsupportedError without IPVS."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._generic = NetlinkSocket(NETLINK_GENERIC)
        try:
            (answer,) = self._generic.request(CONTROL, encode_get_family(ipvs.FAMILY))
            self._number = family_number(answer.payload)
            # An open file stays bound to the network namespace of the opening thread.
            self._table: TextIO = _TABLE.open(encoding="ascii")
        except OSError as error:
            self._generic.close()
            raise UnsupportedError(_describe_missing(error)) from error

    def close(self) -> None:
        self._table.close()
        self._generic.close()

    def read_services(self) -> dict[VirtualServer, tuple[Scheduling, TrafficStats]]:
        """Read all virtual servers of the family, of vipwire and others."""
        self._generic.drain()
        payloads = read_until_stable(lambda: list(self._generic.dump(self._number, ipvs.encode_list_services())))
        decoded = [ipvs.decode_service(payload) for payload in payloads]
        return {server: (how, counters) for family, server, how, counters in decoded if family is self._family}

    def read_rows(self, servers: Collection[VirtualServer]) -> Iterator[Row]:
        """Read the real servers of these virtual servers: one read, then one request for each that it lacks."""
        self._table.seek(0)
        table = parse_table(self._table.read(), self._family)
        yield from (row for row in table.rows if row.real.server in servers)
        for server in servers:
            if server not in table.listed:
                for each in self.read_real_servers(server):
                    real = RealServer(server, each.address, each.port)
                    yield Row(real, each.forwarding, each.active, each.inactive)

    def read_real_servers(self, server: VirtualServer) -> list[RealServerState]:
        """Read one virtual server's real servers; empty if the virtual server does not exist."""
        self._generic.drain()
        request = ipvs.encode_list_dests(self._family, server)
        try:
            return [ipvs.decode_dest(payload) for payload in self._generic.dump(self._number, request)]
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return []
            raise

    def set_timeouts(self, timeouts: Timeouts) -> None:
        if any(timeouts):
            self._generic.request(self._number, ipvs.encode_set_timeouts(timeouts))

    def read_timeouts(self) -> Timeouts:
        (answer,) = self._generic.request(self._number, ipvs.encode_get_timeouts())
        return ipvs.decode_timeouts(answer.payload)

    def apply(self, changes: Iterable[ServerCommand]) -> SentBytes:
        """Apply changes in order; return the bytes sent. Raise CommitError for the first one that the kernel refuses.

        An existing object is set instead of added, a missing one is added instead of set, and deleting a missing one
        succeeds. So a second try completes an interrupted one.
        """
        todo = list(changes)
        size = 0
        for _ in range(3):
            if not todo:
                return size
            self._generic.drain()
            sent = send_batch(
                self._generic, (NetlinkRequest(self._number, self._encode_change(each)) for each in todo)
            )
            size += sent.size
            again: list[ServerCommand] = []
            for at, answer in sorted(sent.refused.items()):
                other = _replace_refused(todo[at], answer.errno)
                if other is None:
                    raise CommitError(self._explain_refusal(todo[at], answer.errno), errno=answer.errno)
                again += other
            todo = again
        if todo:
            raise CommitError(
                f"another program changes {describe_server(todo[0].key)} at the same time", errno=errno.EBUSY
            )
        return size

    def _encode_change(self, change: ServerCommand) -> bytes:
        key, value = change.key, change.value
        if isinstance(key, RealServer) and isinstance(value, Forwarding):
            return ipvs.encode_dest_command(change.command, self._family, key, value)
        scheduling = value if isinstance(value, Scheduling) and change.command is not Command.DEL_SERVICE else None
        server = key.server if isinstance(key, RealServer) else key
        return ipvs.encode_service_command(change.command, self._family, server, scheduling)

    def _explain_refusal(self, change: ServerCommand, code: int) -> str:
        what = f"{change.command.name} {describe_server(change.key)}"
        if code == errno.ENOENT and isinstance(change.value, Scheduling):
            name = change.value.scheduler
            return f"{what}: this kernel has no IPVS scheduler {name!r}: load the module ip_vs_{name} or name another"
        return f"{what}: {os.strerror(code)}"


def read_until_stable(read: Callable[[], list[memoryview]]) -> list[memoryview]:
    """List virtual servers until two lists in a row have the same names; return the last one.

    The kernel lists in pieces and resumes by count. A deletion in between makes it skip entries without a sign of
    interruption (ip_vs_genl_dump_services sets no sequence).
    """
    payloads = read()
    for _ in range(_ATTEMPTS):
        before, payloads = payloads, read()
        if {bytes(each[:_NAMED]) for each in before} == {bytes(each[:_NAMED]) for each in payloads}:
            break
    return payloads


_ADDED = {Command.NEW_SERVICE: Command.SET_SERVICE, Command.NEW_DEST: Command.SET_DEST}
_SET = {Command.SET_SERVICE: (Command.NEW_SERVICE, errno.ESRCH), Command.SET_DEST: (Command.NEW_DEST, errno.ENOENT)}


def _replace_refused(change: ServerCommand, code: int) -> list[ServerCommand] | None:
    """Return the commands to send instead of a refused one; empty if the goal is already reached."""
    if change.command in (Command.DEL_SERVICE, Command.DEL_DEST) and code in (errno.ENOENT, errno.ESRCH):
        return []
    if change.command in _ADDED and code == errno.EEXIST:
        return [change._replace(command=_ADDED[change.command])]
    if change.command in _SET and code == _SET[change.command][1]:
        return [change._replace(command=_SET[change.command][0])]
    return None


def _describe_missing(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "IPVS cannot run here: run as root, or with the capability CAP_NET_ADMIN"
    return (
        "the kernel has no IPVS: load the module ip_vs (modprobe ip_vs), of the package linux-image-$(uname -r) on "
        "Debian, linux-modules-extra-$(uname -r) on Ubuntu, kernel-modules on Fedora and RHEL; or choose another "
        "mode. `vipwire lab compare` shows ipvs mode without it, in a kernel of its own"
    )
