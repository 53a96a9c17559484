"""Runs ipvs mode's tests in guests with IPVS, which start with the session and run beside it.

While other tests run, the guests leave them one CPU; their verdicts are due last, and then they have all. A worker of
a parallel session starts the guest that its test asks for, and waits.
"""

import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from vipwire_lab import guest_kernel
from vipwire_lab.namespaces.errors import LabError

_HERE = Path(__file__).parent
_CONFORMANCE = _HERE.parent / "conformance"
_TIMEOUT, _SILENCE = 1800.0, 300.0
"""Seconds until a guest counts as dead: in all, and without output. A single test may take 280."""
_EXCUSED = re.compile(r"S\d+: ipvs cannot: |ipvs has nothing of that kind")


@dataclass(frozen=True, slots=True)
class Suite:
    """Test files that a guest runs."""

    name: str
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return self.name


_CHANGING = frozenset(
    _CONFORMANCE / f"test_{name}.py"
    for name in (
        "affinity",
        "changes",
        "changes_udp",
        "counting",
        "draining",
        "ejection",
        "repair",
        "restart",
        "slow_start",
    )
)
"""Half of the work. Suites are not split by family, because clusters take seconds to build."""
_SLOW = frozenset({_CONFORMANCE / "test_dashboard.py"})
"""Prometheus takes a minute in a guest. Other tests check ipvs mode's metrics."""
_STANDING = frozenset(_CONFORMANCE.glob("test_*.py")) - _CHANGING - _SLOW

_OWN = (
    *("packets", "last_endpoint", "sets", "bridge", "ranges", "affinity", "features", "explain"),
    *("kube_router", "takeover", "leaving", "fallback", "examples", "clock_jumps"),
)

SUITES = (
    Suite("conformance-changing", tuple(sorted(_CHANGING))),
    Suite("conformance-standing", tuple(sorted(_STANDING))),
    Suite("packets", tuple(_HERE / "ipvs" / f"{name}.py" for name in _OWN)),
)
"""The longest first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A suite's result: the number of passed tests, summaries of the others, exit status, and the output."""

    passed: int
    failed: tuple[str, ...]
    status: int
    said: str


class Guests:
    """A guest for each suite, each in a thread. A dead one boots once more. `options` are for their pytest."""

    def __init__(self, suites: Sequence[Suite], options: Sequence[str] = ()) -> None:
        self._options = tuple(options)
        self._turns = threading.Semaphore(max(1, (os.cpu_count() or 2) - 1))
        self._given_up = threading.Event()
        self._verdicts: dict[Suite, Future[Verdict]] = {suite: Future() for suite in suites}
        self._threads = [threading.Thread(target=self._take_turn, args=(suite,), daemon=True) for suite in suites]
        self._waited_for = False
        for thread in self._threads:
            thread.start()

    def verdict(self, suite: Suite) -> Verdict:
        """Wait for a suite's end; the waiting session lets one more guest run."""
        if not self._waited_for:
            self._waited_for = True
            self._turns.release()
        return self._verdicts[suite].result()

    def close(self) -> None:
        """End the running guests, whose verdicts are no longer needed."""
        self._given_up.set()
        for thread in self._threads:
            thread.join()

    def _take_turn(self, suite: Suite) -> None:
        try:
            with self._turns:
                self._verdicts[suite].set_result(self._twice(suite))
        except BaseException as error:  # noqa: BLE001 - it is the asking thread's
            self._verdicts[suite].set_exception(error)

    def _twice(self, suite: Suite) -> Verdict:
        try:
            return run(suite, self._options, self._given_up)
        except LabError as error:  # about once in fifty runs a guest hangs; its console shows where
            if self._given_up.is_set():
                raise
            print(f"the guest of {suite} is booted once more: {error}", file=sys.__stderr__)
            return run(suite, self._options, self._given_up)


def run(suite: Suite, more: Sequence[str], given_up: threading.Event) -> Verdict:
    """Boot a guest for a suite. Raise LabError if it dies."""
    said = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="vipwire-guest-") as name:
        report = Path(name) / "report.xml"
        options = ["-p", "no:cacheprovider", "--tb=short", "-q", "--timeout=280", "--reruns=1", "-rR", *more]
        command = [sys.executable, "-m", "pytest", *options, f"--junit-xml={report}", *map(str, suite.paths)]
        cpu = SUITES.index(suite)
        guest = guest_kernel.Guest("2048M", _TIMEOUT, (Path(name),), silence=_SILENCE, given_up=given_up, cpu=cpu)
        try:
            status = guest_kernel.run_in_guest(command, guest, stdout=said, stderr=said)
        except LabError as error:
            raise LabError(f"{error}\nthe tests in it said:\n{_text(said)}") from error
        cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []  # noqa: S314 - our own
    failed = tuple(
        f"{case.get('name')}\n{''.join(child.text or '' for child in case)}" for case in cases if _bad(case)
    )
    return Verdict(len(cases) - len(failed), failed, status, _text(said))


def _bad(case: ET.Element) -> bool:
    return any(
        child.tag in ("failure", "error")
        or (child.tag == "skipped" and not _EXCUSED.search(child.get("message", "")))
        for child in case
    )


def _text(said: io.BytesIO) -> str:
    return said.getvalue().decode(errors="replace")
