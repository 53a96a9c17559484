"""Measures modes: answering Pods, kernel objects, the cost of changes and connections, a packet's path."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from vipwire.terminal.columns import Column, Grid, Prose
from vipwire_lab.cluster.outcome import ProbeResult
from vipwire_lab.compare.staged import describe_kernel, find_guest_obstacle, reason_of, run_lab_in_guest, run_staged
from vipwire_lab.demo import objects
from vipwire_lab.demo.stage import NODE, Stage, Sync
from vipwire_lab.namespaces.errors import LabError

Document = dict[str, Any]

CONNECTIONS: Final = 40
_TIMED: Final = 30
_ROUNDS: Final = 6
PATHS: Final = (
    ("a client outside", "client", objects.WEB, 80, "its ClusterIP"),
    ("a Pod of node-1", "pod-1a", objects.WEB, 80, "its ClusterIP"),
    ("node-1 itself", NODE, objects.WEB, 80, "its ClusterIP"),
    ("a client outside", "client", "192.168.0.1", objects.WEB_NODE_PORT, "its node port"),
    ("a client outside", "client", objects.SHOP_IP, 80, "a load balancer address, Local"),
    ("a client outside", "client", objects.EMPTY, 80, "a Service without endpoints"),
)
"""A client, its host, the address and port it connects to, and a description."""


def compare_modes(modes: Sequence[str], begun: Callable[[str], None], *, here: bool = False) -> Document:
    """Measure modes one after the other; calls `begun` with each. `here`: never in a guest."""
    measured = []
    for mode in modes:
        begun(mode)
        measured.append(measure_mode(mode, here=here))
    return {"kind": "Comparison", "modes": measured}


def measure_mode(mode: str, *, here: bool = False) -> Document:
    """Measure a mode on this kernel, else in a guest; otherwise say why not."""
    try:
        with run_staged(mode) as (stage, syncs):
            return _measure_stage(mode, stage, syncs)
    except LabError as error:
        reason = reason_of(error)
    if here or (why := find_guest_obstacle()):
        return {"mode": mode, "kernel": None, "reason": reason if here else f"{reason} (no guest: {why})"}
    try:
        (found,) = json.loads(run_lab_in_guest("compare", "--proxy-mode", mode, "--here", "-o", "json"))["modes"]
    except (LabError, ValueError) as error:
        return {"mode": mode, "kernel": None, "reason": f"{reason}; in a guest: {error}"}
    document: Document = found
    return document


def _measure_stage(mode: str, stage: Stage, syncs: Sequence[Sync]) -> Document:
    return {
        "mode": mode,
        "kernel": describe_kernel(),
        "written": {"objects": sum(each.written for each in syncs), "bytes": sum(each.size for each in syncs)},
        "paths": [
            {"who": who, "to": what, "at": f"{address}:{port}", **_ask_clients(stage, host, address, port)}
            for who, host, address, port, what in PATHS
        ],
        "connection": _measure_connection(stage),
        "explained": _explain_path(stage),
        "change": _measure_change(stage),
    }


def _ask_clients(stage: Stage, host: str, address: str, port: int) -> Document:
    results = stage.lab.probe(host, address, port, count=CONNECTIONS, timeout=1.0)
    outcomes = Counter(result.outcome.value for result in results)
    pods = Counter(result.pod for result in results if result.answer)
    return {
        "outcomes": dict(outcomes),
        "pods": {name: pods[name] for name in sorted(pods)},
        "saw": sorted({_name_client(stage, result) for result in results if result.answer}),
    }


def _name_client(stage: Stage, result: ProbeResult) -> str:
    for host in stage.lab.topology.list_hosts():
        if result.saw in host.addresses:
            return host.name
    return result.saw


def _measure_connection(stage: Stage) -> Document:
    """Compare connections to ClusterIP and Pod in turns: the fastest tenth, in microseconds."""
    addresses = {"toPod": objects.LOCAL_PODS[1].addresses[0], "toService": objects.WEB}
    times: dict[str, list[float]] = {name: [] for name in addresses}
    for _ in range(_ROUNDS):
        for name, address in addresses.items():
            results = stage.lab.probe("pod-1a", address, 80, count=_TIMED, parallel=1)
            times[name] += [result.duration for result in results]
    return {
        f"{name}Microseconds": round(statistics.quantiles(found, n=10)[0] * 1e6, 1) for name, found in times.items()
    }


def _measure_change(stage: Stage) -> Document:
    """Measure the removal of one Pod of five, in both families."""
    syncs = stage.change_and_wait("web", objects.web(objects.PODS[:-1]))
    return {
        "objects": sum(each.written for each in syncs),
        "bytes": sum(each.size for each in syncs),
        "milliseconds": round(sum(each.seconds for each in syncs) * 1000, 1),
    }


def _explain_path(stage: Stage) -> Document:
    command = [sys.executable, "-m", "vipwire", "explain", "--from=203.0.113.2", f"{objects.WEB}:80", "-o", "json"]
    done = stage.lab.run(NODE, command, check=False)
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise LabError(f"explain said: {done.stderr.strip()}") from error
    path = [{name: step[name] for name in ("object", "text", "effect")} for step in document["kernel"]["path"]]
    return {"agrees": document["kernel"]["agrees"], "why": document["why"], "path": path}


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


def format_more(microseconds: float) -> str:
    """Format the time that a Service adds; less than 1 µs is noise of the clock."""
    return f"+{microseconds:.0f} µs" if microseconds >= 1 else "nothing"


def render_document(document: Document, *, wide: bool) -> RenderableType:
    """Lay out each mode's costs, then the answering Pods; `wide` adds a packet's path through each mode's rules."""
    parts: list[RenderableType] = [Grid(_MODES, map(_format_costs, document["modes"]))]
    parts += [
        Prose(Text(f"{each['mode']} cannot run here: {each['reason']}", style="yellow"))
        for each in document["modes"]
        if each["kernel"] is None
    ]
    parts.append(Prose(Text(_LEGEND, style="dim")))
    parts.extend(_build_answer_tables(document))
    if wide:
        for each in document["modes"]:
            if each["kernel"] is not None:
                parts.append(Text(f"\n203.0.113.2 to the ClusterIP in {each['mode']} mode", style="bold"))
                parts.append(_lay_out_path(each))
    return Group(*parts)


