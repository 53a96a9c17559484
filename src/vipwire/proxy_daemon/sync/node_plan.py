"""Builds the `NodePlan` from the configuration, the Node object and this machine. Pure.

A node's addresses are, as in kube-proxy, a specific `bindAddress`, else those of the Node object. A recreated Node
has no addresses for a while, so the last known ones stay in force. With manifests, which need not contain the Node,
the machine's addresses count.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from vipwire.config.configuration import Config, LocalMode
from vipwire.config.schema import PRIMARY
from vipwire.model.names import KUBERNETES
from vipwire.model.net import Address, AddressPort, Family, Prefix, family_of, is_loopback, parse_address
from vipwire.model.node import Drain, Node, ServiceCIDR
from vipwire.modes.registry import find_selected_mode
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces, PodPrefixes, PodTraffic
from vipwire.watched_objects.store import Store

T = TypeVar("T")
_EVERYWHERE = {Family.IPV4: Prefix(Address(bytes(4)), 0), Family.IPV6: Prefix(Address(bytes(16)), 0)}


def build_node_plan(
    config: Config,
    family: Family,
    name: str,
    node: Node | None,
    cidrs: Iterable[ServiceCIDR],
    machine: Sequence[Address],
    drained: frozenset[Drain] = frozenset(),
) -> NodePlan:
    """Plan this node for one family. `machine` are the machine's addresses without loopback."""
    address = choose_primary_address(config, family, node, machine)
    sync = config.sync
    return NodePlan(
        family=family,
        name=name,
        zone=node.zone if node else "",
        address=address,
        pod_traffic=_choose_pod_traffic(config, family, node),
        masquerade_all=sync.masquerade_all,
        masquerade_bit=sync.masquerade_bit,
        node_port_addresses=_choose_node_port_addresses(config, family, address),
        service_cidrs=tuple(sorted({p for cidr in cidrs for p in cidr.prefixes if p.family is family})),
        external_ips=config.gates["AllowServiceExternalIPs"],
        addresses=_select_configured_addresses(config, family, machine),
        port_ranges=find_selected_mode(config).port_ranges and not find_selected_mode(config).without_rules(config),
        direct=find_selected_mode(config).direct,
        drained=frozenset(drain for drain in drained if family_of(drain.address) is family),
    )


class Known(NamedTuple):
    """Facts that no current object has: the last known Node, and the API server's addresses."""

    node: Node | None = None
    api_servers: frozenset[AddressPort] = frozenset()


NOTHING_KNOWN: Final = Known()


def plan_node(
    config: Config,
    family: Family,
    name: str,
    store: Store,
    machine: Sequence[Address],
    drained: frozenset[Drain] = frozenset(),
    known: Known = NOTHING_KNOWN,
) -> NodePlan:
    """Plan this node from the current objects; `known` adds facts that no current object has."""
    node = merge_configured_facts(config, store.nodes.get(name), known.node)
    plan = build_node_plan(config, family, name, node, store.service_cidrs, machine, drained)
    service, slices = store.view(KUBERNETES)
    connected = known.api_servers
    served = {(e.address, p.port) for piece in slices for p in piece.ports for e in piece.endpoints}
    places = {place for place in served | connected if family_of(place[0]) is family}
    named = {address for each in (*store.nodes.values(), *((node,) if node else ())) for address in each.addresses}
    named |= {address for address, _ in places if service is None or address not in service.cluster_ips}
    hosts = frozenset(address for address in named if family_of(address) is family)
    here = {(None, port) for address, port in served | connected if address in machine or is_loopback(address)}
    return replace(
        plan,
        crowded=find_selected_mode(config).terse and family in store.crowded,
        api_servers=frozenset({*places, *here}),
        # With manifests and no Node, the first address may be a VIP, so it is no host.
        hosts=hosts if plan.address is None or config.manifests else hosts | {plan.address},
        # Nothing is dropped in a range that contains one of the machine's own addresses.
        service_cidrs=tuple(cidr for cidr in plan.service_cidrs if not any(host in cidr for host in hosts)),
    )


def merge_configured_facts(config: Config, node: Node | None, known: Node | None) -> Node | None:
    """Return the Node object, completed by its last known facts if an API server is the source."""
    return node if config.manifests else merge_known_facts(node, known)


