"""Prints the results of the lab's commands: tables for a person, objects for a program."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from vipwire.lab import state
from vipwire.lab.cluster import Lab
from vipwire.lab.outcome import Outcome, ProbeResult, Target
from vipwire.lab.sctp import raw_sockets
from vipwire.lab.topology import Client, Node
from vipwire.process.columns import Column, Grid

_COLOURS = {Outcome.ANSWERED: "green", Outcome.TIMED_OUT: "yellow"}
_WIDTH_OF_A_FILE = 140


def show(lab: Lab) -> None:
    """Print a lab's hosts, and how to go on."""
    rows: list[list[str | Text]] = []
    for host in lab.topology.hosts():
        match host:
            case Node():
                what, colour = f"node in {host.zone}", "cyan"
            case Client():
                what, colour = f"outside, by way of {host.gateway}", "magenta"
            case _:
                ports = ", ".join(map(str, host.ports))
                what, colour = f"Pod on {host.node}, answers on {ports}", "green"
        namespace = state.namespace_of(lab.name, host.name)
        rows.append([Text(host.name, style=colour), what, "\n".join(host.addresses), namespace])
    console = _console()
    console.print(f"lab {lab.name}", style="bold", markup=False)
    columns = [Column("host"), Column("what it is", prose=True), Column("addresses"), Column("namespace", rank=1)]
    console.print(Grid(columns, rows), overflow="ignore", crop=False)
    if not raw_sockets.in_kernel():
        console.print("This kernel has no SCTP sockets: Pods and probes speak SCTP themselves.", style="yellow")
    option = "" if lab.name == "demo" else f" --name {lab.name}"
    target = lab.topology.pods[0].addresses[0] if lab.topology.pods else lab.topology.nodes[0].addresses[0]
    console.print(f"Try: vipwire lab probe{option} client {target}:80", style="dim", highlight=False)


def show_results(host: str, target: Target, results: Sequence[ProbeResult]) -> None:
    """Print who answered how often, whom they saw, and how long it took."""
    groups: dict[tuple[str, str, str], list[ProbeResult]] = {}
    for result in results:
        groups.setdefault((_words(result), result.pod, result.saw), []).append(result)
    rows: list[list[str | Text]] = []
    for (words, pod, saw), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        colour = _COLOURS.get(group[0].outcome, "red")
        middle = statistics.median(result.duration for result in group) * 1000
        rows.append([str(len(group)), Text(words, style=colour), pod or "-", saw or "-", f"{middle:.2f}"])
    columns = [Column("times"), Column("outcome"), Column("by"), Column("which saw"), Column("median ms", rank=1)]
    console = _console()
    console.print(f"{host} to {target}", style="bold", markup=False)
    console.print(Grid(columns, rows), overflow="ignore", crop=False)


def result_object(result: ProbeResult) -> dict[str, Any]:
    """Build the JSON object of an attempt."""
    return asdict(result) | {
        "outcome": result.outcome.value,
        "error": os.strerror(result.errno) if result.errno else None,
    }


def _words(result: ProbeResult) -> str:
    if result.outcome is Outcome.UNREACHABLE and result.errno:
        return f"{result.outcome.value}: {os.strerror(result.errno)}"
    return result.outcome.value


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE)
