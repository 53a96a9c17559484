"""The kernel's table of flows: read it, and delete from it exactly what a judge names.

It is deleted from in one pass. The kernel hands out the table in pieces, and deletions go to it in batches while the
pass goes on, so that memory does not grow with the table. What cannot be cut is the kernel's own search for the next
flow that its filter lets through: 12 ms for an empty table, 50 ms past 100,000 others, without Python's lock.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import NamedTuple, Self
from typing import Protocol as Interface

from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.conntrack import (
    CT_DELETE,
    CT_GET,
    STATUS_OFFLOADED,
    Flow,
    FlowDecoder,
    delete_request,
    dump_request,
    status_request,
)
from vipwire.linux.netlink.message import NLM_F_REQUEST, encode
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket
from vipwire.model.net import Family, Protocol

_PIECE = 1024
"""Flows that are held at a time."""

_BATCH = 256
"""Deletions in one datagram; the answers of so many fit any receive buffer."""

_ATTEMPTS = 3
"""Passes over a table that keeps changing under the dump."""

_FEW_PORTS = 4
"""Up to so many ports, one dump of each that the kernel filters is cheaper than a dump of all.

Walking an empty table costs the kernel 12 ms, and 50 ms at 100,000 flows; handing those out and decoding them 500 ms.
"""


class Judge(Interface):
    """Says which flows are to go, and where to look for them."""

    def __call__(self, flow: Flow, /) -> bool:
        """Report whether this one is to go."""

    def families(self) -> tuple[Family, ...]:
        """Name the families to look at."""

    def protocols(self) -> tuple[Protocol, ...]:
        """Name the protocols to look at."""

    def ports(self) -> frozenset[int] | None:
        """Name the original destination ports to look at; None for any."""


class FlowDeletions(NamedTuple):
    """Counts flows examined and deleted; `complete` unless the table changed too much to see every flow.

    `held` are those that a flowtable of somebody else's has, and that this kernel lets nobody delete.
    """

    examined: int = 0
    deleted: int = 0
    complete: bool = True
    held: int = 0


class FlowTable:
    """The conntrack table of the network namespace in which this was made. Not for several threads.

    Every method raises UnsupportedError where the kernel or the capabilities of this process do not allow it.
    """

    def __init__(self) -> None:
        try:
            self._reader = NetlinkSocket(NETLINK_NETFILTER)
        except OSError as error:
            raise _unsupported(error) from error
        # Answers to deletions must not get between the pieces of a dump.
        self._deleter = NetlinkSocket(NETLINK_NETFILTER)
        self._decoder = FlowDecoder()
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its sockets."""
        self._reader.close()
        self._deleter.close()

    def flows(self, family: Family, protocol: Protocol | None = None, destination_port: int = 0) -> Iterator[Flow]:
        """Yield the flows of a family, of a protocol and to an original port if given.

        Raise DumpInterruptedError, after the last one, if the kernel says that it may have left some out.
        """
        decode = self._decoder.decode
        self._reader.drain()
        try:
            for payload in self._reader.dump(CT_GET, dump_request(family, protocol, destination_port)):
                flow = decode(payload)
                if protocol in (None, flow.protocol) and destination_port in (0, flow.destination_port):
                    yield flow
        except NetlinkError as error:
            raise _unsupported(error) from error

    def offloaded(self, family: Family) -> int:
        """Count the flows of a family that a flowtable has. Raise DumpInterruptedError as `flows`."""
        self._reader.drain()
        try:
            payloads = self._reader.dump(CT_GET, status_request(family, STATUS_OFFLOADED))
            return sum(bool(self._decoder.decode(each).status & STATUS_OFFLOADED) for each in payloads)
        except NetlinkError as error:
            raise _unsupported(error) from error

    def delete(self, flows: Iterable[Flow]) -> int:
        """Delete these flows; return how many there were. One that is gone already is no error.

        Nor is one that somebody's flowtable has: before Linux 6.4 nobody can delete it.
        """
        waiting = iter(flows)
        deleted = 0
        while batch := list(islice(waiting, _BATCH)):
            deleted += len(batch) - self._delete_batch(batch)
        return deleted

    def _delete_batch(self, batch: list[Flow]) -> int:
        """Delete a few flows in one datagram; return how many were gone already, or are held by a flowtable."""
        self._deleter.drain()
        first = self._deleter.sequence(len(batch))
        requests = [
            encode(CT_DELETE, NLM_F_REQUEST, first + index, delete_request(flow)) for index, flow in enumerate(batch)
        ]
        # Failures are answered unasked; asking for successes too would only cost.
        self._deleter.send(b"".join(requests))
        gone = 0
        for answer in self._deleter.acknowledgements():
            if answer.errno == errno.ENOENT:
                gone += 1
            elif answer.errno == errno.EBUSY:
                gone += 1
                self._held += 1
            elif answer.errno:
                raise NetlinkError(
                    answer.errno, f"a flow cannot be deleted: {answer.text or os.strerror(answer.errno)}"
                )
        return gone

    def purge(self, judge: Judge) -> FlowDeletions:
        """Delete every flow that is to go; return what was done.

        A dump that the kernel calls interrupted is repeated a few times.
        """
        ports = judge.ports()
        wanted = sorted(ports) if ports is not None and len(ports) <= _FEW_PORTS else [0]
        total = FlowDeletions()
        for family, protocol, port in product(judge.families(), judge.protocols(), wanted):
            part = self._purge_one(judge, family, protocol, port)
            total = FlowDeletions(
                total.examined + part.examined,
                total.deleted + part.deleted,
                total.complete and part.complete,
                total.held + part.held,
            )
        return total

    def _purge_one(self, judge: Judge, family: Family, protocol: Protocol, port: int) -> FlowDeletions:
        examined = deleted = 0
        for _ in range(_ATTEMPTS):
            before = self._held
            flows = self.flows(family, protocol, port)
            try:
                while piece := list(islice(flows, _PIECE)):
                    examined += len(piece)
                    deleted += self.delete(filter(judge, piece))
            except DumpInterruptedError:
                continue
            return FlowDeletions(examined, deleted, held=self._held - before)
        return FlowDeletions(examined, deleted, complete=False)


def _unsupported(error: OSError) -> UnsupportedError | OSError:
    """Explain what is missing, where the kernel's answer tells; otherwise return the error itself."""
    if error.errno == errno.EPERM:
        return UnsupportedError(
            "the kernel refuses access to its connection tracking table: run as root, "
            "or give this process the capability CAP_NET_ADMIN"
        )
    if error.errno in (errno.EPROTONOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP):
        return UnsupportedError(
            "the kernel has no interface to its connection tracking table: load the module nf_conntrack_netlink "
            "(kernel option CONFIG_NF_CT_NETLINK); without it, UDP clients may keep sending to pods that are gone"
        )
    return error
