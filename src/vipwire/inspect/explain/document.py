"""The document of an explanation, and its layout on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from vipwire.inspect.command.show import build_table, colour_word, format_endpoint_document, format_time
from vipwire.inspect.explain.explanation import Agreement, Explanation, compare_kernel_with_plan, find_seen_source
from vipwire.inspect.explain.reasons import list_reasons
from vipwire.inspect.status.document import Document, format_share
from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.net import format_address, format_endpoint
from vipwire.plan.plan import Target
from vipwire.plan.resolve import is_from_pod
from vipwire.proxy_daemon.serve.service_health import ServiceHealthCheck
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import ObjectState
from vipwire.terminal.columns import GAP, NARROWEST_PROSE, Column, Prose, insert_word_joiners

_MANY = 20
_BEHIND_THE_DOT: Final = 4
_AGREES: Final = {Agreement.SAME: True, Agreement.OTHERWISE: False}


def explain_document(explanation: Explanation) -> Document:
    packet = explanation.packet
    state, difference = compare_kernel_with_plan(explanation)
    document: Document = {
        "kind": "Explanation",
        "node": explanation.situation.node_name,
        "mode": explanation.situation.config.proxy_mode,
        "packet": {
            "from": format_address(packet.source),
            "to": format_endpoint(packet.destination, packet.port),
            "protocol": packet.protocol.label,
            "interface": packet.interface,
            "fromThisNode": packet.from_node,
            "fromPod": is_from_pod(explanation.side.node, packet),
            "toThisNode": packet.to_node,
        },
        "outcome": explanation.planned.value,
        "why": list(list_reasons(explanation)),
        "service": str(explanation.frontend.port_name) if explanation.frontend else None,
        "frontend": explanation.frontend.kind.value if explanation.frontend else None,
        "endpoints": [
            _build_endpoint_document(explanation, target, share) for target, share in explanation.pool.items()
        ],
        "drained": [
            {"address": format_address(left.target.address), "port": left.target.port, "why": left.why}
            for left in explanation.drained
        ],
        "ejected": [
            {
                "address": format_address(out.target.address),
                "port": out.target.port,
                "until": format_time(out.until),
                "used": out.spared,
            }
            for out in explanation.ejected
        ],
        "healthChecks": [_build_health_check_document(check) for check in explanation.health_checks],
        "kernel": {
            "agrees": _AGREES.get(state),
            "state": state.value,
            "difference": difference,
            "earlier": [each.document for each in explanation.earlier],
            **_walk_document(explanation.walk),
        },
    }
    if explanation.flows is not None:
        document["flows"] = [build_flow_document(flow) for flow in explanation.flows]
    return document


def _build_endpoint_document(explanation: Explanation, target: Target, share: Fraction) -> Document:
    seen = find_seen_source(explanation, target)
    return {
        "address": format_address(target.address),
        "port": target.port,
        "local": target.local,
        "share": round(float(share), 6),
        "sees": None if seen is None else format_address(seen),
        "masqueraded": seen != explanation.packet.source,
    }


def _build_health_check_document(check: ServiceHealthCheck) -> Document:
    status = check.answer(proxy_healthy=True).status
    return {"service": str(check.service), "status": status, "localEndpoints": check.local_endpoints}


def _walk_document(walk: Walk | None) -> Document:
    if walk is None:
        return {"outcome": None, "path": []}
    document: Document = {
        "outcome": walk.end.value,
        "path": [
            {"object": step.place, "text": step.text, "effect": step.effect, "state": step.state.value}
            for step in walk.steps
        ],
    }
    if walk.remembered is not None:
        address, port, seconds = walk.remembered
        document["remembered"] = {"endpoint": format_endpoint(address, port), "seconds": round(seconds)}
    return document


def build_flow_document(flow: Flow) -> Document:
    return {
        "client": format_endpoint(flow.source, flow.source_port),
        "vip": format_endpoint(flow.destination, flow.destination_port),
        "endpoint": format_endpoint(flow.reply_source, flow.reply_source_port),
        "sees": format_endpoint(flow.reply_destination, flow.reply_destination_port),
        "secondsLeft": flow.timeout,
        "answered": bool(flow.status & 2),
    }


def explain_view(document: Document, *, wide: bool) -> RenderableType:
    """Lay out an explanation; `wide` shows all endpoints and every rule in full."""
    return Group(*_build_parts(document, wide=wide))


def _build_parts(document: Document, *, wide: bool) -> Iterator[RenderableType]:
    packet = document["packet"]
    who = " (this node)" if packet["fromThisNode"] else " (a Pod)" if packet["fromPod"] else ""
    yield Text.assemble((f"{packet['from']}{who} → {packet['to']}/{packet['protocol']}", "bold"))
    yield Text.assemble("plan: ", colour_word(document["outcome"]))
    for sentence in document["why"]:
        yield Prose(Text(f"  · {sentence}"), _BEHIND_THE_DOT)
    if document["endpoints"]:
        yield Text()
        yield _show_endpoints(document["endpoints"], None if wide else _MANY)
    yield Text()
    yield from _show_kernel(document["kernel"])
    if "flows" in document:
        yield Text()
        yield from _show_flows(document["flows"])


def _show_endpoints(endpoints: list[Document], most: int | None) -> RenderableType:
    rows = [
        [
            format_endpoint_document(each),
            "here" if each["local"] else "elsewhere",
            format_share(each["share"]),
            _describe_seen_source(each),
        ]
        for each in endpoints[:most]
    ]
    if most is not None and len(endpoints) > most:
        rows.append([f"… {len(endpoints) - most} more", "", "", ""])
    return build_table(["can answer", "where", "share", "and sees"], rows)


def _describe_seen_source(endpoint: Document) -> str:
    if endpoint["sees"] is None:
        return "an address of this node"
    return f"{endpoint['sees']} (this node)" if endpoint["masqueraded"] else f"{endpoint['sees']} (the client)"


def _show_kernel(kernel: Document) -> Iterator[RenderableType]:
    if kernel["agrees"]:
        yield Text.assemble("kernel: ", ("does the same", "green"))
    elif kernel["agrees"] is None:
        yield Text.assemble("kernel: ", (kernel["state"], "yellow"), f": {kernel['difference']}")
    else:
        yield Text.assemble("kernel: ", ("does otherwise", "bold red"), f": {kernel['difference']}")
    if remembered := kernel.get("remembered"):
        words = f"  · session affinity holds this client at {remembered['endpoint']}, {remembered['seconds']} s more"
        yield Prose(Text(words), _BEHIND_THE_DOT)
    if kernel["path"]:
        yield Way(kernel["path"])


def _show_flows(flows: list[Document]) -> Iterator[RenderableType]:
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
            "yes" if each["answered"] else colour_word("not yet", "warning"),
        ]
        for each in flows
    ]
    yield build_table(["tracked client", "to", "goes to", "answers go to", "expires in", "answered"], rows)


_HOLDS: Final = frozenset({".", ":", "goto", "jump"})
"""A line never breaks beside these words."""
_COLUMNS: Final = (
    Column("on the way"),
    Column("rule or element", prose=True, holds=_HOLDS),
    Column("effect", prose=True, rank=1),
    Column("state"),
)
_RULE_INDENT: Final = 2
_FOLDED_INDENT: Final = 6
Step = Mapping[str, Any]


class Way:
    """The steps of a packet through the rules."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._planned = all(step["state"] == ObjectState.PLANNED.value for step in steps)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal and self._compute_least_width() > options.max_width:
            yield from self._build_list(options.max_width)
        else:
            yield self._build_table()

    def _build_table(self) -> RenderableType:
        rows = [[step["object"], step["text"], step["effect"], colour_word(step["state"])] for step in self._steps]
        if self._planned:
            return build_table(_COLUMNS[:-1], [row[:-1] for row in rows])
        return build_table(_COLUMNS, rows)

    def _compute_least_width(self) -> int:
        widths = [
            max((cell_len(step["object"]) for step in self._steps), default=0),
            max(
                (cell_len(word) for step in self._steps for word in insert_word_joiners(step["text"], _HOLDS)),
                default=0,
            ),
            NARROWEST_PROSE,
            0 if self._planned else max(cell_len(step["state"]) for step in self._steps),
        ]
        return sum(widths) + len(GAP) * sum(map(bool, widths[1:]))

    def _build_list(self, width: int) -> Iterator[RenderableType]:
        for place, steps in groupby(self._steps, key=lambda step: str(step["object"])):
            yield Prose(Text(place, "bold"), _FOLDED_INDENT)
            yield from _format_steps(steps, width)


def _format_steps(steps: Iterable[Step], width: int) -> Iterator[RenderableType]:
    for step in steps:
        rule = Text(" " * _RULE_INDENT + step["text"])
        effect = Text.assemble(("→ ", "dim"), (step["effect"], "dim"))
        if step["state"] != ObjectState.PLANNED.value:
            effect.append(", ").append_text(colour_word(step["state"]))
        if rule.cell_len + len(GAP) + effect.cell_len <= width:
            yield Prose(rule.append(GAP).append_text(effect), _FOLDED_INDENT)
        else:
            yield Prose(rule, _FOLDED_INDENT, _HOLDS)
            yield Prose(Text(" " * _FOLDED_INDENT).append_text(effect), _FOLDED_INDENT + 2)
