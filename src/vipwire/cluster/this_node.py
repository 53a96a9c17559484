"""This machine as a Node object, which the proxy and its rules of locality need."""

import os
import platform
from collections.abc import Iterable
from typing import Final

from vipwire import __version__
from vipwire.cluster.api.answers.cells import format_time
from vipwire.cluster.api.answers.discovery import version
from vipwire.cluster.api.bodies.sent import Options
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.node import NODES
from vipwire.cluster.api.object import key_of
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.api.resource import Object
from vipwire.cluster.store.record import StoreError
from vipwire.host.addresses import LocalAddress, global_addresses
from vipwire.model.net import format_address

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
    try:
        if registry.store.read(key_of(NODES, "", name)) is None:
            await registry.create(NODES, "", _node(name, addresses, format_time(registry.clock())), _OPTIONS)
            return
        await registry.change(NODES, "", name, lambda value: _with(value, addresses), _OPTIONS, subresource="status")
    except ApiError as error:
        raise StoreError(error.message) from error


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
    ready = {"type": "Ready", "status": "True", "reason": "VipwireReady", "message": "vipwire serves this machine"}
    ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    status = _facts() | {"addresses": addresses, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def _with(value: Object, addresses: list[Object]) -> Object:
    return value | {"status": (value.get("status") or {}) | _facts() | {"addresses": addresses}}
