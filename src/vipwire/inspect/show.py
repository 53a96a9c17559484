"""How documents are printed: as JSON or YAML with all their fields, or as tables on a terminal."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_OF_A_FILE: Final = 160
"""Columns where the output is no terminal: what reads it may search for whole words."""

COLOURS: Final = {
    "as planned": "green",
    "answered": "green",
    "ok": "green",
    "drifted": "bold red",
    "missing": "bold red",
    "not as planned": "bold red",
    "not ours": "yellow",
    "not programmed": "yellow",
    "of another version": "yellow",
    "unknown": "yellow",
    "warning": "yellow",
    "dropped": "red",
    "rejected": "red",
    "bad": "bold red",
    "drop": "red",
    "reject": "red",
}


def print_document(document: Any, output: str) -> None:
    """Print a document for a program."""
    if output == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


def console(width: int | None = None) -> Console:
    """Make the console for tables; in a file nothing is cut."""
    made = Console(highlight=False, width=width)
    return made if made.is_terminal else Console(highlight=False, width=width or WIDTH_OF_A_FILE)


def coloured(word: str, by: str | None = None) -> Text:
    """Write a word in the colour of what it (or `by`) means."""
    return Text(word, style=COLOURS.get(by or word, ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Lay out rows under upper-case titles, as kubectl does. Text in square brackets is text."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.upper(), overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def shortened(items: Sequence[str], most: int | None) -> str:
    """Write items one a line, at most so many; say how many more there are."""
    if most is None or len(items) <= most:
        return "\n".join(items) or "-"
    return "\n".join([*items[: most - 1], f"… {len(items) - most + 1} more"])


def size_text(size: float) -> str:
    """Write bytes for a person: `999 B`, `1.5 kB`, `20 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
