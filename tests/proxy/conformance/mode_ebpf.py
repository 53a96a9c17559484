"""ebpf mode in the suite: nftables mode's rules, and programs for the sockets of this very process.

Network namespaces tell the Pods of each node, because all hosts' sockets are in one cgroup.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.proxy.conformance import own_cgroup
from tests.proxy.conformance.mode import Command, Mode
from tests.proxy.conformance.mode_nftables import TABLE_HARM

from vipwire.model.net import Family
from vipwire_lab.cluster.cluster import Lab

_BRIDGE = "--pod-bridge-interface="


def _placed(lab: Lab, node: str, options: Sequence[str]) -> Sequence[str]:
    """Return the flags with the cgroup, and the namespaces of a node's Pods; with a bridge only those behind it."""
    behind = [option.removeprefix(_BRIDGE) for option in options if option.startswith(_BRIDGE)]
    pods = [pod.name for pod in lab.topology.pods if pod.node == node and (not behind or pod.name in behind)]
    clients = ",".join(str(lab.namespace_of(pod)) for pod in pods)
    return f"--ebpf-cgroup={own_cgroup.path()}", f"--ebpf-clients={clients}"


def _bpf(action: str, *words: str) -> Mapping[Family, Command]:
    return {
        family: (sys.executable, "-m", "tests.proxy.conformance.ebpf_harm", action, family.value, *words)
        for family in Family
    }


def _beside(rules: Mapping[Family, Command], action: str) -> Mapping[Family, Command]:
    """Run an nft command, and print the maps."""
    maps = _bpf(action)
    return {family: ("sh", "-c", f"{_shell(rules[family])}; {_shell(maps[family])}") for family in Family}


def _shell(command: Command) -> str:
    return " ".join(f"'{word}'" for word in command)


_HARM = replace(
    TABLE_HARM,
    wipes={**TABLE_HARM.wipes, "the programs are detached": _bpf("detach"), "the maps are emptied": _bpf("empty")},
    pieces={
        **TABLE_HARM.pieces,
        "a frontend is removed from the map": _bpf("remove", "{vip}"),
        "a frontend leads elsewhere": _bpf("mislead", "{vip}"),
    },
    listing=_beside(TABLE_HARM.listing, "show"),
    exact=_beside(TABLE_HARM.exact, "show"),
)

# nftables mode runs all its rules' cases, so this mode runs those of programs.
EBPF = (Mode("ebpf", _HARM, placed=_placed, has_cgroup=True, sampled=True),)
