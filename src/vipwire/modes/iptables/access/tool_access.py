"""Reads and writes rules by the tools; what speaks to the kernel itself falls back to this."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from vipwire.modes.iptables.rules.names import TABLES, Rules
from vipwire.modes.iptables.rules.script import RestoreInput
from vipwire.modes.xtables.refusal import LockedError
from vipwire.modes.xtables.save import Chains, read_stream
from vipwire.modes.xtables.tool import WAIT_SECONDS, RuleTool


@dataclass(slots=True)
class LockWait:
    """The time to wait for the lock. Nothing else is done meanwhile, so after a wait in vain the next is short."""

    seconds: int = WAIT_SECONDS

    def restore(self, tool: RuleTool, text: Iterable[str]) -> None:
        """Pass a text to a tool."""
        try:
            tool.restore(text, self.seconds)
        except LockedError:
            self.seconds = 1
            raise
        self.seconds = WAIT_SECONDS


Known: TypeAlias = Mapping[str, Mapping[str, Rules]]
"""By table: what chains should hold, as far as that is known. Who holds just that is read as these very rules."""


NAMES_US: Final = "KUBE-"
"""Every chain of Kubernetes has this in its name."""


class Written(NamedTuple):
    """What one run has cost: its size in bytes, and the commits that the kernel has counted."""

    size: int
    commits: int


class RuleAccess(Protocol):
    """Reads the tables of one family, and writes runs into them."""

    batch: int
    """Lines a run is divided into at most; 0: one run takes all."""

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        """Read every table, whose chains should hold what is `known`; raise CommitError if that is impossible.

        Where there are no chains of Kubernetes nobody asks what they should hold.
        """

    def write(self, run: RestoreInput) -> Written:
        """Write one run; raise CommitError if the kernel, or who holds the lock, refuses it."""

    def close(self) -> None:
        """Close sockets."""


class ToolAccess:
    """Reads with iptables-save, and gives each run to iptables-restore."""

    def __init__(self, tool: RuleTool, lock_wait: LockWait, batch: int) -> None:
        self._tool, self._lock_wait, self.batch = tool, lock_wait, batch

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        """Read every table."""
        return {table: self._table(table, known) for table in TABLES}

    def _table(self, table: str, known: Callable[[], Known]) -> Chains:
        pieces = self._tool.pieces(table)
        first = next(pieces, "")  # a table begins with its chains
        return read_stream(chain((first,), pieces), known().get(table, {}) if NAMES_US in first else {})

    def write(self, run: RestoreInput) -> Written:
        """Write one run; its text is nowhere in our memory as a whole."""
        size = 0

        def counted() -> Iterator[str]:
            nonlocal size
            for piece in run.pieces():
                size += len(piece)
                yield piece

        self._lock_wait.restore(self._tool, counted())
        return Written(size, run.tables)

    def close(self) -> None:
        """Do nothing: the tools are programs."""
