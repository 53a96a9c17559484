"""Detects by one small request whether another program may have changed the rules of nf_tables.

The kernel counts every commit in the network namespace, of both families together, so a process that writes rules of
both families shares one Generations. A transaction may name the number that it expects: the kernel refuses the
transaction if another program has committed since.
"""

from typing import Final

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_HIGHEST: Final = (1 << 32) - 1
"""The number after which the kernel continues with 1."""


class Generations:
    """Counts commits of other programs, in the network namespace in which this was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._generation = -1
        self._foreign = 0

    def look(self) -> int:
        """Return a number that changes with each commit of another program."""
        return self._note_generation(self._generation)

    def after(self, before: object, commits: int) -> int | None:
        """Check after `commits` of our own. None: another program has committed since `before`."""
        now = self._note_generation(self._generation + commits)
        return now if now == before else None

    @property
    def expected(self) -> int | None:
        """The kernel's number unless another program has committed since the last look; None before the first."""
        return None if self._generation < 0 else self._generation

    def count_expected(self) -> None:
        """Note our commit, which the kernel accepted as the one after `expected`."""
        self._generation = self._generation % _HIGHEST + 1

    def count_own(self, commits: int) -> None:
        """Note our own commits; `look` then still detects other commits since the last look."""
        self._note_generation(self._generation + commits)

    def _note_generation(self, expected: int) -> int:
        answer = self._socket.ask(MessageType.GETGEN, encode.ask_generation())
        self._generation = decode.generation_id(answer.payload)
        self._foreign += self._generation != expected
        return self._foreign

    def close(self) -> None:
        self._socket.close()
