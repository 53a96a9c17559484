"""Handles signals that come early: SIGHUP would end the process, SIGTERM not end a container's first one."""

import os
import signal
import sys
from types import FrameType

_came: list[int] = []


def remember() -> None:
    """Remember every SIGHUP from now on. Call it before anything that takes time."""
    signal.signal(signal.SIGHUP, _note)


def _note(number: int, frame: FrameType | None) -> None:
    del frame
    _came.append(number)


def taken() -> bool:
    """Report whether one was remembered, once; whoever listens from now on does what it asks for."""
    found = bool(_came)
    _came.clear()
    return found


def end_by_sigterm() -> None:
    """Let SIGTERM end this process even if it is the first, which the kernel spares what it has not asked for."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
