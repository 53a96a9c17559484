"""Waits for facts that no process reports."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from vipwire_lab import guest_kernel

PATIENCE = {None: 60.0, guest_kernel.GuestKernel.USER_MODE: 180.0, guest_kernel.GuestKernel.DISTRIBUTION: 600.0}[
    guest_kernel.current_guest_kernel()
]
"""Seconds until a missing fact is a failure; guests are slow, and beside `make test` get a third of a CPU."""
_Fact = TypeVar("_Fact")


def until(fact: Callable[[], _Fact], what: object = "", patience: float = PATIENCE) -> _Fact:
    """Repeat `fact` until it holds; return it. `what` may be a function, evaluated on failure.

    Asking takes CPU time from the asked: pauses last a tenth of the time waited, a fifth of a second at most.
    """
    began, pause = time.monotonic(), threading.Event()
    while not (found := fact()):
        waited = time.monotonic() - began
        if waited > patience:
            pytest.fail(f"not so after {patience:.0f} s: {what() if callable(what) else what}")
        pause.wait(min(max(0.01, waited / 10), 0.2))
    return found
