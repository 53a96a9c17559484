"""Repeated connections, and the failed ones that no fault explains."""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vipwire_lab.cluster.outcome import ProbeOptions, Target
from vipwire_lab.cluster.probe import probe

INTERVAL, PATIENCE = 0.03, 10.0


@dataclass(frozen=True, slots=True)
class Window:
    """A time span on the monotonic clock, in seconds, in which a fault explains failed connections."""

    fault: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed connection: when it began and ended, and the error."""

    begin: float
    end: float
    what: str


def unexplained(failures: Iterable[Failure], windows: Iterable[Window]) -> list[Failure]:
    spans = [(window.begin, window.end) for window in windows]
    return [each for each in failures if not any(each.begin <= end and begin <= each.end for begin, end in spans)]


class Prober:
    """While entered, a thread connects repeatedly from a namespace to a target."""

    def __init__(self, name: str, namespace: Path, target: Target) -> None:
        self.name, self.attempts = name, 0
        self.failures: list[Failure] = []
        self.answers: Counter[str] = Counter()
        self._namespace, self._target, self._stop = namespace, target, threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"probe {target}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            (result,) = probe(self._namespace, self._target, ProbeOptions(timeout=PATIENCE))
            self.attempts += 1
            if result.answer:
                self.answers[result.pod] += 1
            else:
                self.failures.append(Failure(begin, time.monotonic(), f"{self.name}: {result.outcome.value}"))
            self._stop.wait(INTERVAL)
