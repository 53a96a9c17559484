"""Sets how long iptables mode waits for the lock of iptables-legacy."""

from collections.abc import Iterable
from dataclasses import dataclass

from vipwire.modes.xtables.refusal import LockedError
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
