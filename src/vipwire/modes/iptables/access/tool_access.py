"""Reads and writes rules with the iptables tools; `NftAccess` falls back to this."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from vipwire.errors import BusyError
from vipwire.modes.iptables.rules.names import TABLES, Rules
from vipwire.modes.iptables.rules.script import RestoreInput
from vipwire.modes.xtables.save import Chains, read_stream
from vipwire.modes.xtables.tool import WAIT_SECONDS, RuleTool


@dataclass(slots=True)
class LockWait:
    """The wait for the xtables lock. It blocks the mode, so after a timeout the next wait is short."""

    seconds: int = WAIT_SECONDS

    def restore(self, tool: RuleTool, text: Iterable[str]) -> None:
        try:
            tool.restore(text, self.seconds)
        except BusyError:
            self.seconds = 1
            raise
        self.seconds = WAIT_SECONDS


Known: TypeAlias = Mapping[str, Mapping[str, Rules]]
"""The expected rules of chains, by table. A reader returns these objects for a chain that holds them."""


NAMES_US: Final = "KUBE-"
"""Part of every chain name of Kubernetes."""


class Written(NamedTuple):
    """The cost of one run: its size in bytes, and the commits that the kernel counted."""

    size: int
    commits: int


class RuleAccess(Protocol):
    """Reads the tables of one family, and writes runs."""

    batch: int
    """The limit of lines in a run; 0: unlimited."""

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        """Read every table; raise CommitError if that fails. `known` returns the expected rules.

        `known` is not called if no chain of Kubernetes exists.
        """

    def write(self, run: RestoreInput) -> Written:
        """Write one run; raise CommitError if the kernel refuses it or the xtables lock stays taken."""

    def close(self) -> None: ...


class ToolAccess:
    """Reads with iptables-save, and passes each run to iptables-restore."""

    def __init__(self, tool: RuleTool, lock_wait: LockWait, batch: int) -> None:
        self._tool, self._lock_wait, self.batch = tool, lock_wait, batch

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        return {table: self._table(table, known) for table in TABLES}

    def _table(self, table: str, known: Callable[[], Known]) -> Chains:
        pieces = self._tool.pieces(table)
        first = next(pieces, "")  # a table begins with its chains
        return read_stream(chain((first,), pieces), known().get(table, {}) if NAMES_US in first else {})

    def write(self, run: RestoreInput) -> Written:
        """Write one run; its text never lies in memory as a whole."""
        size = 0

        def counted() -> Iterator[str]:
            nonlocal size
            for piece in run.pieces():
                size += len(piece)
                yield piece

        self._lock_wait.restore(self._tool, counted())
        return Written(size, run.tables)

    def close(self) -> None: ...
