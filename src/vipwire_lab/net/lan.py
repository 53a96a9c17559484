"""One Ethernet for some hosts of a lab: a bridge in the underlay, and an interface lan0 in each host.

The other wires of a lab are between routers. This one is for what happens between neighbours: ARP, NDP, addresses
that move from one machine to another. Needs iproute2, and a kernel with bridges.
"""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from vipwire_lab.net import netns
from vipwire_lab.net.errors import LabError
from vipwire_lab.net.topology import UNDERLAY, Topology

BRIDGE: Final = "lan"


def build(namespaces: Mapping[str, Path], topology: Topology) -> None:
    """Build it. Raise LabError where that is not possible."""
    _run(namespaces[UNDERLAY], _bridge(topology, namespaces))
    for host in topology.lan:
        lines = [f"address add {each} dev lan0 nodad" for each in topology.lan_addresses(host) if ":" in each]
        lines += [f"address add {each} dev lan0" for each in topology.lan_addresses(host) if ":" not in each]
        _run(namespaces[host], ["link set lan0 up", *lines])


def port(host: str) -> str:
    """Name the bridge's end of a host's wire: set it down to cut the host off."""
    return f"lan-{host}"[:15]


def _bridge(topology: Topology, namespaces: Mapping[str, Path]) -> Iterator[str]:
    yield f"link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0"
    yield f"link set {BRIDGE} up"
    for host in topology.lan:
        yield f"link add {port(host)} type veth peer name lan0 netns {namespaces[host].name}"
        yield f"link set {port(host)} master {BRIDGE}"
        yield f"link set {port(host)} up"


def _run(namespace: Path, lines: Iterator[str] | list[str]) -> None:
    batch = "".join(f"{line}\n" for line in lines)
    with netns.inside(namespace):
        try:
            done = subprocess.run(["ip", "-batch", "-"], input=batch, capture_output=True, text=True, check=False)  # noqa: S607
        except FileNotFoundError as error:
            raise LabError("a lab with an Ethernet needs the command ip (Debian: apt install iproute2)") from error
    if done.returncode:
        raise LabError(f"cannot build the lab's Ethernet: {done.stderr.strip()}")