_LEGEND: Final = (
    "RULES: objects written for 4 Services of both families. A CHANGE: one Pod of five leaves. CONNECTION: open, ask "
    "and close, from a Pod to a Pod; BY THE SERVICE: the additional time, to its ClusterIP. EXPLAIN: rules "
    "that the first "
    "packet meets. Guests are several times slower."
)


def _format_costs(each: Document) -> list[str | Text]:
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
        format_more(more),
        f"{len(each['explained']['path'])} steps",
        each["kernel"],
    ]


def _build_answer_tables(document: Document) -> Iterator[RenderableType]:
    """Lay out each kind of connection, with one line for modes that treat it alike."""
    ran = [each for each in document["modes"] if each["kernel"] is not None]
    for number, path in enumerate(ran[0]["paths"] if ran else ()):
        yield Text(f"\n{path['who']} to {path['to']} ({path['at']})", style="bold")
        alike: dict[tuple[str, str], list[str]] = {}
        for each in ran:
            alike.setdefault(_describe_path(each["paths"][number]), []).append(each["mode"])
        rows: list[list[str | Text]] = [
            [", ".join(modes), Text(what, style=_colour(what)), saw] for (what, saw), modes in alike.items()
        ]
        yield Grid([Column("modes", prose=True), Column("what happens"), Column("the pod sees")], rows)


def _describe_path(path: Document) -> tuple[str, str]:
    pods = len(path["pods"])
    if not pods:
        return ", ".join(path["outcomes"]), "-"
    failed = [f"{number} {word}" for word, number in path["outcomes"].items() if word != "answered"]
    return ", ".join([f"answered by {pods} Pod{'s' * (pods != 1)}", *failed]), ", ".join(path["saw"])


def _colour(words: str) -> str:
    return "green" if words.startswith("answered") else "yellow"


def _lay_out_path(each: Document) -> Grid:
    columns = [Column("on the way"), Column("rule or element", prose=True), Column("effect", prose=True)]
    return Grid(columns, [[step["object"], step["text"], step["effect"]] for step in each["explained"]["path"]])


def print_document(console: Console, document: Document, *, wide: bool) -> None:
    console.print(render_document(document, wide=wide), crop=False)
