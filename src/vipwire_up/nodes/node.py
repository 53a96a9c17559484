"""A machine as a Node object: its facts, its addresses, its condition Ready, and the names of its Leases.

    True       the machine serves Services and has renewed its Lease in time (readiness.py judges that)
    Unknown    the Lease has expired: the controller removes the endpoints on the machine

vipwire leaves alone the Nodes that people or kubelets declare.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from typing import Final

from vipwire import __version__
from vipwire.linux.host.addresses import LocalAddress, select_global_addresses
from vipwire.model.net import format_address, parse_address
from vipwire_up.api.answers.discovery import build_version
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object

NODE_LEASES: Final = "kube-node-lease"
"""The namespace of the machines' Leases; each has its Node's name."""
SERVERS: Final = "vipwire-server-"
"""Prefix of the Leases of API servers, in kube-system."""


SERVED: Final = "VipwireReady"
LOST: Final = "NodeStatusUnknown"
"""The reasons of the condition Ready: served by vipwire; Lease expired."""
PROBES: Final = "vipwire.io/probes"
OWN: Final = "own"
"""The annotation of a Node, and its value if the machine probes its own Pods."""
ADDRESSES: Final = "vipwire.io/addresses"
"""The annotation of a Node with all global addresses of the machine: status.addresses has one of each family."""


def node_addresses(machine: Sequence[LocalAddress], name: str, preferred: Sequence[str] = ()) -> list[Object]:
    """Return a Node's addresses: one global address of the machine of each family, and its name.

    The first of `preferred` that the machine has wins, before all others of its interfaces; those of `lo` come last.
    While the machine has no global address at all, those in `preferred` stay.
    """
    here = sorted(machine, key=lambda each: each.interface == "lo")
    held = [format_address(address) for address in select_global_addresses(here)]
    first: dict[int, str] = {}
    for text in [each for each in preferred if each in held or not held] + held:
        first.setdefault(len(parse_address(text)), text)
    found = [{"type": "InternalIP", "address": first[size]} for size in sorted(first)]
    return [*found, {"type": "Hostname", "address": name}]


def machine_annotations(machine: Iterable[LocalAddress], *, probes: bool) -> dict[str, str]:
    """Build the annotations of a machine's Node; `probes` tells whether it probes its own Pods."""
    found = dict.fromkeys(format_address(address) for address in select_global_addresses(machine))
    return {ADDRESSES: ",".join(found), PROBES: OWN if probes else "elected"}


def ready_condition(node: Object) -> Object:
    conditions = value_at(node, "status", "conditions")
    found = [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
    return next((each for each in found if each.get("type") == "Ready"), {})


def is_ready(node: Object) -> bool:
    return ready_condition(node).get("status") == "True"


def is_managed_by_vipwire(node: Object) -> bool:
    return ready_condition(node).get("reason") in (SERVED, LOST)


def is_lost(node: Object) -> bool:
    """Report whether a Node's Lease expired: its endpoints cannot be relied on."""
    ready = ready_condition(node)
    return ready.get("status") == "Unknown" and ready.get("reason") == LOST


def mark_node_lost(node: Object, now: str, seconds: float) -> Object:
    """Set condition Ready to Unknown on a Node that has been silent for `seconds`."""
    message = f"no renewal of its Lease for {seconds:g} s"
    told = {"type": "Ready", "status": "Unknown", "reason": LOST, "message": message}
    return _set_ready(node, told | {"lastTransitionTime": now})


def _set_ready(node: Object, ready: Object) -> Object:
    status = node.get("status") or {}
    before = ready_condition(node)
    if before.get("status") == ready["status"] and before.get("lastTransitionTime"):
        ready |= {"lastTransitionTime": before["lastTransitionTime"]}
    others = [each for each in status.get("conditions") or () if each.get("type") != "Ready"]
    heard = {"lastHeartbeatTime": before["lastHeartbeatTime"]} if before.get("lastHeartbeatTime") else {}
    return node | {"status": status | {"conditions": [*others, heard | ready]}}


def _ready_condition_of_machine(now: str) -> Object:
    ready = {"type": "Ready", "status": "True", "reason": SERVED, "message": "vipwire serves this machine"}
    return ready | {"lastHeartbeatTime": now, "lastTransitionTime": now}


def _machine_facts() -> Object:
    """Return this machine's facts: those that `kubectl get nodes -o wide` shows, and its CPUs for zone hints."""
    cpus = {"cpu": str(os.cpu_count() or 1)}
    try:
        image = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # no such file or field on this system
        image = ""
    info = dict.fromkeys(("bootID", "containerRuntimeVersion", "machineID", "systemUUID"), "")  # clients require them
    info |= {"kernelVersion": platform.release(), "osImage": image, "operatingSystem": "linux"}
    info |= {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())}
    # kubectl shows the kubelet's version as the Node's. No kubelet runs here.
    info |= {"kubeletVersion": build_version()["gitVersion"], "kubeProxyVersion": f"vipwire {__version__}"}
    return {"capacity": cpus, "allocatable": cpus, "nodeInfo": info}


def build_undeclared_node(name: str) -> Object:
    """Build the Node of a machine that has a certificate and has not reported yet."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}}


def build_node(name: str, addresses: list[Object], now: str) -> Object:
    return build_undeclared_node(name) | {
        "status": _machine_facts() | {"addresses": addresses, "conditions": [_ready_condition_of_machine(now)]}
    }


def update_node(value: Object, addresses: list[Object], now: str) -> Object:
    """Update this machine's facts; and condition Ready, unless another client has set one."""
    value = value | {"status": (value.get("status") or {}) | _machine_facts() | {"addresses": addresses}}
    ours = ready_condition(value).get("reason") in (None, "", SERVED, LOST)
    return _set_ready(value, _ready_condition_of_machine(now)) if ours else value
