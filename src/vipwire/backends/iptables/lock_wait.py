"""Sets how long iptables mode waits for the lock of iptables-legacy."""

from dataclasses import dataclass

from vipwire.xtables.refusal import LockedError
from vipwire.xtables.tool import WAIT_SECONDS, RuleTool


@dataclass(slots=True)
class LockWait:
    """How long the lock is waited for. Nothing else is done meanwhile: after a wait in vain one waits little."""

    seconds: int = WAIT_SECONDS

    def restore(self, tool: RuleTool, text: str) -> None:
        """Give a text to a tool."""
        try:
            tool.restore(text, self.seconds)
        except LockedError:
            self.seconds = 1
            raise
        self.seconds = WAIT_SECONDS
