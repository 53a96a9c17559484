"""Prints the results of the lab's commands: tables for a person, objects for a program."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vipwire.lab import state
from vipwire.lab.cluster import Lab
from vipwire.lab.outcome import Outcome, ProbeResult, Target
from vipwire.lab.sctp import raw_sockets
from vipwire.lab.topology import Client, Node

_COLOURS = {Outcome.ANSWERED: "green", Outcome.TIMED_OUT: "yellow"}
_WIDTH_OF_A_FILE = 140


def show(lab: Lab) -> None:
    """Print a lab's hosts, and how to go on."""
    table = Table(title=f"lab {lab.name}", title_justify="left", title_style="bold")
    for title in ("host", "what it is", "addresses", "network namespace"):
        table.add_column(title, no_wrap=title != "what it is")
    for host in lab.topology.hosts():
        match host:
            case Node():
                what, colour = f"node in {host.zone}", "cyan"
            case Client():
                what, colour = f"outside, by way of {host.gateway}", "magenta"
            case _:
                ports = ", ".join(map(str, host.ports))
                what, colour = f"Pod on {host.node}, answers on {ports}", "green"
        name = f"[{colour}]{host.name}[/{colour}]"
        table.add_row(name, what, "\n".join(host.addresses), state.namespace_of(lab.name, host.name))
    console = _console()
    console.print(table)
    if not raw_sockets.in_kernel():
        console.print("This kernel has no SCTP sockets: Pods and probes speak SCTP themselves.", style="yellow")
    option = "" if lab.name == "demo" else f" --name {lab.name}"
    target = lab.topology.pods[0].addresses[0] if lab.topology.pods else lab.topology.nodes[0].addresses[0]
    console.print(f"Try: vipwire lab probe{option} client {target}:80", style="dim", highlight=False)


def show_results(host: str, target: Target, results: Sequence[ProbeResult]) -> None:
    """Print who answered how often, whom they saw, and how long it took."""
    table = Table(title=escape(f"{host} to {target}"), title_justify="left", title_style="bold")
    for title in ("times", "outcome", "by", "which saw", "median ms"):
        table.add_column(title, justify="right" if title in ("times", "median ms") else "left")
    groups: dict[tuple[str, str, str], list[ProbeResult]] = {}
    for result in results:
        groups.setdefault((_words(result), result.pod, result.saw), []).append(result)
    for (words, pod, saw), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        colour = _COLOURS.get(group[0].outcome, "red")
        middle = statistics.median(result.duration for result in group) * 1000
        table.add_row(str(len(group)), f"[{colour}]{words}[/{colour}]", pod, saw, f"{middle:.2f}")
    _console().print(table)


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
