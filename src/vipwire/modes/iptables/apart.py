"""Does something in a network namespace of its own, where tables are empty: nobody waits for it, and nobody sees it.

Modules and the programs are the same there. Where no namespace can be made, it is done here.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Final, Generic, NoReturn, TypeVar

T = TypeVar("T")

_CLONE_NEWNET: Final = 0x40000000


def apart(work: Callable[[], T]) -> T:
    """Return what `work` returns, and raise what it raises. The namespace goes when it has ended."""
    errand = _Errand(work)
    errand.start()
    errand.join()
    return errand.outcome()


class _Errand(threading.Thread, Generic[T]):
    """A thread, because the namespace is the thread's alone (unshare(2))."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(name="apart")
        self._work = work
        self._outcome: Callable[[], T] | None = None

    def run(self) -> None:
        """Do it, there or here."""
        ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET)
        try:
            result = self._work()
        except Exception as error:  # noqa: BLE001 - it is raised where the outcome is asked for
            self._outcome = _raising(error)
        else:
            self._outcome = lambda: result

    def outcome(self) -> T:
        """Return the result, or raise the error."""
        if self._outcome is None:
            raise RuntimeError("the thread has not ended")
        return self._outcome()


def _raising(error: Exception) -> Callable[[], NoReturn]:
    def again() -> NoReturn:
        raise error

    return again
