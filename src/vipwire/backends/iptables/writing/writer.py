"""Writes runs by the tools; what writes the kernel itself falls back to this."""

from typing import NamedTuple, Protocol

from vipwire.backends.iptables.lock_wait import LockWait
from vipwire.backends.iptables.script import Run
from vipwire.xtables.tool import RuleTool


class Written(NamedTuple):
    """What one run has cost: its size in bytes, and the commits that the kernel has counted."""

    size: int
    commits: int


class RunWriter(Protocol):
    """Writes runs into the kernel."""

    batch: int
    """Lines a run is divided into at most; 0: one run takes all."""

    def write(self, run: Run) -> Written:
        """Write one run; raise CommitError if the kernel, or who holds the lock, refuses it."""

    def close(self) -> None:
        """Close sockets."""


class ToolWriter:
    """Gives each run to iptables-restore."""

    def __init__(self, tool: RuleTool, lock_wait: LockWait, batch: int) -> None:
        self._tool, self._lock_wait, self.batch = tool, lock_wait, batch

    def write(self, run: Run) -> Written:
        """Write one run."""
        text = run.text
        self._lock_wait.restore(self._tool, text)
        return Written(len(text), run.tables)

    def close(self) -> None:
        """Have nothing to close."""
