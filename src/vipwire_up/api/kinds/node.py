"""Nodes: types, columns and validation (pkg/apis/core/validation, ValidateNode)."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of, find_network_problem, warn_of_network
from vipwire_up.api.objects.columns import AGE, NAME, NONE, UNKNOWN, column_of_path, join_values
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid
from vipwire_up.api.objects.object import encode, value_at
from vipwire_up.api.objects.quantity import check_node_amounts as check_resources
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind Node | A machine of the cluster.
  spec NodeSpec #2 default={} | Desired state of the Node.
  status NodeStatus #3 default={} | Observed state of the Node.
NodeSpec | Desired state of a Node.
  configSource any #6 | Deprecated and unused.
  externalID string #2 | Deprecated and unused.
  podCIDR string #1 | First entry of podCIDRs.
  podCIDRs []string #7 set merge=- | CIDRs of the addresses of Pods on the Node.
  providerID string #3 | Identifier of the machine at the cloud provider.
  taints []Taint #5 atomic | Taints of the Node.
  unschedulable bool #4 | True if schedulers must not assign new Pods to the Node.
Taint | A taint, which keeps Pods without a toleration off a Node.
  effect string #3 required one=NoSchedule,PreferNoSchedule,NoExecute | Effect on Pods without a toleration.
  key string #1 required | Key of the taint.
  timeAdded time #4 | Time at which the taint was added.
  value string #2 | Value of the taint.
NodeStatus | Observed state of a Node.
  addresses []NodeAddress #5 key=type merge=type | Addresses and names of the machine.
  allocatable {}quantity #2 | Resources for Pods.
  capacity {}quantity #1 | Resources of the machine.
  conditions []NodeCondition #4 key=type merge=type | Conditions of the Node, such as Ready.
  config any #11 | Deprecated and unused.
  daemonEndpoints any #6 | Ports of the kubelet.
  declaredFeatures []string atomic | Features of the Node.
  features any #13 | Features of the container runtime.
  images []any #8 | Container images on the Node.
  nodeInfo NodeSystemInfo #7 | Versions of the Node's software.
  phase string #3 | Deprecated and unused.
  runtimeHandlers []any #12 | Handlers of the container runtime.
  volumesAttached []any #10 | Volumes that are attached to the Node.
  volumesInUse []string #9 atomic | Volumes that the Node uses.
NodeAddress | An address or name of a machine.
  address string #2 required | The address or name.
  type string #1 required | Type of the address: Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS.
NodeCondition | One aspect of a Node's state.
  lastHeartbeatTime time #3 | Time of the last update of the condition.
  lastTransitionTime time #4 | Time of the last change of status.
  message string #6 | Explanation for people.
  reason string #5 | Reason for the status, in one word.
  status string #2 required | Status of the condition: True, False or Unknown.
  type string #1 required | Type of the condition.
NodeSystemInfo | Versions of the software on a Node.
  architecture string #10 | Architecture of the CPU.
  bootID string #3 | Identifier of the current boot.
  containerRuntimeVersion string #6 | Version of the container runtime.
  kernelVersion string #4 | Version of the kernel.
  kubeProxyVersion string #8 | Version of the service proxy.
  kubeletVersion string #7 | Version of the kubelet.
  machineID string #1 | Identifier of the machine, from /etc/machine-id.
  operatingSystem string #9 | Operating system: linux.
  osImage string #5 | Name of the distribution.
  swap any #11 | Swap space of the machine.
  systemUUID string #2 | Identifier of the machine, from the firmware.
"""

_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)
_ROLE: Final = "node-role.kubernetes.io/"


def _format_status(value: Object, _now: datetime) -> str:
    ready = [entry for entry in value_at(value, "status", "conditions") or () if entry.get("type") == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[0].get("status") == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if value_at(value, "spec", "unschedulable") else state


def _format_roles(value: Object, _now: datetime) -> str:
    labels = value_at(value, "metadata", "labels") or {}
    return join_values(sorted(key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)))


def _find_address(kind: str, value: Object) -> str:
    found = [
        entry.get("address") for entry in value_at(value, "status", "addresses") or () if entry.get("type") == kind
    ]
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
    yield from _check_taints(value_at(new, "spec", "taints") or [])
    yield from check_resources(new)
    yield from _check_cidrs(value_at(new, "spec", "podCIDRs") or [])
    if old is None:
        return
    addresses = set[bytes]()
    for index, address in enumerate(value_at(new, "status", "addresses") or ()):
        if (text := encode(address)) in addresses:
            yield duplicate(f"status.addresses[{index}]", address)
        addresses.add(text)
    for field, word in _ONCE:
        before = value_at(old, "spec", field)
        if before and before != value_at(new, "spec", field):
            yield forbidden(f"spec.{field}", f'node updates may not change {word} except from "" to valid')
    if (value_at(new, "spec", "externalID") or "") != (value_at(old, "spec", "externalID") or ""):
        yield forbidden("spec.externalID", "may not be updated")


def _check_cidrs(cidrs: list[str]) -> Iterator[Cause]:
    seen = set[str]()
    for index, text in enumerate(cidrs):
        if problem := find_network_problem(text):
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
        if problem := names.check_qualified_name(key):
            yield invalid(f"{path}.key", key, problem)
        if problem := names.check_label_value(value):
            yield invalid(f"{path}.value", value, problem)
        same = (taint.get("effect"), key)
        if same in seen:
            letters = {"Key": key, "Value": value, "Effect": taint.get("effect"), "TimeAdded": taint.get("timeAdded")}
            found = duplicate(path, letters)
            why = "taints must be unique by key and effect pair"
            yield Cause(found.field, found.reason, f"{found.message}: {why}")
        seen.add(same)


def _warn_node(new: Object, _old: Object | None) -> Iterator[str]:
    if value_at(new, "spec", "configSource"):
        yield "spec.configSource: the feature is removed"
    if value_at(new, "spec", "externalID"):
        yield "spec.externalID: this field is deprecated, and is unused by Kubernetes"
    yield from warn_of_network("spec.podCIDRs", value_at(new, "spec", "podCIDRs") or ())


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
    fields={"spec.unschedulable": lambda value: str(bool(value_at(value, "spec", "unschedulable"))).lower()},
    columns=(
        NAME,
        Column("Status", _format_status),
        Column("Roles", _format_roles),
        AGE,
        Column("Version", column_of_path("status", "nodeInfo", "kubeletVersion", absent="")),
        Column("Internal-IP", lambda value, _: _find_address("InternalIP", value), priority=1),
        Column("External-IP", lambda value, _: _find_address("ExternalIP", value), priority=1),
        Column("OS-Image", column_of_path("status", "nodeInfo", "osImage", absent=UNKNOWN), priority=1),
        Column("Kernel-Version", column_of_path("status", "nodeInfo", "kernelVersion", absent=UNKNOWN), priority=1),
        Column(
            "Container-Runtime",
            column_of_path("status", "nodeInfo", "containerRuntimeVersion", absent=UNKNOWN),
            priority=1,
        ),
    ),
)
