"""Lays out tables as kubectl does: a line for each row, without breaks inside a word, an address or a number.

On a narrow terminal, prose is folded at blanks, then the least important columns are left out, and a line below names
them. A wider word is not broken. In a file, and with all columns requested, no column is left out and all align.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

GAP: Final = "  "
NARROWEST_PROSE: Final = 20
"""The narrowest width of prose; below it other columns are left out."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `prose` may be folded at blanks, but not beside the words in `holds`.

    The highest `rank` is left out first; columns of rank 0 stay.
    """

    title: str
    prose: bool = False
    rank: int = 0
    holds: Container[str] = frozenset()


Line: TypeAlias = str | Text
_Cell: TypeAlias = Sequence[Line]


class Grid:
    """Rows below upper-case titles. Text in square brackets is not markup."""

    def __init__(
        self, columns: Sequence[Column], rows: Iterable[Sequence[str | Text]], *, whole: bool = False
    ) -> None:
        self._columns = tuple(columns)
        self._rows = [tuple(_split_cell(cell) for cell in row) for row in rows]
        self._whole = whole

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        del console
        return Measurement(1, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a line for each row, and one for the columns left out."""
        cuts = console.is_terminal and not self._whole
        natural, least = self._widths(), self._measure_narrowest()
        shown = (
            _choose_widths(self._columns, natural, least, options.max_width) if cuts else range(len(self._columns))
        )
        kept = _Kept(self._columns, [*shown], natural, least, options.max_width, cuts)
        titles = tuple((Text(self._columns[index].title.upper(), "bold"),) for index in kept.indices)
        for cells in (titles, *map(kept.cells, self._rows)):
            yield from _print_cells(console, cells, kept.widths)
        if left := [column.title.upper() for index, column in enumerate(self._columns) if index not in kept.indices]:
            words = f"hidden columns: {', '.join(left)} (use a wider terminal, or -o wide)"
            yield Prose(Text(words, style="dim"))

    def _widths(self) -> list[int]:
        return [
            max([cell_len(column.title), *(_measure_line(line) for row in self._rows for line in row[index])])
            for index, column in enumerate(self._columns)
        ]

    def _measure_narrowest(self) -> list[int]:
        """Measure each prose column's narrowest width; 0 for the others."""
        return [
            max(
                [
                    NARROWEST_PROSE,
                    *(_measure_longest_word(line, column.holds) for row in self._rows for line in row[index]),
                ]
            )
            if column.holds
            else NARROWEST_PROSE * column.prose
            for index, column in enumerate(self._columns)
        ]


class Prose:
    """Text that is folded at blanks, never inside a word; continuation lines are indented by `hanging` columns.

    Text is not folded beside the words in `holds`.
    """

    def __init__(self, text: Text, hanging: int = 0, holds: Container[str] = frozenset()) -> None:
        self._text, self._hanging, self._holds = text, hanging, holds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in _fold_lines(_split_cell(self._text), options.max_width, self._hanging, self._holds):
            yield from (Segment(line),) if isinstance(line, str) else line.render(console)
            yield Segment.line()


@dataclass(slots=True)
class _Kept:
    """The shown columns and their widths: prose shares the width that the others leave. `tight`: fold everywhere."""

    columns: Sequence[Column]
    indices: list[int]
    natural: Sequence[int]
    least: Sequence[int]
    width: int
    tight: bool
    widths: list[int] = field(default_factory=list)

    def cells(self, row: Sequence[_Cell]) -> tuple[_Cell, ...]:
        return tuple(
            tuple(_fold_lines(row[index], width, holds=self.columns[index].holds))
            if self.columns[index].prose
            else row[index]
            for index, width in zip(self.indices, self.widths, strict=True)
        )

    def __post_init__(self) -> None:
        self.widths = [self.natural[index] for index in self.indices]
        over = sum(self.widths) + len(GAP) * (len(self.widths) - 1) - self.width
        prose = [at for at, index in enumerate(self.indices) if self.columns[index].prose]
        while over > 0 and prose:
            widest = max(prose, key=lambda at: self.widths[at])
            others = [self.widths[at] for at in prose if at != widest]
            floor = self.least[self.indices[widest]]
            cut = min(over, max(0, self.widths[widest] - max(floor, max(others, default=0) - 1)))
            if cut == 0:
                prose.remove(widest)
                continue
            self.widths[widest] -= cut
            over -= cut
        if over > 0 and self.tight:
            # rare wide cells overflow their column in their row only
            widest = max(range(len(self.widths)), key=lambda at: self.widths[at])
            self.widths[widest] -= min(over, self.widths[widest] // 3)


def _measure_longest_word(line: Line, holds: Container[str]) -> int:
    return max(map(cell_len, insert_word_joiners(line if isinstance(line, str) else line.plain, holds)))


def _choose_widths(
    columns: Sequence[Column], natural: Sequence[int], narrowest: Sequence[int], width: int
) -> list[int]:
    shown = list(range(len(columns)))

    def needed() -> int:
        least = (min(natural[index], narrowest[index]) if columns[index].prose else natural[index] for index in shown)
        return sum(least) + len(GAP) * (len(shown) - 1)

    while needed() > width and (ranked := [index for index in shown if columns[index].rank]):
        shown.remove(max(ranked, key=lambda index: (columns[index].rank, index)))
    return shown


def _measure_line(line: Line) -> int:
    return cell_len(line if isinstance(line, str) else line.plain)


def _split_cell(cell: Line) -> _Cell:
    return cell.split("\n") if isinstance(cell, str) else [*cell.split("\n", allow_blank=True)] or [Text()]


def insert_word_joiners(text: str, holds: Container[str]) -> Iterator[str]:
    """Yield the pieces of a text that are never broken."""
    return (text[begin:stop] for begin, stop in _find_words(text, holds))


def _fold_lines(
    lines: Iterable[Line], width: int, hanging: int = 0, holds: Container[str] = frozenset()
) -> Iterator[Line]:
    """Fold lines at blanks; a word longer than the width stays whole."""
    for line in lines:
        plain = line if isinstance(line, str) else line.plain
        start = end = 0
        for begin, stop in _find_words(plain, holds):
            if end > start and cell_len(plain[start:stop]) > width - (hanging if start else 0):
                yield _indent_line(line[start:end], hanging if start else 0)
                start = begin
            end = stop
        yield _indent_line(line[start:end], hanging if start else 0)


def _indent_line(line: Line, by: int) -> Line:
    if not by:
        return line
    return " " * by + line if isinstance(line, str) else Text(" " * by).append_text(line)


def _find_words(text: str, holds: Container[str] = frozenset()) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each word; words that hold together are one."""
    at = begin = end = 0
    held = True
    for word in text.split(" "):
        if word:
            if not (held or word in holds):
                yield begin, end
                begin = at
            held = word in holds
            end = at + len(word)
        at += len(word) + 1
    yield begin, end


def _print_cells(console: Console, cells: Sequence[_Cell], widths: Sequence[int]) -> Iterator[Segment]:
    for number in range(max(map(len, cells), default=0)):
        blanks = ""
        for cell, width in zip(cells, widths, strict=True):
            line: Line = cell[number] if number < len(cell) else ""
            if size := _measure_line(line):
                yield Segment(blanks)
                yield from (Segment(line),) if isinstance(line, str) else line.render(console)
                blanks = ""
            blanks += " " * (width - size) + GAP
        yield Segment.line()
