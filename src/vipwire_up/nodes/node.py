"""A machine as a Node object: its facts, its addresses, its condition Ready, and the names of its Leases.

    True       the machine serves Services, and has said so within the time of its Lease (readiness.py judges that)
    Unknown    it has not been heard of for so long: the endpoints on it leave

Nodes that people or kubelets declare are left alone.
"""

import os
import platform
from collections.abc import Collection, Iterable
from typing import Final

from vipwire import __version__
from vipwire.linux.host.addresses import LocalAddress, global_addresses
from vipwire.model.net import format_address, parse_address
from vipwire_up.api.answers.discovery import version
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Object

NODE_LEASES: Final = "kube-node-lease"
"""The namespace of the Leases by which machines say that they are alive; each has its Node's name."""
SERVERS: Final = "vipwire-server-"
"""How the Leases of API servers begin, in kube-system."""


SERVED: Final = "VipwireReady"
LOST: Final = "NodeStatusUnknown"
"""The reasons of the condition Ready: we serve it; it is not heard of."""
PROBES: Final = "vipwire.io/probes"
OWN: Final = "own"
"""The annotation of a Node, and its value where the machine asks its own workloads whether they are ready."""
ADDRESSES: Final = "vipwire.io/addresses"
"""The annotation of a Node with all global addresses of the machine: status.addresses has one of each family."""


def node_addresses(machine: Iterable[LocalAddress], name: str, earlier: Collection[str] = ()) -> list[Object]:
    """List a Node's addresses: the machine's first global one of each family, and its name.

    An `earlier` one stays while the machine has it, or has no global address at all.
    """
    first: dict[int, str] = {}
    for address in global_addresses(machine) or map(parse_address, earlier):
        text = format_address(address)
        if len(address) not in first or text in earlier:
            first[len(address)] = text
    found = [{"type": "InternalIP", "address": first[size]} for size in sorted(first)]
    return [*found, {"type": "Hostname", "address": name}]


def about_machine(machine: Iterable[LocalAddress], *, probes: bool) -> dict[str, str]:
    """Write the annotations of a machine's Node; `probes` says whether it asks its own workloads."""
    found = dict.fromkeys(format_address(address) for address in global_addresses(machine))
    return {ADDRESSES: ",".join(found), PROBES: OWN if probes else "elected"}


def ready_condition(node: Object) -> Object:
    """Return a Node's condition Ready; an empty one if it has none that can be read."""
    conditions = at(node, "status", "conditions")
    found = [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
    return next((each for each in found if each.get("type") == "Ready"), {})


def is_ready(node: Object) -> bool:
    """Report whether a Node is Ready."""
    return ready_condition(node).get("status") == "True"


def is_ours(node: Object) -> bool:
    """Report whether a Node is a machine that a vipwire serves, or served."""
    return ready_condition(node).get("reason") in (SERVED, LOST)


def is_lost(node: Object) -> bool:
    """Report whether a Node is not heard of any more: whatever runs there cannot be counted on."""
    ready = ready_condition(node)
    return ready.get("status") == "Unknown" and ready.get("reason") == LOST


def lost(node: Object, now: str, seconds: float) -> Object:
    """Say of a Node that it has not been heard of for so long."""
    message = f"its Lease was not renewed for {seconds:g} s"
    told = {"type": "Ready", "status": "Unknown", "reason": LOST, "message": message}
    return _with_ready(node, told | {"lastTransitionTime": now})


def _with_ready(node: Object, ready: Object) -> Object:
    status = node.get("status") or {}
    before = ready_condition(node)
    if before.get("status") == ready["status"] and before.get("lastTransitionTime"):
        ready |= {"lastTransitionTime": before["lastTransitionTime"]}
    others = [each for each in status.get("conditions") or () if each.get("type") != "Ready"]
    heard = {"lastHeartbeatTime": before["lastHeartbeatTime"]} if before.get("lastHeartbeatTime") else {}
    return node | {"status": status | {"conditions": [*others, heard | ready]}}


def _served(now: str) -> Object:
    ready = {"type": "Ready", "status": "True", "reason": SERVED, "message": "vipwire serves this machine"}
    return ready | {"lastHeartbeatTime": now, "lastTransitionTime": now}


def _facts() -> Object:
    """Return what this machine is: what `kubectl get nodes -o wide` shows, and its CPUs, which zone hints go by."""
    cpus = {"cpu": str(os.cpu_count() or 1)}
    try:
        image = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # a system that does not say
        image = ""
    info = dict.fromkeys(("bootID", "containerRuntimeVersion", "machineID", "systemUUID"), "")  # clients require them
    info |= {"kernelVersion": platform.release(), "osImage": image, "operatingSystem": "linux"}
    info |= {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())}
    # There is no kubelet, but its version is what kubectl shows as the Node's.
    info |= {"kubeletVersion": version()["gitVersion"], "kubeProxyVersion": f"vipwire {__version__}"}
    return {"capacity": cpus, "allocatable": cpus, "nodeInfo": info}


def undeclared_node(name: str) -> Object:
    """Write the Node of a machine that has a certificate, and has said nothing of itself yet."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}}


def new_node(name: str, addresses: list[Object], now: str) -> Object:
    """Write the Node of this machine."""
    return undeclared_node(name) | {"status": _facts() | {"addresses": addresses, "conditions": [_served(now)]}}


def served_node(value: Object, addresses: list[Object], now: str) -> Object:
    """Write anew what this machine is; that it is served, unless somebody else has said something of that."""
    value = value | {"status": (value.get("status") or {}) | _facts() | {"addresses": addresses}}
    ours = ready_condition(value).get("reason") in (None, "", SERVED, LOST)
    return _with_ready(value, _served(now)) if ours else value
