"""Handles signals during the start: an early SIGHUP would end the process; process 1 would ignore SIGTERM."""

import os
import signal
import sys
from types import FrameType


class EarlySighup:
    """The handler of SIGHUP during the start; `came` tells whether one arrived."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.came = True


def record_signals() -> None:
    """Record every SIGHUP from now on. Call this before any slow work."""
    signal.signal(signal.SIGHUP, EarlySighup())


def end_by_sigterm() -> None:
    """Let SIGTERM end this process even as process 1, for which the kernel ignores unhandled signals."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
