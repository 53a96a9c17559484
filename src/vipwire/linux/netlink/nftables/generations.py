"""Tells by one small request whether somebody else may have changed the rules of nf_tables.

The kernel counts every commit of anybody in the network namespace, of both families together. Between two looks
nothing but our own commits may have counted; so whoever writes rules of both families shares one of these.

A transaction may name the number that it expects to find. The kernel refuses it if others have committed since, and
otherwise there is nothing left to ask.
"""

from typing import Final

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_HIGHEST: Final = (1 << 32) - 1
"""After it comes 1."""


class Generations:
    """Counts the commits of others, in the network namespace in which this was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._generation = -1
        self._foreign = 0

    def look(self) -> int:
        """Count how often others have committed."""
        return self._noticed(self._generation)

    def after(self, before: object, commits: int) -> int | None:
        """Check after commits of ours, each of which counts one. None: others have committed since `before`."""
        now = self._noticed(self._generation + commits)
        return now if now == before else None

    @property
    def expected(self) -> int | None:
        """The number that the kernel has unless others have committed since the last look; None before that."""
        return None if self._generation < 0 else self._generation

    def count_expected(self) -> None:
        """Note a commit of ours that the kernel has taken as one that comes after `expected`."""
        self._generation = self._generation % _HIGHEST + 1

    def count_own(self, commits: int) -> None:
        """Note commits of ours. Whoever has committed since the last look is found by this, too."""
        self._noticed(self._generation + commits)

    def _noticed(self, expected: int) -> int:
        answer = self._socket.ask(MessageType.GETGEN, encode.ask_generation())
        self._generation = decode.generation_id(answer.payload)
        self._foreign += self._generation != expected
        return self._foreign

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
