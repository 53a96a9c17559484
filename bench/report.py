"""Figures, and how they are told: each with what it should be at most, several runs of it as median and best."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `target` is the most that it should be, None where nothing was promised."""

    name: str
    value: float
    unit: str
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One figure over several runs."""

    name: str
    unit: str
    target: float | None
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one of the runs."""
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The lowest of the runs: here less is always better."""
        return min(self.values)

    @property
    def verdict(self) -> str:
        """Judge by the median; what only the best run reaches depends on who else uses the machine."""
        if self.target is None:
            return ""
        if self.median <= self.target:
            return "met"
        return "met by the best run" if self.best <= self.target else "MISSED"


def rows(runs: Sequence[Sequence[Figure]]) -> list[Row]:
    """Put the runs of one scenario side by side; a figure that a run could not take is missing there alone."""
    found: dict[str, list[Figure]] = {}
    for figure in chain.from_iterable(runs):
        found.setdefault(figure.name, []).append(figure)
    return [
        Row(name, each[0].unit, each[0].target, tuple(figure.value for figure in each))
        for name, each in found.items()
    ]


def text(title: str, table: Iterable[Row]) -> str:
    """Write one scenario's table for a person."""
    lines = [title, f"  {'':58} {'median':>10} {'best':>10}  {'at most':>8}"]
    for row in table:
        target = "" if row.target is None else f"{_number(row.target)}"
        numbers = f"{_number(row.median):>10} {_number(row.best):>10}  {target:>8}"
        lines.append(f"  {f'{row.name} [{row.unit}]':58} {numbers}  {row.verdict}".rstrip())
    return "\n".join(lines)


def document(table: Iterable[Row]) -> list[dict[str, Any]]:
    """Make one scenario's table for a program."""
    return [{**asdict(row), "median": row.median, "best": row.best, "verdict": row.verdict} for row in table]


def _number(value: float) -> str:
    if value == int(value) and abs(value) >= 1:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"
