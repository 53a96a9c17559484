"""Traces of timed-out connections on a lab's hosts: flows, sockets, drops and retransmissions.

A connection lost once in many thousands does not repeat, so the failure itself must say where it was lost.
"""

import itertools
import re
import subprocess
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import Outcome, ProbeResult

_LOOKED_AT = 3
_TELLING = re.compile(
    r"Drop|Overflow|ReqQFull|SynRetrans|SYNChallenge|ChallengeACK|Timeouts$|RetransSegs|OutRsts|AttemptFails|InErrs|PAWS"
    r"|clashres|invalid|insert_failed|drop|chaintoolong|search_restart|OutOfWindow|NoRoutes|InDiscards|OutDiscards"
    r"|^(?:Udp6?)?(?:NoPorts|RcvbufErrors|SndbufErrors|InErrors)$"
)
_FILES = ("snmp", "netstat", "snmp6", "stat/nf_conntrack", "stat/synproxy")


def traces(lab: Lab, results: Iterable[ProbeResult]) -> str:
    """Return traces of the timed-out ones, and each host's counters since the lab was built."""
    lost = [result for result in results if result.outcome is Outcome.TIMED_OUT and result.source]
    ports = [result.source.port for result in lost[:_LOOKED_AT] if result.source]
    return "\n".join(_lines(lab, ports)) if ports else ""


def _lines(lab: Lab, ports: Iterable[int]) -> Iterator[str]:
    hosts = lab.topology.host_names()
    nodes = [node.name for node in lab.topology.nodes]
    for port in ports:
        yield f"from port {port}:"
        flows = [(node, flow) for node in nodes for flow in _flows(lab, node, port)]
        yield from (f"  {node} conntrack: {flow}" for node, flow in flows)
        seen = {port, *(int(found) for _, flow in flows for found in re.findall(r"dport=(\d+)", flow))} - {80}
        words = " or ".join(f"sport = :{each} or dport = :{each}" for each in sorted(seen))
        for host in hosts:
            yield from (f"  {host} socket: {line}" for line in _said(lab, host, ["ss", "-Hantoi", f"( {words} )"]))
    if said := (state.directory_of(lab.name) / "echo.log").read_text(errors="replace"):
        yield f"the echo servers said:\n{said[-2000:]}"
    yield "counted:"
    for host in hosts:
        with lab.enter_namespace(host):
            found = counters({name: _read(name) for name in _FILES})
        yield f"  {host}: {', '.join(f'{name} {number}' for name, number in found.items()) or 'nothing'}"


def _flows(lab: Lab, node: str, port: int) -> Iterator[str]:
    for family, protocol in itertools.product(("ipv4", "ipv6"), ("tcp", "udp")):
        yield from _said(lab, node, ["conntrack", "-f", family, "-L", "-p", protocol, "--orig-port-src", str(port)])


def _said(lab: Lab, host: str, command: list[str]) -> list[str]:
    """Return a program's output; [] if it is not installed."""
    try:
        shown = lab.run(host, command, check=False, stderr=subprocess.DEVNULL, capture_output=False, stdout=-1)
    except FileNotFoundError:
        return []
    return [re.sub(r"\s+", " ", line) for line in re.sub(r"\n\s+", " ", shown.stdout).splitlines()]


def _read(name: str) -> str:
    path = Path("/proc/thread-self/net") / name
    return path.read_text() if path.exists() else ""


def counters(files: dict[str, str]) -> dict[str, int]:
    """Choose the non-zero counters of /proc/net files about dropped, refused or repeated packets."""
    found: dict[str, int] = {}
    for name, text in files.items():
        for counter, number in (_by_processor if name.startswith("stat/") else _by_name)(text.splitlines()):
            if _TELLING.search(counter) and number:
                found[counter] = found.get(counter, 0) + number
    return found


def _by_processor(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Read a line of names, and one of hexadecimal numbers for each processor."""
    names = lines[0].split() if lines else []
    for line in lines[1:]:
        yield from zip(names, (int(word, 16) for word in line.split()), strict=False)


def _by_name(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Read `Tcp: name ...` followed by `Tcp: number ...`, or `name number` a line."""
    for before, line in pairwise(["", *lines]):
        head, *words = line.split()
        if not head.endswith(":"):
            yield head, int(words[0])
        elif words and words[0].lstrip("-").isdecimal():
            yield from zip(before.split()[1:], map(int, words), strict=False)
