"""IPVS of one family in the kernel: read, written in batches, and what the kernel refuses put in words."""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.netlink import ipvs
from vipwire.linux.netlink.batch import Request, send_batch
from vipwire.linux.netlink.ipvs import (
    CONTROL,
    Command,
    Counters,
    Forwarding,
    RealServer,
    RealServerState,
    Scheduling,
    Timeouts,
    VirtualServer,
    ask_family,
    family_number,
)
from vipwire.linux.netlink.socket import NETLINK_GENERIC, NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.describe import describe_server
from vipwire.modes.ipvs.objects.proc_table import Row, parse_table

_ATTEMPTS = 5
_NAMED = 52
"""Bytes of a listed virtual server that tell which it is; what it has counted comes behind them."""
_TABLE = Path("/proc/thread-self/net/ip_vs")


class ServerCommand(NamedTuple):
    """One command about a virtual server (with its scheduling) or about a real server (with its forwarding)."""

    command: Command
    key: VirtualServer | RealServer
    value: Scheduling | Forwarding


class Servers:
    """IPVS of one family, in the network namespace in which this was made. Raise UnsupportedError without IPVS."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._generic = NetlinkSocket(NETLINK_GENERIC)
        try:
            (answer,) = self._generic.request(CONTROL, ask_family(ipvs.FAMILY))
            self._number = family_number(answer.payload)
            # Opened here, it stays the file of this network namespace, wherever the thread goes.
            self._table: TextIO = _TABLE.open(encoding="ascii")
        except OSError as error:
            self._generic.close()
            raise UnsupportedError(_missing(error)) from error

    def close(self) -> None:
        """Close the socket; virtual servers stay."""
        self._table.close()
        self._generic.close()

    def services(self) -> dict[VirtualServer, tuple[Scheduling, Counters]]:
        """Read all virtual servers of the family, whoever made them."""
        self._generic.drain()
        payloads = settled(lambda: list(self._generic.dump(self._number, ipvs.list_services())))
        decoded = [ipvs.decode_service(payload) for payload in payloads]
        return {server: (how, counters) for family, server, how, counters in decoded if family is self._family}

    def rows(self, servers: Collection[VirtualServer]) -> Iterator[Row]:
        """Read the real servers of these virtual servers: all in one read, then each that this has left out."""
        self._table.seek(0)
        table = parse_table(self._table.read(), self._family)
        yield from (row for row in table.rows if row.real.server in servers)
        for server in servers:
            if server not in table.listed:
                for each in self.reals(server):
                    real = RealServer(server, each.address, each.port)
                    yield Row(real, each.forwarding, each.active, each.inactive)

    def reals(self, server: VirtualServer) -> list[RealServerState]:
        """Read one virtual server's real servers; none if there is no such virtual server."""
        self._generic.drain()
        request = ipvs.list_dests(self._family, server)
        try:
            return [ipvs.decode_dest(payload) for payload in self._generic.dump(self._number, request)]
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return []
            raise

    def set_timeouts(self, timeouts: Timeouts) -> None:
        """Set the timeouts that are not 0."""
        if any(timeouts):
            self._generic.request(self._number, ipvs.set_timeouts(timeouts))

    def timeouts(self) -> Timeouts:
        """Read the timeouts."""
        (answer,) = self._generic.request(self._number, ipvs.ask_timeouts())
        return ipvs.decode_timeouts(answer.payload)

    def apply(self, changes: Iterable[ServerCommand]) -> int:
        """Carry out changes in order; return the bytes sent. Raise CommitError with the first that is refused.

        What is there already is set instead of added, what is absent is added instead of set, and what is gone need
        not be deleted: so a half-finished earlier try is finished, and what somebody removed is there again.
        """
        todo = list(changes)
        size = 0
        for _ in range(3):
            if not todo:
                return size
            self._generic.drain()
            sent = send_batch(self._generic, (Request(self._number, self._payload(each)) for each in todo))
            size += sent.size
            again: list[ServerCommand] = []
            for at, answer in sorted(sent.refused.items()):
                other = _other_way(todo[at], answer.errno)
                if other is None:
                    raise CommitError(self._refusal(todo[at], answer.errno), errno=answer.errno)
                again += other
            todo = again
        if todo:
            raise CommitError(f"others change {describe_server(todo[0].key)} at the same time", errno=errno.EBUSY)
        return size

    def _payload(self, change: ServerCommand) -> bytes:
        key, value = change.key, change.value
        if isinstance(key, RealServer) and isinstance(value, Forwarding):
            return ipvs.dest_command(change.command, self._family, key, value)
        scheduling = value if isinstance(value, Scheduling) and change.command is not Command.DEL_SERVICE else None
        server = key.server if isinstance(key, RealServer) else key
        return ipvs.service_command(change.command, self._family, server, scheduling)

    def _refusal(self, change: ServerCommand, code: int) -> str:
        what = f"{change.command.name} {describe_server(change.key)}"
        if code == errno.ENOENT and isinstance(change.value, Scheduling):
            name = change.value.scheduler
            return f"{what}: this kernel has no IPVS scheduler {name!r}: load the module ip_vs_{name} or name another"
        return f"{what}: {os.strerror(code)}"


def settled(read: Callable[[], list[memoryview]]) -> list[memoryview]:
    """List virtual servers until two lists in a row name the same ones; return the last one.

    The kernel lists in pieces, and counts how far it has come. What goes meanwhile lets it pass over others, and of
    that it says nothing (ip_vs_genl_dump_services sets no sequence): those would seem to be gone.
    """
    payloads = read()
    for _ in range(_ATTEMPTS):
        before, payloads = payloads, read()
        if {bytes(each[:_NAMED]) for each in before} == {bytes(each[:_NAMED]) for each in payloads}:
            break
    return payloads


_ADDED = {Command.NEW_SERVICE: Command.SET_SERVICE, Command.NEW_DEST: Command.SET_DEST}
_SET = {Command.SET_SERVICE: (Command.NEW_SERVICE, errno.ESRCH), Command.SET_DEST: (Command.NEW_DEST, errno.ENOENT)}


def _other_way(change: ServerCommand, code: int) -> list[ServerCommand] | None:
    """Find what to do instead of a refused change; an empty list if nothing remains to be done."""
    if change.command in (Command.DEL_SERVICE, Command.DEL_DEST) and code in (errno.ENOENT, errno.ESRCH):
        return []
    if change.command in _ADDED and code == errno.EEXIST:
        return [change._replace(command=_ADDED[change.command])]
    if change.command in _SET and code == _SET[change.command][1]:
        return [change._replace(command=_SET[change.command][0])]
    return None


def _missing(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "IPVS cannot be used here: run as root, or with the capability CAP_NET_ADMIN"
    return (
        "the kernel has no IPVS: load the module ip_vs (modprobe ip_vs), of the package linux-image-$(uname -r) on "
        "Debian, linux-modules-extra-$(uname -r) on Ubuntu, kernel-modules on Fedora and RHEL; or choose another "
        "mode. `vipwire lab compare` shows ipvs mode without it, in a kernel of its own"
    )
