"""A comparison as tables for a terminal."""

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vipwire.process.columns import Column, Grid, Prose

Document = dict[str, Any]

_MODES: Final = (
    Column("mode"),
    Column("rules"),
    Column("bytes", rank=2),
    Column("a change", rank=1),
    Column("connection"),
    Column("by the service"),
    Column("explain", rank=3),
    Column("kernel", rank=4),
)


def more_text(microseconds: float) -> str:
    """Print the time that a Service adds; less than 1 µs is noise of the clock."""
    return f"+{microseconds:.0f} µs" if microseconds >= 1 else "nothing"


def view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out what each mode costs, then who answers whom; `wide` adds a packet's way through each mode's rules."""
    parts: list[RenderableType] = [Grid(_MODES, map(_costs, document["modes"]))]
    parts += [
        Prose(Text(f"{each['mode']} does not run here: {each['reason']}", style="yellow"))
        for each in document["modes"]
        if each["kernel"] is None
    ]
    parts.append(Prose(Text(_LEGEND, style="dim")))
    parts.extend(_answers(document))
    if wide:
        for each in document["modes"]:
            if each["kernel"] is not None:
                parts.append(Text(f"\n203.0.113.2 to the ClusterIP in {each['mode']} mode", style="bold"))
                parts.append(_way(each))
    return Group(*parts)


_LEGEND: Final = (
    "RULES: objects written for 4 Services of both families. A CHANGE: one Pod of five leaves. CONNECTION: open, ask "
    "and close, from a Pod to a Pod; BY THE SERVICE: more than that, to its ClusterIP. EXPLAIN: rules that the first "
    "packet meets. A guest is several times slower."
)


def _costs(each: Document) -> list[str | Text]:
    if each["kernel"] is None:
        return [each["mode"], *[Text("-", style="yellow")] * 7]
    change, cost = each["change"], each["connection"]
    more = cost["toServiceMicroseconds"] - cost["toPodMicroseconds"]
    return [
        each["mode"],
        str(each["written"]["objects"]),
        f"{each['written']['bytes'] / 1000:.1f} kB" if each["written"]["bytes"] else "-",
        f"{change['objects']} in {change['milliseconds']:.3g} ms",
        f"{cost['toPodMicroseconds']:.0f} µs",
        more_text(more),
        f"{len(each['explained']['path'])} steps",
        each["kernel"],
    ]


def _answers(document: Document) -> Iterator[RenderableType]:
    """Lay out each kind of connection, a line for all modes that treat it alike."""
    ran = [each for each in document["modes"] if each["kernel"] is not None]
    for number, path in enumerate(ran[0]["paths"] if ran else ()):
        yield Text(f"\n{path['who']} to {path['to']} ({path['at']})", style="bold")
        alike: dict[tuple[str, str], list[str]] = {}
        for each in ran:
            alike.setdefault(_words(each["paths"][number]), []).append(each["mode"])
        rows: list[list[str | Text]] = [
            [", ".join(modes), Text(what, style=_colour(what)), saw] for (what, saw), modes in alike.items()
        ]
        yield Grid([Column("modes", prose=True), Column("what happens"), Column("the pod sees")], rows)


def _words(path: Document) -> tuple[str, str]:
    pods = len(path["pods"])
    if not pods:
        return ", ".join(path["outcomes"]), "-"
    failed = [f"{number} {word}" for word, number in path["outcomes"].items() if word != "answered"]
    return ", ".join([f"answered by {pods} Pod{'s' * (pods != 1)}", *failed]), ", ".join(path["saw"])


def _colour(words: str) -> str:
    return "green" if words.startswith("answered") else "yellow"


def _way(each: Document) -> Grid:
    columns = [Column("on the way"), Column("rule or element", prose=True), Column("what it does", prose=True)]
    return Grid(columns, [[step["object"], step["text"], step["effect"]] for step in each["explained"]["path"]])


def show(console: Console, document: Document, *, wide: bool) -> None:
    """Print a comparison."""
    console.print(view(document, wide=wide), crop=False)
