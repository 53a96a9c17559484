"""`vipwire lab up --proxy-mode`: a proxy on every node of a lab, until `vipwire lab down`.

They watch a folder of manifests in the lab's directory; their logs are proxy-NODE.log beside it.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vipwire.file_io.files import replace_file
from vipwire_lab.cluster import manifests, state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.topology import Node

_PATIENCE: Final = 60.0
_LOOK_SECONDS: Final = 0.05
_SHOWN: Final = 6
_FAMILIES: Final = 2


def proxies_folder(lab: Lab) -> Path:
    return state.directory_of(lab.name) / "services"


def start_proxies(lab: Lab, mode: str) -> None:
    """Start a proxy on every node, with the lab's example Service; return when all rules are in the kernels.

    Raise LabError with a proxy's output if it ends earlier.
    """
    folder = proxies_folder(lab)
    folder.mkdir()
    replace_file(folder / "lab.yaml", manifests.dump_yaml(manifests.build_example(lab.topology)).encode())
    cidrs = _cluster_cidrs(lab)
    started = []
    for node in lab.topology.nodes:
        log = state.directory_of(lab.name) / f"proxy-{node.name}.log"
        flags = [f"--manifests={folder}", f"--hostname-override={node.name}", f"--proxy-mode={mode}"]
        flags += [f"--cluster-cidr={cidrs}", "--oom-score-adj=0", *_client_flags(lab, node, mode)]
        command = [sys.executable, "-m", "vipwire", "proxy", *flags]
        with log.open("wb") as file, state.own_state(lab.name):
            process = lab.popen(
                node.name, command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        started.append((node.name, process, log))
    for name, process, log in started:
        _wait_until_ready(name, process, log)


def _client_flags(lab: Lab, node: Node, mode: str) -> Sequence[str]:
    """Return the flags that name a node's Pods to programs of sockets: no kubelet made cgroups for them."""
    pods = [str(lab.namespace_of(pod.name)) for pod in lab.topology.pods if pod.node == node.name]
    return (f"--ebpf-clients={','.join(pods) or 'node'}",) if mode == "ebpf" else ()


def _cluster_cidrs(lab: Lab) -> str:
    """Join the nodes' Pod CIDRs for `--cluster-cidr`: one of each family."""
    every = [cidr for node in lab.topology.nodes for cidr in node.pod_cidrs]
    found = []
    if any(":" not in cidr for cidr in every):
        found.append("10.244.0.0/16")
    if any(":" in cidr for cidr in every):
        found.append("fd00:10:244::/48")
    return ",".join(found)


def _wait_until_ready(name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while log.read_text(encoding="utf-8", errors="replace").count("msg=synced") < _FAMILIES:
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()
            told = [
                line.removeprefix("error: ") for line in said if line.startswith("error: ") or "level=error" in line
            ]
            what = "ended" if ended else f"is not ready after {_PATIENCE:.0f} s"
            raise LabError("\n".join([f"the proxy of {name} {what}:", *(told or said)[-_SHOWN:]]))
        time.sleep(_LOOK_SECONDS)
