"""Lays out how this node changes: as a document, as a table, and as an exit status."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.command.show import coloured, plural, remedied, table
from vipwire.inspect.leave_ipvs.judge import Difference, Leaving, Level
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
    return 1 if document["otherwise"] else 0 if document["seen"] else UNKNOWN


def leave_view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out the changes, with what to do below; `wide` shows what stays the same, too."""
    rows = [
        [each["area"], coloured(each["level"]), each["now"], remedied(each["then"], each["todo"])]
        for each in document["changes"]
        if wide or each["level"] != Level.SAME.value
    ]
    columns: list[str | Column] = [
        "area",
        "",
        Column("now", prose=True),
        Column(f"in {document['mode']} mode", prose=True),
    ]
    found, otherwise = document["kubeProxy"], document["otherwise"]
    heading = "No configuration of a kube-proxy was found: judged is what the kernel has."
    if found is not None:
        heading = f"kube-proxy is configured for {found['mode']} mode ({found['where']})."
    if otherwise:
        verdict = Text(f"{plural(otherwise, 'thing')} will be otherwise", style="bold yellow")
    elif not document["seen"]:
        verdict = Text("nobody can tell: see above", style="yellow")
    else:
        same = "nothing will be otherwise" if document["ipvs"] else "nothing of ipvs mode is here"
        verdict = Text(same, style="green")
    obstacles = [Text(f"not looked at: {each}", style="yellow") for each in document["obstacles"]]
    changes: list[RenderableType] = [table(columns, rows), Text()] if rows else []
    return Group(Text(heading), Text(), *changes, *obstacles, verdict)
