"""How an explanation looks on a terminal."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.document import Document, share_text
from vipwire.inspect.show import coloured, table
from vipwire.inspect.status import endpoint_text

_MANY = 20


def explain_view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out an explanation; `wide` shows all endpoints and every rule text in full."""
    return Group(*_parts(document, wide=wide))


def _parts(document: Document, *, wide: bool) -> Iterator[RenderableType]:
    packet = document["packet"]
    who = " (this node)" if packet["fromThisNode"] else " (a Pod)" if packet["fromPod"] else ""
    yield Text.assemble((f"{packet['from']}{who} → {packet['to']}/{packet['protocol']}", "bold"))
    yield Text.assemble("plan: ", coloured(document["outcome"]))
    for sentence in document["why"]:
        yield Text(f"  · {sentence}")
    if document["endpoints"]:
        yield Text()
        yield _endpoints(document["endpoints"], None if wide else _MANY)
    yield Text()
    yield from _kernel(document["kernel"])
    if "flows" in document:
        yield Text()
        yield from _flows(document["flows"])


def _endpoints(endpoints: list[Document], most: int | None) -> RenderableType:
    rows = [
        [endpoint_text(each), "here" if each["local"] else "elsewhere", share_text(each["share"]), _sees(each)]
        for each in endpoints[:most]
    ]
    if most is not None and len(endpoints) > most:
        rows.append([f"… {len(endpoints) - most} more", "", "", ""])
    return table(["can answer", "where", "share", "and sees"], rows)


def _sees(endpoint: Document) -> str:
    if endpoint["sees"] is None:
        return "an address of this node"
    return f"{endpoint['sees']} (this node)" if endpoint["masqueraded"] else f"{endpoint['sees']} (the client)"


def _kernel(kernel: Document) -> Iterator[RenderableType]:
    if kernel["agrees"]:
        yield Text.assemble("kernel: ", ("does the same", "green"))
    elif kernel["agrees"] is None:
        yield Text.assemble("kernel: ", ("unknown", "yellow"), f": {kernel['difference']}")
    else:
        yield Text.assemble("kernel: ", ("does otherwise", "bold red"), f": {kernel['difference']}")
    if remembered := kernel.get("remembered"):
        yield Text(
            f"  · session affinity holds this client at {remembered['endpoint']}, {remembered['seconds']} s more"
        )
    if kernel["path"]:
        rows = [[step["object"], step["text"], step["effect"], coloured(step["state"])] for step in kernel["path"]]
        yield table(["on the way", "rule or element", "what it does", "state"], rows)


def _flows(flows: list[Document]) -> Iterator[RenderableType]:
    if not flows:
        yield Text("connection tracking: no live connection of this client to this destination")
        return
    rows = [
        [
            each["client"],
            each["vip"],
            each["endpoint"],
            each["sees"],
            f"{each['secondsLeft']} s",
            "yes" if each["answered"] else coloured("not yet", "warning"),
        ]
        for each in flows
    ]
    yield table(["tracked client", "to", "goes to", "answers go to", "expires in", "answered"], rows)
