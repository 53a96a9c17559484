"""What a command needs that is the first process of a container."""

import os
import signal
import sys


def end_by_sigterm() -> None:
    """Let SIGTERM end this process although it is the first, for which the kernel leaves out what nobody asked for."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
