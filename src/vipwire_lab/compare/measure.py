"""Measures one mode: who answers whom, what is written, what a change and a connection cost, a packet's way."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from vipwire_lab.compare.staged import guest_obstacle, in_guest, kernel_name, reason_of, staged
from vipwire_lab.demo import objects
from vipwire_lab.demo.stage import NODE, Stage, Sync
from vipwire_lab.lab.outcome import ProbeResult
from vipwire_lab.net.errors import LabError

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
"""Who connects, from which host, to which address and port, and what that is."""


def compare(modes: Sequence[str], begun: Callable[[str], None], *, here: bool = False) -> Document:
    """Measure modes, one after the other; `begun` is told each. With `here` none in a guest."""
    measured = []
    for mode in modes:
        begun(mode)
        measured.append(measure(mode, here=here))
    return {"kind": "Comparison", "modes": measured}


def measure(mode: str, *, here: bool = False) -> Document:
    """Measure a mode on this kernel, else in a guest, else say why not."""
    try:
        with staged(mode) as (stage, syncs):
            return _measured(mode, stage, syncs)
    except LabError as error:
        reason = reason_of(error)
    if here or (why := guest_obstacle()):
        return {"mode": mode, "kernel": None, "reason": reason if here else f"{reason} (no guest: {why})"}
    try:
        (found,) = json.loads(in_guest("compare", "--proxy-mode", mode, "--here", "-o", "json"))["modes"]
    except (LabError, ValueError) as error:
        return {"mode": mode, "kernel": None, "reason": f"{reason}; in a guest: {error}"}
    document: Document = found
    return document


def _measured(mode: str, stage: Stage, syncs: Sequence[Sync]) -> Document:
    return {
        "mode": mode,
        "kernel": kernel_name(),
        "written": {"objects": sum(each.written for each in syncs), "bytes": sum(each.size for each in syncs)},
        "paths": [
            {"who": who, "to": what, "at": f"{address}:{port}", **_answers(stage, host, address, port)}
            for who, host, address, port, what in PATHS
        ],
        "connection": _connection(stage),
        "explained": _explained(stage),
        "change": _change(stage),
    }


def _answers(stage: Stage, host: str, address: str, port: int) -> Document:
    results = stage.lab.probe(host, address, port, count=CONNECTIONS, timeout=1.0)
    outcomes = Counter(result.outcome.value for result in results)
    pods = Counter(result.pod for result in results if result.answer)
    return {
        "outcomes": dict(outcomes),
        "pods": {name: pods[name] for name in sorted(pods)},
        "saw": sorted({_who(stage, result) for result in results if result.answer}),
    }


def _who(stage: Stage, result: ProbeResult) -> str:
    """Name the host of an address that a Pod saw."""
    for host in stage.lab.topology.hosts():
        if result.saw in host.addresses:
            return host.name
    return result.saw


def _connection(stage: Stage) -> Document:
    """Compare connections to the ClusterIP with those to a Pod itself: the fastest tenth, in microseconds.

    They take turns: what else the machine does then slows both alike.
    """
    addresses = {"toPod": objects.LOCAL_PODS[1].addresses[0], "toService": objects.WEB}
    times: dict[str, list[float]] = {name: [] for name in addresses}
    for _ in range(_ROUNDS):
        for name, address in addresses.items():
            results = stage.lab.probe("pod-1a", address, 80, count=_TIMED, parallel=1)
            times[name] += [result.duration for result in results]
    return {
        f"{name}Microseconds": round(statistics.quantiles(found, n=10)[0] * 1e6, 1) for name, found in times.items()
    }


def _change(stage: Stage) -> Document:
    """Take one Pod of five away, in both families."""
    syncs = stage.change("web", objects.web(objects.PODS[:-1]))
    return {
        "objects": sum(each.written for each in syncs),
        "bytes": sum(each.size for each in syncs),
        "milliseconds": round(sum(each.seconds for each in syncs) * 1000, 1),
    }


def _explained(stage: Stage) -> Document:
    """Explain a packet of the client outside."""
    command = [sys.executable, "-m", "vipwire", "explain", "--from=203.0.113.2", f"{objects.WEB}:80", "-o", "json"]
    done = stage.lab.run(NODE, command, check=False)
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise LabError(f"explain said: {done.stderr.strip()}") from error
    path = [{name: step[name] for name in ("object", "text", "effect")} for step in document["kernel"]["path"]]
    return {"agrees": document["kernel"]["agrees"], "why": document["why"], "path": path}
