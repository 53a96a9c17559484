"""Nodes: types, columns and validation (pkg/apis/core/validation, ValidateNode)."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of, network_problem, warn_of_network
from vipwire_up.api.objects.columns import AGE, NAME, NONE, UNKNOWN, joined, path_cell
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid
from vipwire_up.api.objects.object import at, encode
from vipwire_up.api.objects.quantity import check_node_amounts as check_resources
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind Node | A machine.
  spec NodeSpec #2 default={} | What is wanted.
  status NodeStatus #3 default={} | What is the case.
NodeSpec | What is wanted of a node.
  configSource any #6 | Not used any more.
  externalID string #2 | Not used any more.
  podCIDR string #1 | The first of podCIDRs.
  podCIDRs []string #7 set merge=- | The ranges that Pods of this node have addresses of.
  providerID string #3 | What the cloud calls the machine.
  taints []Taint #5 atomic | What keeps Pods away.
  unschedulable bool #4 | Whether no new Pods are wanted.
Taint | What keeps Pods away that do not tolerate it.
  effect string #3 required one=NoSchedule,PreferNoSchedule,NoExecute | What it does.
  key string #1 required | Its name.
  timeAdded time #4 | Since when.
  value string #2 | Its value.
NodeStatus | What is the case about a node.
  addresses []NodeAddress #5 key=type merge=type | Addresses and names of the machine.
  allocatable {}quantity #2 | Resources for Pods.
  capacity {}quantity #1 | Resources of the machine.
  conditions []NodeCondition #4 key=type merge=type | Ready and others.
  config any #11 | Not used any more.
  daemonEndpoints any #6 | Where the kubelet listens.
  declaredFeatures []string atomic | What the node can do.
  features any #13 | What its runtime can do.
  images []any #8 | Images that are there.
  nodeInfo NodeSystemInfo #7 | Versions.
  phase string #3 | Not used any more.
  runtimeHandlers []any #12 | Container runtimes.
  volumesAttached []any #10 | Volumes that are attached.
  volumesInUse []string #9 atomic | Volumes that are in use.
NodeAddress | An address or a name of a machine.
  address string #2 required | The address.
  type string #1 required | InternalIP, ExternalIP, Hostname and others.
NodeCondition | One aspect of a node's state.
  lastHeartbeatTime time #3 | When it was last heard of.
  lastTransitionTime time #4 | When it last changed.
  message string #6 | A sentence about why.
  reason string #5 | A word about why.
  status string #2 required | True, False or Unknown.
  type string #1 required | The aspect.
NodeSystemInfo | Versions of what runs on a node.
  architecture string #10 | Its processor.
  bootID string #3 | This boot.
  containerRuntimeVersion string #6 | The container runtime.
  kernelVersion string #4 | The kernel.
  kubeProxyVersion string #8 | The service proxy.
  kubeletVersion string #7 | The kubelet.
  machineID string #1 | The machine.
  operatingSystem string #9 | linux.
  osImage string #5 | The distribution.
  swap any #11 | Its swap space.
  systemUUID string #2 | The machine, by its firmware.
"""

_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)
_ROLE: Final = "node-role.kubernetes.io/"


def _node_status(value: Object, _now: datetime) -> str:
    ready = [entry for entry in at(value, "status", "conditions") or () if entry.get("type") == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[0].get("status") == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if at(value, "spec", "unschedulable") else state


def _roles(value: Object, _now: datetime) -> str:
    labels = at(value, "metadata", "labels") or {}
    return joined(sorted(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)))


def _address(kind: str, value: Object) -> str:
    found = [entry.get("address") for entry in at(value, "status", "addresses") or () if entry.get("type") == kind]
    return str(found[0] or NONE) if found else NONE


def _default_node(new: Object) -> None:
    """Copy podCIDR to podCIDRs or back if only one of them is given."""
    spec = new["spec"]
    if spec.get("podCIDRs"):
        spec["podCIDR"] = spec["podCIDRs"][0]
    elif spec.get("podCIDR"):
        spec["podCIDRs"] = [spec["podCIDR"]]


