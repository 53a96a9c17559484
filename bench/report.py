"""Figures with targets, and the median and best of several runs."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `target` is the most that it should be, None without a promise."""

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
        return statistics.median(self.values)

    @property
    def best(self) -> float:
        """The lowest of the runs: less is better for all figures."""
        return min(self.values)

    @property
    def verdict(self) -> str:
        """Judge by the median: a best run alone depends on other load."""
        if self.target is None:
            return ""
        if self.median <= self.target:
            return "met"
        return "met by the best run" if self.best <= self.target else "MISSED"


def rows(runs: Sequence[Sequence[Figure]]) -> list[Row]:
    """Combine the runs of one scenario by figure; runs may lack figures."""
    found: dict[str, list[Figure]] = {}
    for figure in chain.from_iterable(runs):
        found.setdefault(figure.name, []).append(figure)
    return [
        Row(name, each[0].unit, each[0].target, tuple(figure.value for figure in each))
        for name, each in found.items()
    ]


def text(title: str, table: Iterable[Row]) -> str:
    lines = [title, f"  {'':58} {'median':>10} {'best':>10}  {'at most':>8}"]
    for row in table:
        target = "" if row.target is None else f"{_number(row.target)}"
        numbers = f"{_number(row.median):>10} {_number(row.best):>10}  {target:>8}"
        lines.append(f"  {f'{row.name} [{row.unit}]':58} {numbers}  {row.verdict}".rstrip())
    return "\n".join(lines)


def document(table: Iterable[Row]) -> list[dict[str, Any]]:
    return [{**asdict(row), "median": row.median, "best": row.best, "verdict": row.verdict} for row in table]


def _number(value: float) -> str:
    if value == int(value) and abs(value) >= 1:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"
