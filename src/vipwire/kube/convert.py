"""Converts objects on the wire to the model's values: the only place, for API servers and manifests alike.

Every judgement about what is valid is made in the `convert_*` functions and nowhere else. What they find wrong are
`Problem` values; nothing raises. The rules of Services and EndpointSlices have modules of their own.
"""

from vipwire.kube import wire
from vipwire.kube.convert_service import convert_service
from vipwire.kube.convert_slice import convert_endpoints, convert_slice
from vipwire.kube.finding import Findings
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem

__all__ = ["convert_cidr", "convert_endpoints", "convert_node", "convert_service", "convert_slice"]

_NODE_ADDRESS_TYPES = ("InternalIP", "ExternalIP")


def convert_node(source: wire.Node) -> tuple[Node | None, tuple[Problem, ...]]:
    """Convert a Node; None only when it has no valid name."""
    meta = source.metadata or wire.NodeMeta()
    spec = source.spec or wire.NodeSpec()
    found = Findings("Node", ObjectName("", meta.name or ""))
    if not found.named(namespaced=False):
        return None, found.problems()
    if spec.pod_cidrs:
        pod_cidrs = found.prefixes("spec.podCIDRs", spec.pod_cidrs)
    else:
        pod_cidrs = found.prefixes("spec.podCIDR", (spec.pod_cidr,)) if spec.pod_cidr else ()
    node = Node(
        name=found.name.name,
        addresses=_node_addresses(source.status, found),
        pod_cidrs=pod_cidrs,
        zone=(meta.labels and meta.labels.zone) or "",
        taints=frozenset(taint.key for taint in spec.taints or () if taint.key),
        deleting=bool(meta.deletion_timestamp),
        uid=meta.uid or "",
    )
    return node, found.problems()


def convert_cidr(source: wire.ServiceCIDR) -> tuple[ServiceCIDR | None, tuple[Problem, ...]]:
    """Convert a ServiceCIDR; None when it has no valid prefix, of which there may be one a family."""
    meta = source.metadata or wire.Meta()
    found = Findings("ServiceCIDR", ObjectName("", meta.name or ""))
    if not found.named(namespaced=False):
        return None, found.problems()
    by_family: dict[Family, None] = {}
    kept = []
    texts = (source.spec.cidrs if source.spec else None) or ()
    for prefix in found.prefixes("spec.cidrs", texts):
        if prefix.family in by_family:
            found.note("spec.cidrs", f"has more than one {prefix.family.value} CIDR: the first is used")
            continue
        by_family[prefix.family] = None
        kept.append(prefix)
    if not kept:
        found.note("spec.cidrs", "has no valid CIDR")
        return None, found.problems()
    return ServiceCIDR(found.name.name, tuple(kept)), found.problems()


def _node_addresses(status: wire.NodeStatus | None, found: Findings) -> tuple[Address, ...]:
    """Read InternalIPs, then ExternalIPs; host names and DNS names are for people."""
    addresses: dict[Address, None] = {}
    sources = (status.addresses if status else None) or ()
    for wanted in _NODE_ADDRESS_TYPES:
        for index, source in enumerate(sources):
            if source.type != wanted:
                continue
            address = found.address(f"status.addresses[{index}].address", source.address)
            if address is not None:
                addresses[address] = None
    return tuple(addresses)
