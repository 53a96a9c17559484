"""Tells, without running a program, whether anybody else has changed the rules of this network namespace.

nf_tables counts every commit of anybody; ours are known by their number. The legacy engine counts nothing: there the
rules are read and compared instead.
"""

from vipwire.netlink.nftables import decode, encode
from vipwire.netlink.nftables.wire import Kind
from vipwire.netlink.socket import NETLINK_NETFILTER, NetlinkSocket


class Generations:
    """How many commits of others were noticed. Both families share one: the kernel counts them together."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._expected = self._read()
        self._foreign = 0

    def look(self) -> int:
        """Count how often others have committed."""
        now = self._read()
        if now != self._expected:
            self._expected, self._foreign = now, self._foreign + 1
        return self._foreign

    def committed(self, tables: int) -> None:
        """Take in a run of ours, which commits each table once."""
        self._expected += tables

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _read(self) -> int:
        (answer,) = self._socket.request(Kind.GETGEN, encode.ask_generation())
        return decode.generation(answer.payload).id
