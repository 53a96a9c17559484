"""Tables on narrow and wide terminals: whatever is shown is whole."""

import io
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from vipwire.terminal.columns import Column, Grid, Prose

WORD = st.text("abc.:/0123456789-äß語", min_size=1, max_size=24)
CELL = st.lists(WORD, min_size=1, max_size=6).map(" ".join)


def printed(view: RenderableType, width: int, *, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system=None).print(view, crop=False)
    return out.getvalue().splitlines()


@given(st.lists(st.tuples(CELL, CELL, CELL), max_size=6), st.integers(20, 200))
def test_no_word_is_broken_and_none_is_lost(rows: Sequence[tuple[str, str, str]], width: int) -> None:
    columns = [Column("one"), Column("two", prose=True), Column("three", prose=True)]
    said = " ".join(printed(Grid(columns, rows), width)).split()
    for row in rows:
        for cell in row:
            assert set(cell.split()) <= set(said)


@given(st.lists(st.tuples(CELL, CELL), max_size=6))
def test_in_a_file_nothing_is_left_out(rows: Sequence[tuple[str, str]]) -> None:
    lines = printed(Grid([Column("one", rank=2), Column("two", rank=1)], rows), 10, terminal=False)
    assert len(lines) == len(rows) + 1
    assert all(first in line and second in line for (first, second), line in zip(rows, lines[1:], strict=True))


def test_in_a_file_and_where_all_was_asked_for_columns_line_up() -> None:
    rows = [["a", "10.96.0.10:80/tcp at 127.96.0.10:80", "x"], ["b", "short", "y"]]
    wanted = [
        "NAME  ADDRESS                              LAST",
        "a     10.96.0.10:80/tcp at 127.96.0.10:80  x",
        "b     short                                y",
    ]
    columns = [Column("name"), Column("address"), Column("last")]
    assert printed(Grid(columns, rows), 20, terminal=False) == wanted
    assert printed(Grid(columns, rows, whole=True), 20) == wanted


@given(CELL, st.integers(1, 80))
def test_prose_is_folded_at_blanks_alone(text: str, width: int) -> None:
    lines = printed(Prose(Text(text)), width)
    assert " ".join(lines).split() == text.split()


def test_what_is_folded_hangs_where_it_is_asked_to() -> None:
    text = Text("12:00 new default/web 203.0.113.2:35858 → 10.96.0.10:80/tcp")
    assert printed(Prose(text, hanging=6), 40) == [
        "12:00 new default/web 203.0.113.2:35858",
        "      → 10.96.0.10:80/tcp",
    ]
    assert printed(Prose(text, hanging=6), 80) == [text.plain]


def test_what_matters_least_is_left_out_first_and_that_is_said() -> None:
    columns = [Column("name"), Column("type", rank=2), Column("policy", rank=1), Column("state")]
    rows = [["default/a", "LoadBalancer", "external Local", "as planned"]]
    assert printed(Grid(columns, rows), 60) == [
        "NAME       TYPE          POLICY          STATE",
        "default/a  LoadBalancer  external Local  as planned",
    ]
    assert printed(Grid(columns, rows), 40)[:2] == [
        "NAME       POLICY          STATE",
        "default/a  external Local  as planned",
    ]
    assert printed(Grid(columns, rows), 30) == [
        "NAME       STATE",
        "default/a  as planned",
        "hidden columns: TYPE, POLICY",
        "(use a wider terminal, or -o",
        "wide)",
    ]
    assert printed(Grid(columns, rows), 12)[1] == "default/a  as planned", "over the edge, but whole"
    assert len(printed(Grid(columns, rows, whole=True), 12)) == 2


def test_prose_shares_what_the_others_leave() -> None:
    columns = [Column("name"), Column("why", prose=True), Column("how", prose=True)]
    rows = [["a", "one two three four five six seven eight nine", "ten eleven twelve"]]
    assert printed(Grid(columns, rows), 50) == [
        "NAME  WHY                        HOW",
        "a     one two three four five    ten eleven twelve",
        "      six seven eight nine",
    ]
