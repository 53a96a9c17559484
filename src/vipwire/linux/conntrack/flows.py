"""The kernel's table of flows: lists flows, and deletes those that a judge selects.

Deletes in one pass: the kernel dumps the table in pieces, and deletions go to the kernel in batches during the dump,
so that memory does not grow with the table. One piece takes as long as the kernel's search for the next matching
flow: 12 ms in an empty table, 50 ms past 100,000 others, without Python's lock.
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
    encode_delete,
    encode_dump,
    encode_status_dump,
)
from vipwire.linux.netlink.message import NLM_F_REQUEST, encode_message
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket
from vipwire.model.net import Family, Protocol

_PIECE = 1024
"""Flows held in memory at a time."""

_BATCH = 256
"""Deletions in one datagram; their answers fit any receive buffer."""

_ATTEMPTS = 3
"""Passes over a table that keeps changing during the dump."""

_FEW_PORTS = 4
"""Up to this number of ports, a filtered dump of each is cheaper than a dump of all flows. To walk an empty table
takes the kernel 12 ms, and 50 ms at 100,000 flows; dumping and decoding those takes 500 ms.
"""


class Judge(Interface):
    """Selects the flows to delete, and where to look for them."""

    def __call__(self, flow: Flow, /) -> bool:
        """Report whether to delete this flow."""

    def list_families(self) -> tuple[Family, ...]:
        """Return the families to dump."""

    def list_protocols(self) -> tuple[Protocol, ...]:
        """Return the protocols to dump."""

    def list_ports(self) -> frozenset[int] | None:
        """Return the original destination ports to dump; None for any."""

    def selects_unanswered(self) -> bool:
        """Report whether the judge selects unanswered flows only: the kernel then dumps no others."""


class FlowDeletions(NamedTuple):
    """Counts flows examined and deleted; `complete` unless the table changed too much to see every flow.

    `held` counts the flows in another program's flowtable, which this kernel refuses to delete.
    """

    examined: int = 0
    deleted: int = 0
    complete: bool = True
    held: int = 0


class FlowTable:
    """The conntrack table of the network namespace in which this was made. Not thread-safe.

    Every method raises UnsupportedError if the kernel or this process's capabilities do not allow it.
    """

    def __init__(self) -> None:
        try:
            self._reader = NetlinkSocket(NETLINK_NETFILTER)
        except OSError as error:
            raise _explain_error(error) from error
        # A socket of its own, because answers to deletions must not mix with a dump.
        self._deleter = NetlinkSocket(NETLINK_NETFILTER)
        self._decoder = FlowDecoder()
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._deleter.close()

    def list_flows(
        self, family: Family, protocol: Protocol | None = None, destination_port: int = 0, *, unanswered: bool = False
    ) -> Iterator[Flow]:
        """Yield the flows of a family, filtered by protocol and original port if given.

        With `unanswered`, kernels before 5.15 yield answered flows, too.

        Raise DumpInterruptedError after the last one if the kernel may have skipped some.
        """
        decode = self._decoder.decode
        self._reader.drain()
        try:
            request = encode_dump(family, protocol, destination_port, unanswered=unanswered)
            for payload in self._reader.dump(CT_GET, request):
                flow = decode(payload)
                if protocol in (None, flow.protocol) and destination_port in (0, flow.destination_port):
                    yield flow
        except NetlinkError as error:
            raise _explain_error(error) from error

    def count_offloaded(self, family: Family) -> int:
        """Count a family's flows in flowtables. Raise DumpInterruptedError as `list_flows`."""
        self._reader.drain()
        try:
            payloads = self._reader.dump(CT_GET, encode_status_dump(family, STATUS_OFFLOADED))
            return sum(bool(self._decoder.decode(each).status & STATUS_OFFLOADED) for each in payloads)
        except NetlinkError as error:
            raise _explain_error(error) from error

    def delete(self, flows: Iterable[Flow]) -> int:
        """Delete these flows; return the number deleted. Flows that are gone are no error.

        Flows in another program's flowtable are no error: Linux before 6.4 refuses to delete them.
        """
        waiting = iter(flows)
        deleted = 0
        while batch := list(islice(waiting, _BATCH)):
            deleted += len(batch) - self._delete_batch(batch)
        return deleted

    def _delete_batch(self, batch: list[Flow]) -> int:
        """Delete flows in one datagram; return how many were already gone, and how many a flowtable holds."""
        self._deleter.drain()
        first = self._deleter.reserve_sequence_numbers(len(batch))
        requests = [
            encode_message(CT_DELETE, NLM_F_REQUEST, first + index, encode_delete(flow))
            for index, flow in enumerate(batch)
        ]
        # The kernel answers failures unasked; acknowledgements of successes would only cost time.
        self._deleter.send(b"".join(requests))
        gone = 0
        for answer in self._deleter.read_acknowledgements():
            if answer.errno == errno.ENOENT:
                gone += 1
            elif answer.errno == errno.EBUSY:
                gone += 1
                self._held += 1
            elif answer.errno:
                raise NetlinkError(answer.errno, f"cannot delete a flow: {answer.text or os.strerror(answer.errno)}")
        return gone

    def delete_judged(self, judge: Judge) -> FlowDeletions:
        """Delete the selected flows. Repeats an interrupted dump up to `_ATTEMPTS` times."""
        ports = judge.list_ports()
        wanted = sorted(ports) if ports is not None and len(ports) <= _FEW_PORTS else [0]
        which = product(judge.list_families(), judge.list_protocols(), wanted)
        parts = [self._delete_judged_at_port(judge, family, protocol, port) for family, protocol, port in which]
        return FlowDeletions(
            sum(part.examined for part in parts),
            sum(part.deleted for part in parts),
            all(part.complete for part in parts),
            sum(part.held for part in parts),
        )

    def _delete_judged_at_port(self, judge: Judge, family: Family, protocol: Protocol, port: int) -> FlowDeletions:
        examined = deleted = 0
        for _ in range(_ATTEMPTS):
            before = self._held
            flows = self.list_flows(family, protocol, port, unanswered=judge.selects_unanswered())
            try:
                while piece := list(islice(flows, _PIECE)):
                    examined += len(piece)
                    deleted += self.delete(filter(judge, piece))
            except DumpInterruptedError:
                continue
            return FlowDeletions(examined, deleted, held=self._held - before)
        return FlowDeletions(examined, deleted, complete=False)


def _explain_error(error: OSError) -> UnsupportedError | OSError:
    """Turn errors of missing rights or kernel support into UnsupportedError; return others unchanged."""
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
