"""This machine as a Node object, which the proxy and its rules of locality need.

A store has one `vipwire up`, and so one Node of its own. Another one that says it is Ready because a vipwire serves
it is of an earlier name or machine: its state becomes Unknown, as Kubernetes has it for Nodes that are not heard of.
Nodes that people or kubelets declare are left alone.
"""

import os
import platform
from collections.abc import Callable, Iterable
from typing import Final

from vipwire import __version__
from vipwire.cluster.api.answers.cells import at, format_time
from vipwire.cluster.api.answers.discovery import version
from vipwire.cluster.api.bodies.sent import Options
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.node import NODES
from vipwire.cluster.api.object import key_of, readable
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.api.resource import Object
from vipwire.cluster.store.record import StoreError
from vipwire.host.addresses import LocalAddress, global_addresses
from vipwire.model.net import format_address

_SERVED: Final = "VipwireReady"
_OPTIONS: Final = Options(manager="vipwire-node", validation="Ignore")


def node_addresses(machine: Iterable[LocalAddress], name: str) -> list[Object]:
    """List a Node's addresses: the machine's first global one of each family, and its name."""
    first: dict[int, str] = {}
    for address in global_addresses(machine):
        first.setdefault(len(address), format_address(address))
    found = [{"type": "InternalIP", "address": first[size]} for size in sorted(first)]
    return [*found, {"type": "Hostname", "address": name}]


async def declare_node(registry: Registry, name: str, addresses: list[Object]) -> None:
    """Create the Node of this machine, or update in an existing one what describes this machine.

    Raise StoreError for one that cannot be written.
    """
    now = format_time(registry.clock())
    try:
        if registry.store.read(key_of(NODES, "", name)) is None:
            await registry.create(NODES, "", _node(name, addresses, now), _OPTIONS)
        else:
            await _change(registry, name, lambda value: _with(value, addresses, now))
        for record in registry.store.scan(NODES.id):
            if record.key.name != name and _ready(readable(record)).get("reason") == _SERVED:
                await _change(registry, record.key.name, lambda value: _retired(value, now))
    except ApiError as error:
        raise StoreError(error.message) from error


async def _change(registry: Registry, name: str, edit: Callable[[Object], Object]) -> None:
    await registry.change(NODES, "", name, edit, _OPTIONS, subresource="status")


def _ready(node: Object) -> Object:
    """Return a Node's condition Ready; an empty one if it has none that can be read."""
    conditions = at(node, "status", "conditions")
    found = [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
    return next((each for each in found if each.get("type") == "Ready"), {})


def _retired(node: Object, now: str) -> Object:
    """Say of a Node that nobody serves it."""
    message = "vipwire does not serve this Node any more: delete it if it is gone"
    told = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": message}
    return _with_ready(node, told | {"lastTransitionTime": now})


def _with_ready(node: Object, ready: Object) -> Object:
    status = node.get("status") or {}
    before = _ready(node)
    if before.get("status") == ready["status"] and before.get("lastTransitionTime"):
        ready |= {"lastTransitionTime": before["lastTransitionTime"]}
    others = [each for each in status.get("conditions") or () if each.get("type") != "Ready"]
    heard = {"lastHeartbeatTime": before["lastHeartbeatTime"]} if before.get("lastHeartbeatTime") else {}
    return node | {"status": status | {"conditions": [*others, heard | ready]}}


def _served(now: str) -> Object:
    ready = {"type": "Ready", "status": "True", "reason": _SERVED, "message": "vipwire serves this machine"}
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


def _node(name: str, addresses: list[Object], now: str) -> Object:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    status = _facts() | {"addresses": addresses, "conditions": [_served(now)]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def _with(value: Object, addresses: list[Object], now: str) -> Object:
    """Write anew what this machine is; that it is served, unless somebody else has said something of that."""
    value = value | {"status": (value.get("status") or {}) | _facts() | {"addresses": addresses}}
    ours = _ready(value).get("reason") in (None, "", _SERVED, "NodeStatusUnknown")
    return _with_ready(value, _served(now)) if ours else value
