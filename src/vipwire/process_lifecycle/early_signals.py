"""Handles signals during the start: an early SIGHUP would end the process; process 1 would ignore SIGTERM."""

import os
import signal
import sys
from types import FrameType

_came: list[int] = []


def remember() -> None:
    """Record every SIGHUP from now on. Call this before any slow work."""
    signal.signal(signal.SIGHUP, _record_signal)


def _record_signal(number: int, frame: FrameType | None) -> None:
    del frame
    _came.append(number)


def take_recorded_sighup() -> bool:
    """Return once whether a SIGHUP was recorded; the caller handles later ones."""
    found = bool(_came)
    _came.clear()
    return found


def end_by_sigterm() -> None:
    """Let SIGTERM end this process even as process 1, for which the kernel ignores unhandled signals."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
