"""Lays out what will be otherwise: as a document, as a table, and as an exit status."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.command.show import coloured, plural, table
from vipwire.inspect.leave_ipvs.changes import Difference, Leaving, Level
from vipwire.inspect.status.document import Document
from vipwire.process.columns import Column

UNKNOWN = 2


def leave_document(leaving: Leaving, changes: Sequence[Difference], obstacles: Sequence[str]) -> Document:
    """Make the document. `obstacles` say what could not be read, and so is not judged."""
    found = leaving.kube_proxy
    return {
        "kind": "LeavingIpvs",
        "mode": leaving.target.name,
        "kubeProxy": None if found is None else {"mode": found.mode, "where": found.where},
        "ipvs": leaving.kernel.traces,
        "seen": not leaving.kernel.obstacle,
        "otherwise": sum(change.level is Level.OTHERWISE for change in changes),
        "obstacles": list(obstacles),
        "changes": [change._asdict() | {"level": change.level.value} for change in changes],
    }


def leave_exit(document: Document) -> int:
    """Return 0 if nothing will be otherwise, 1 if anything will, 2 if nobody can tell."""
    if document["otherwise"]:
        return 1
    return 0 if document["seen"] else UNKNOWN


def leave_view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out the changes, with what to do below; `wide` shows what stays the same, too."""
    rows: list[list[str | Text]] = []
    for each in document["changes"]:
        if not wide and each["level"] == Level.SAME.value:
            continue
        then = Text(each["then"])
        if each["todo"]:
            then.append(f"\n→ {each['todo']}", style="cyan")
        rows.append([each["area"], coloured(each["level"]), each["now"], then])
    parts: list[RenderableType] = [Text(_heading(document)), Text()]
    if rows:
        parts += [_changes(rows, document["mode"]), Text()]
    parts += [Text(f"not looked at: {each}", style="yellow") for each in document["obstacles"]]
    return Group(*parts, _verdict(document))


def _changes(rows: list[list[str | Text]], mode: str) -> RenderableType:
    return table(["area", "", Column("now", prose=True), Column(f"in {mode} mode", prose=True)], rows)


def _heading(document: Document) -> str:
    found = document["kubeProxy"]
    if found is None:
        return "No configuration of a kube-proxy was found: judged is what the kernel has."
    return f"kube-proxy is configured for {found['mode']} mode ({found['where']})."


def _verdict(document: Document) -> Text:
    if document["otherwise"]:
        return Text(f"{plural(document['otherwise'], 'thing')} will be otherwise", style="bold yellow")
    if leave_exit(document) == UNKNOWN:
        return Text("nobody can tell: see above", style="yellow")
    return Text("nothing will be otherwise" if document["ipvs"] else "nothing of ipvs mode is here", style="green")
