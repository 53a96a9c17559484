"""Remembers a SIGHUP that comes before the proxy handles it: by default it would end the process."""

import signal
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
