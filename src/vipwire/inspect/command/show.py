"""Prints documents: as JSON, YAML or names, or laid out for a terminal; and the words that views share."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import yaml
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook, RenderResult
from rich.segment import Segment
from rich.text import Text

from vipwire.linux.netlink.conntrack import FlowChange
from vipwire.model.text import escape_invisible, visible_lines
from vipwire.model.times import parse_time
from vipwire.terminal.columns import Column, Grid, Prose
from vipwire.terminal.output import print_line

WIDTH_OF_A_FILE: Final = 160
"""Columns if the output is not a terminal: a program may search it for whole words."""

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
    "otherwise": "yellow",
    "dropped": "red",
    "rejected": "red",
    "bad": "bold red",
    "drop": "red",
    "reject": "red",
}


def escape_document(value: Any) -> Any:
    """Escape terminal control characters in every string of a document: keys, values, items of lists."""
    if isinstance(value, str):
        return escape_invisible(value)
    if isinstance(value, Mapping):
        return {escape_document(key): escape_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escape_document(item) for item in value]
    return value


def print_document(document: Any, output: str) -> None:
    """Print a document as JSON, YAML or names. The values are the objects' own, with control characters escaped."""
    if output == "json":
        click.echo(write_json(document, indent=2))
    else:
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        if visible_lines(text) != text:
            text = yaml.safe_dump(document, sort_keys=False)
        click.echo(text, nl=False)


def write_json(document: Any, indent: int | None = None) -> str:
    """Write a document as JSON without terminal control characters."""
    return visible_lines(json.dumps(document, indent=indent, ensure_ascii=False))


def print_view(document: Any, output: str, view: Callable[[Any], RenderableType], *, soft_wrap: bool = False) -> None:
    """Print a document: laid out by `view`, or as JSON, YAML or names."""
    if output == "name":
        _print_names(document)
    elif output in ("json", "yaml"):
        print_document(document, output)
    else:
        write_view(build_console(), view(escape_document(document)), soft_wrap=soft_wrap)


def print_item(document: Any, output: str) -> None:
    if output == "json":
        click.echo(write_json(document))
    elif output == "yaml":
        click.echo("---")
        print_document(document, output)
    else:
        _print_names(document)


def _print_names(document: Any) -> None:
    for name in list_names(document):
        print_line(name)


def write_view(screen: Console, view: RenderableType, *, soft_wrap: bool = False) -> None:
    """Print a view. A word wider than the screen is not broken."""
    screen.print(view if soft_wrap else _wrap_long_words(view), soft_wrap=soft_wrap, crop=False)


def _wrap_long_words(view: RenderableType) -> RenderableType:
    """Wrap all text of a view only at blanks."""
    if isinstance(view, Group):
        return Group(*map(_wrap_long_words, view.renderables))
    return Prose(view) if isinstance(view, Text) else view


class _Visible(ConsoleRenderable):
    """Text to print without its control characters."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(visible_lines(segment.text), segment.style)


class _Guard(RenderHook):
    """Removes control characters from everything that a console prints, including text from no document."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(each) for each in renderables]


def build_console(width: int | None = None) -> Console:
    """Build the console for tables; output to a file is not truncated."""
    made = Console(highlight=False, width=width)
    if not made.is_terminal:
        made = Console(highlight=False, width=width or WIDTH_OF_A_FILE)
    made.push_render_hook(_Guard())
    return made


def colour_word(word: str, by: str | None = None) -> Text:
    """Write a word in the colour of the word, or of `by`."""
    return Text(word, style=COLOURS.get(by or word, ""))


def add_remedy(said: str, remedy: str) -> Text:
    return Text.assemble(said, (f"\n→ {remedy}", "cyan")) if remedy else Text(said)


def build_table(
    columns: Sequence[str | Column], rows: Iterable[Sequence[str | Text]], *, whole: bool = False
) -> Grid:
    """Lay out rows under upper-case titles, as kubectl does; with `whole` no column is left out."""
    return Grid([each if isinstance(each, Column) else Column(each) for each in columns], rows, whole=whole)


def format_age(when: str, now: float) -> str:
    """Write the age of a time (RFC 3339), roughly: `3 s ago`, `5 min ago`, `2 h ago`."""
    seconds = max(0.0, now - parse_time(when).timestamp())
    for most, unit, size in ((100, "s", 1), (100 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"


def format_count(number: int, noun: str) -> str:
    """Write a number with its noun: `1 warning`, `2 warnings`, `2 addresses`."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def join_words(words: Sequence[str], most: int = 5) -> str:
    """Join words by commas; after `most` words write the number of the others."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def format_size(size: float) -> str:
    """Write bytes: `999 B`, `1.5 kB`, `20 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def format_time(seconds: float | None) -> str | None:
    """Write a time (seconds since the epoch) as RFC 3339, in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def format_service(service: Any) -> str:
    """Write the namespace and name of a Service: `default/web`."""
    return f"{service['namespace']}/{service['name']}"


def format_port(service: Any, port: Any) -> str:
    """Write a Service port: `default/web:http`, without the colon if it has no name."""
    return format_service(service) + (f":{port['name']}" if port["name"] else "")


def format_endpoint_document(part: Any) -> str:
    """Write an address and port: `10.0.0.1:80`, `[fd00::1]:80`, `10.0.0.1:80-89`."""
    address, last = part["address"], f"-{part['lastPort']}" if "lastPort" in part else ""
    return f"[{address}]:{part['port']}{last}" if ":" in address else f"{address}:{part['port']}{last}"


def list_names(document: Any) -> Iterable[str]:
    """Return the names of a document's Services, endpoints, findings or objects; none for a summary."""
    kind = document.get("kind", "Event")
    return _NAMES[kind](document) if kind in _NAMES else ()


def _list_service_names(document: Any) -> Iterable[str]:
    return map(format_service, document["services"])


def _list_event_names(event: Any) -> Iterable[str]:
    return (event["endpoint"],) if event["event"] == FlowChange.NEW.value and event["endpoint"] else ()


_NAMES: Final[Mapping[str, Callable[[Any], Iterable[str]]]] = {
    "Status": _list_service_names,
    "Plan": _list_service_names,
    "Explanation": lambda document: map(format_endpoint_document, document["endpoints"]),
    "Check": lambda document: (
        f"{each['area']}/{each['what']}" for each in document["findings"] if each["level"] in ("bad", "warning")
    ),
    "Diff": lambda document: (name for family in document["families"] for name in family["objects"]),
    "Drain": lambda document: (document["endpoint"],),
    "DrainList": lambda document: (each["endpoint"] for each in document["drained"]),
    "Top": lambda document: dict.fromkeys(
        row["service"].rpartition(":")[0] or row["service"] for row in document["rows"]
    ),
    "Event": _list_event_names,
}
