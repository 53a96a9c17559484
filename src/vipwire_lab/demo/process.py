"""A process whose output is read as it comes, so that the demo can wait for what it says."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from vipwire_lab.net.errors import LabError


class Listened:
    """A running process of ours; `name` is what errors call it."""

    def __init__(self, name: str, process: subprocess.Popen[Any]) -> None:
        self._name, self._process = name, process
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, name=f"{name} log", daemon=True)
        self._reader.start()

    def mark(self) -> int:
        """Remember how far its output has come, for `until`."""
        with self._news:
            return len(self._lines)

    def until(self, enough: Callable[[Sequence[str]], bool], patience: float, since: int = 0) -> list[str]:
        """Wait until the lines after a mark are enough; give them. Raise LabError if that does not happen."""
        deadline = time.monotonic() + patience
        with self._news:
            while not enough(lines := self._lines[since:]):
                if self._over or not self._news.wait(deadline - time.monotonic()):
                    what = "ended" if self._over else f"has not said it for {patience:.0f} s"
                    raise LabError(f"{self._name} {what}; it said:\n" + "\n".join(self._lines[-12:]))
            return lines

    def end(self, patience: float, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as a service manager does, or by another signal, and return its exit status."""
        self._process.send_signal(number)
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise LabError(f"{self._name} has not ended within {patience:.0f} s of {number.name}") from error
        self._reader.join()
        return status

    def _read(self) -> None:
        with self._process.stdout or open(os.devnull) as lines:  # noqa: PTH123 - nothing to read
            for line in lines:
                with self._news:
                    self._lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()
