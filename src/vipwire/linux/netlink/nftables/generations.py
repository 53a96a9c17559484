"""Detects other programs' commits to the rules of nf_tables, by one small request.

The kernel counts every commit in the network namespace, of both families together, so a process that writes rules of
both families shares one Generations. A transaction may name the number that it expects: the kernel refuses the
transaction if another program has committed since. `listen` makes the kernel tell of each commit.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

if TYPE_CHECKING:
    from vipwire.linux.netlink.nftables.listener import CommitListener

_HIGHEST: Final = (1 << 32) - 1
"""The number after which the kernel continues with 1."""
_MANY: Final = 1000
"""A commit of so many elements pauses the listener, for which the kernel would hold 8 kB for each element."""


class Generations:
    """Counts commits of other programs, in the network namespace in which this was made."""

    def __init__(self) -> None:
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._generation = -1
        self._foreign = 0
        self._listener: CommitListener | None = None

    def listen(self, tables: Iterable[str], writer: int) -> "CommitListener":
        """Hear of other programs' commits to these tables, but not of those from the socket with port ID `writer`.

        All callers share one listener, for the tables of the first.
        """
        if self._listener is None:
            from vipwire.linux.netlink.nftables.listener import CommitListener  # noqa: PLC0415  # synced before

            self._listener = CommitListener(tables)
        self._listener.ignore(writer)
        return self._listener

    @contextmanager
    def pause_during_own_commit(self, elements: int) -> Iterator[None]:
        """Pause the listener during vipwire's own large commit."""
        if self._listener is None or elements < _MANY:
            yield
            return
        self._listener.pause()
        before = self.observe()
        try:
            yield
        finally:
            self._listener.resume()
            if self.observe() != before:
                self._listener.miss()

    def observe(self) -> int:
        """Return a number that changes with each commit of another program."""
        return self._record_generation(self._generation)

    def observe_after(self, before: object, commits: int) -> int | None:
        """Check after `commits` of our own. None: another program has committed since `before`."""
        now = self._record_generation(self._generation + commits)
        return now if now == before else None

    @property
    def expected(self) -> int | None:
        """The kernel's number unless another program has committed since the last look; None before the first."""
        return None if self._generation < 0 else self._generation

    def count_expected(self) -> None:
        """Note our commit, which the kernel accepted as the one after `expected`."""
        self._generation = self._generation % _HIGHEST + 1

    def count_own(self, commits: int) -> None:
        """Note our own commits; `observe` then still detects other commits since the last look."""
        self._record_generation(self._generation + commits)

    def _record_generation(self, expected: int) -> int:
        answer = self._socket.ask(MessageType.GETGEN, encode.request_generation())
        self._generation = decode.decode_generation_id(answer.payload)
        self._foreign += self._generation != expected
        return self._foreign

    def close(self) -> None:
        self._socket.close()
        if self._listener is not None:
            self._listener.close()
