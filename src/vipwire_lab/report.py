"""Prints the results of the lab's commands: tables for a person, objects for a program."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from vipwire.process.columns import Column, Grid
from vipwire_lab.echo import sctp_sockets as raw_sockets
from vipwire_lab.lab import state
from vipwire_lab.lab.called import as_called
from vipwire_lab.lab.cluster import Lab
from vipwire_lab.lab.outcome import Outcome, ProbeResult, Target
from vipwire_lab.net.topology import Client, Node

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
    screen = console()
    screen.print(f"lab {lab.name}", style="bold", markup=False)
    columns = [Column("host"), Column("what it is", prose=True), Column("addresses"), Column("namespace", rank=1)]
    screen.print(Grid(columns, rows), overflow="ignore", crop=False)
    if not raw_sockets.in_kernel():
        screen.print("This kernel has no SCTP sockets: Pods and probes speak SCTP themselves.", style="yellow")
    option = "" if lab.name == "demo" else f" --name {lab.name}"
    target = lab.topology.pods[0].addresses[0] if lab.topology.pods else lab.topology.nodes[0].addresses[0]
    screen.print(as_called(f"Try: vipwire lab probe{option} client {target}:80"), style="dim", highlight=False)


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
    screen = console()
    screen.print(f"{host} to {target}", style="bold", markup=False)
    screen.print(Grid(columns, rows), overflow="ignore", crop=False)


def show_proxies(lab: Lab, mode: str, folder: Path) -> None:
    """Print what runs on the nodes, and what to try."""
    name = "" if lab.name == "demo" else f" --name {lab.name}"
    node = lab.topology.nodes[0].name
    log = state.directory_of(lab.name) / f"proxy-{node}.log"
    lines = (
        f"vipwire lab probe{name} client 10.96.0.10:80 -n 20",
        f"vipwire lab exec{name} {node} -- vipwire status",
        f"vipwire lab exec{name} {node} -- vipwire explain --from 203.0.113.2 10.96.0.10:80",
        f"vipwire lab view{name}",
        f"vipwire lab down{name}",
    )
    screen = console()
    screen.print(f"\nA proxy in {mode} mode runs on each node. It watches {folder}.", soft_wrap=True)
    screen.print(f"Its log: {log}", soft_wrap=True)
    for line in lines:
        screen.print(f"  {as_called(line)}", style="dim", highlight=False, soft_wrap=True)


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


def console() -> Console:
    """Build the console for the lab's tables; in a file nothing is cut."""
    made = Console()
    return made if made.is_terminal else Console(width=_WIDTH_OF_A_FILE)
