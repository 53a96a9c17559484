"""Prints what `vipwire drain` did and found."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from vipwire.inspect.command import show
from vipwire.inspect.status.document import Document
from vipwire.process.columns import Column


def drain_view(document: Document) -> RenderableType:
    """Show what was done, whether the kernel follows, and which connections are left."""
    names = ", ".join(document["services"]) or "no Service"
    what = "drained" if document["drained"] else "used again"
    until = f" until {document['until']}" if document["until"] else ""
    kernel = {True: "as planned", False: "not as planned", None: "unknown"}[document["kernel"]]
    text = Text(f"{document['endpoint']} is {what} on {document['node']}{until}: {names}\nkernel: ")
    text.append_text(show.coloured(kernel))
    if document["drained"] and document["connections"] is not None:
        text.append("\n").append_text(connections_view(document))
    return text


def connections_view(document: Document) -> Text:
    """Return how many connections are left."""
    left: dict[str, Any] = document["connections"]
    closing = f" ({left['closing']} more have just begun or ended)" if left["closing"] else ""
    return Text(f"{left['open'] or 'no'} connection{'s' * (left['open'] != 1)} left{closing}")


def list_view(document: Document) -> RenderableType:
    """Lay out what is drained."""
    if not document["drained"]:
        return Text(f"nothing is drained on {document['node']}")
    rows = []
    for each in document["drained"]:
        left = "unknown" if each["connections"] is None else connections_view(each).plain
        served = "\n".join(each["services"]) or "nobody has it any more"
        until = each["until"] or "undone"
        rows.append([each["endpoint"], each["service"] or "all", served, each["since"], until, left])
    columns = [
        *(Column("endpoint"), Column("drained for", rank=3), Column("used by")),
        *(Column("since", rank=2), Column("until", rank=1), Column("connections")),
    ]
    return show.table(columns, rows)