_ONCE: Final = ("podCIDRs", "podCIDR"), ("providerID", "providerID")


def _check_node(new: Object, old: Object | None) -> Iterator[Cause]:
    yield from _check_taints(at(new, "spec", "taints") or [])
    yield from check_resources(new)
    yield from _check_cidrs(at(new, "spec", "podCIDRs") or [])
    if old is None:
        return
    addresses = set[bytes]()
    for index, address in enumerate(at(new, "status", "addresses") or ()):
        if (text := encode(address)) in addresses:
            yield duplicate(f"status.addresses[{index}]", address)
        addresses.add(text)
    for field, word in _ONCE:
        before = at(old, "spec", field)
        if before and before != at(new, "spec", field):
            yield forbidden(f"spec.{field}", f'node updates may not change {word} except from "" to valid')
    if (at(new, "spec", "externalID") or "") != (at(old, "spec", "externalID") or ""):
        yield forbidden("spec.externalID", "may not be updated")


def _check_cidrs(cidrs: list[str]) -> Iterator[Cause]:
    seen = set[str]()
    for index, text in enumerate(cidrs):
        if problem := network_problem(text):
            yield invalid(f"spec.podCIDRs[{index}]", text, problem)
        if text in seen:
            yield duplicate(f"spec.podCIDRs[{index}]", text)
        seen.add(text)
    families = {family_of(text.partition("/")[0]) for text in cidrs}
    if len(cidrs) > 2 or len(families) < len(cidrs):
        yield invalid("spec.podCIDRs", cidrs, "may specify no more than one CIDR for each IP family")


def _check_taints(taints: list[Object]) -> Iterator[Cause]:
    seen = set[tuple[Any, Any]]()
    for index, taint in enumerate(taints):
        path, key, value = f"metadata.taints[{index}]", taint.get("key") or "", taint.get("value") or ""
        if problem := names.qualified(key):
            yield invalid(f"{path}.key", key, problem)
        if problem := names.label_value(value):
            yield invalid(f"{path}.value", value, problem)
        same = (taint.get("effect"), key)
        if same in seen:
            letters = {"Key": key, "Value": value, "Effect": taint.get("effect"), "TimeAdded": taint.get("timeAdded")}
            found = duplicate(path, letters)
            why = "taints must be unique by key and effect pair"
            yield Cause(found.field, found.reason, f"{found.message}: {why}")
        seen.add(same)


def _warn_node(new: Object, _old: Object | None) -> Iterator[str]:
    if at(new, "spec", "configSource"):
        yield "spec.configSource: the feature is removed"
    if at(new, "spec", "externalID"):
        yield "spec.externalID: this field is deprecated, and is unused by Kubernetes"
    yield from warn_of_network("spec.podCIDRs", at(new, "spec", "podCIDRs") or ())


NODES: Final = Resource(
    kind="Node",
    plural="nodes",
    type=_TYPES["Node"],
    namespaced=False,
    short_names=("no",),
    has_status=True,
    declares_status=True,
    default=_default_node,
    check=_check_node,
    warn=_warn_node,
    fields={"spec.unschedulable": lambda value: str(bool(at(value, "spec", "unschedulable"))).lower()},
    columns=(
        NAME,
        Column("Status", _node_status),
        Column("Roles", _roles),
        AGE,
        Column("Version", path_cell("status", "nodeInfo", "kubeletVersion", absent="")),
        Column("Internal-IP", lambda value, _: _address("InternalIP", value), priority=1),
        Column("External-IP", lambda value, _: _address("ExternalIP", value), priority=1),
        Column("OS-Image", path_cell("status", "nodeInfo", "osImage", absent=UNKNOWN), priority=1),
        Column("Kernel-Version", path_cell("status", "nodeInfo", "kernelVersion", absent=UNKNOWN), priority=1),
        Column(
            "Container-Runtime",
            path_cell("status", "nodeInfo", "containerRuntimeVersion", absent=UNKNOWN),
            priority=1,
        ),
    ),
)