def merge_known_facts(node: Node | None, known: Node | None) -> Node | None:
    """Return the Node with addresses, podCIDRs and zone of `known` where its own are missing.

    Addresses and podCIDRs count by family, because kubelet or cloud provider may write one family before the other. A
    Node without a zone keeps the old zone only while it has no addresses either; after that, an operator removed the
    label.
    """
    if node is None or known is None:
        return node or known
    return replace(
        node,
        addresses=_complete_families(node.addresses, known.addresses, family_of),
        pod_cidrs=_complete_families(node.pod_cidrs, known.pod_cidrs, lambda prefix: prefix.family),
        zone=node.zone or ("" if node.addresses else known.zone),
    )


def _complete_families(values: tuple[T, ...], known: tuple[T, ...], family: Callable[[T], Family]) -> tuple[T, ...]:
    told = {family(value) for value in values}
    return (*values, *(value for value in known if family(value) not in told))


def list_awaited_facts(config: Config, node: Node | None) -> tuple[str, ...]:
    """Return the Node's fields that rules need and the API server has not sent yet."""
    if config.manifests:
        return ()
    by_address = config.allowed_node_port_addresses == (PRIMARY,) and not any(parse_address(config.bind_address))
    by_pod_cidr = config.local_mode is LocalMode.NODE_CIDR
    return (
        *(("status.addresses",) if by_address and not (node and node.addresses) else ()),
        *(("spec.podCIDRs",) if by_pod_cidr and not (node and node.pod_cidrs) else ()),
    )


def _select_configured_addresses(config: Config, family: Family, machine: Sequence[Address]) -> tuple[Address, ...]:
    """Return the machine's addresses if the mode needs a virtual server or a socket for each."""
    if not find_selected_mode(config).per_address:
        return ()
    return tuple(sorted({address for address in machine if family_of(address) is family}))


def choose_primary_address(
    config: Config, family: Family, node: Node | None, machine: Sequence[Address]
) -> Address | None:
    bind = parse_address(config.bind_address)
    if family_of(bind) is family and any(bind):
        return bind
    known = node.addresses if node is not None else ()
    if not known and config.manifests:
        known = tuple(machine)
    return next((address for address in known if family_of(address) is family), None)


def health_check_prefixes(config: Config) -> tuple[Prefix, ...]:
    """Return the prefixes of the addresses that serve healthCheckNodePorts; without a configured list, all."""
    return tuple(Prefix.parse(text) for text in config.node_port_addresses if text != PRIMARY)


def _choose_pod_traffic(config: Config, family: Family, node: Node | None) -> PodTraffic | None:
    prefixes: tuple[Prefix, ...]
    match config.local_mode:
        case LocalMode.BRIDGE_INTERFACE:
            return PodBridge(config.detect_local.bridge_interface)
        case LocalMode.INTERFACE_NAME_PREFIX:
            return PodInterfaces(config.detect_local.interface_name_prefix)
        case LocalMode.CLUSTER_CIDR:
            prefixes = config.cluster_prefixes
            if find_selected_mode(config).relays and node is not None:
                prefixes = _narrow_prefixes(prefixes, node.pod_cidrs)
        case LocalMode.NODE_CIDR:
            prefixes = node.pod_cidrs if node else ()
    ours = tuple(prefix for prefix in prefixes if prefix.family is family)
    return PodPrefixes(ours) if ours else None


def _narrow_prefixes(cluster: tuple[Prefix, ...], own: tuple[Prefix, ...]) -> tuple[Prefix, ...]:
    """Reduce the Pods' prefixes to this node's, in each family whose podCIDR is known.

    Otherwise Pods of other nodes could reach every endpoint through this node's relay in spite of a Local policy.
    """
    known = tuple(prefix for prefix in own if any(prefix.network in each for each in cluster))
    families = {prefix.family for prefix in known}
    return (*known, *(prefix for prefix in cluster if prefix.family not in families))


def _choose_node_port_addresses(config: Config, family: Family, address: Address | None) -> tuple[Prefix, ...]:
    allowed = config.allowed_node_port_addresses
    if not allowed:
        return (_EVERYWHERE[family],)
    if allowed == (PRIMARY,):
        return () if address is None else (Prefix.host(address),)
    prefixes = [Prefix.parse(text) for text in allowed]
    return tuple(prefix for prefix in prefixes if prefix.family is family)
