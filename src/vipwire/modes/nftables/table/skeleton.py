"""Writes the constant part of the table: sets, base chains, and the rules that no Service changes.

    prerouting, output  -110  firewall-check             drop sources outside loadBalancerSourceRanges
    prerouting, output  -104  services                   find the frontend, mark for masquerading, choose, DNAT
    input, forward, output 0  service-endpoints-check    untranslated packets to a frontend:
                              nodeport-endpoints-check   no endpoint (reject), or none on this node (drop)
                              cluster-ips-check          no such port (reject), no such ClusterIP (drop)
    postrouting           96  masquerading

    services ─┬▶ service-ip ─┬▶ cluster-ip ──────────┐
              │              ├▶ local-policy-ip ─────┤         ┌▶ service-pick-3      DNAT to one of 3
              │              └───────────────────────┼▶ spread ┤
              └▶ nodeports ──▶ service-nodeport ─────┘         └▶ service-affinity-3  … with client affinity

Names and hooks are those of kube-proxy's nftables mode where it has the same object. See docs/modes/nftables.md.
"""

from collections.abc import Iterator
from functools import lru_cache

from vipwire.config.sections import CounterLevel
from vipwire.model.net import Family, Protocol
from vipwire.modes.nftables.language import SetSpec, compile_rule
from vipwire.modes.nftables.table.counts import (
    COUNT_CONNECTION,
    build_connection_chains,
    build_refusal_chain,
    build_traffic_chains,
    list_counting_sets,
    name_refused_set,
)
from vipwire.modes.nftables.table.fastpath import build_fastpath_objects
from vipwire.modes.nftables.table.names import CHAIN, DSTNAT, SET, SRCNAT, Chain, Hook, Object, ObjectKey, Space
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces, PodPrefixes
from vipwire.reconcile.counts import Refusal

_PROTO_PORT = ("meta l4proto", "th dport")
AFFINITY_SIZE = 1 << 18
"""The limit of remembered clients of a Service port; the kernel allocates memory for each new client."""
RANGES = "firewall-allowed"
NODE_PORT_RANGES = "firewall-nodeports-allowed"
"""The interval sets; a rule's encoding depends on this."""
RANGE_ADDRESSES = "range-addresses"
"""The endpoints that keep the packet's port."""
RANGE_ALLOWED = "firewall-ranges-allowed"
_NEW = "ct state new jump"
_CHOOSE = "meta priority vmap @spread"
_TRANSLATED = "ct status dnat return"
"""Passes packets that DNAT sent to an endpoint with a frontend's address, such as the node's."""
_HOOKS = {
    **{
        f"filter-{hook}-ranges-pre-dnat": (f"{_NEW} ranges-firewall", ("filter", hook, -109))
        for hook in ("prerouting", "output")
    },
    **{f"nat-{hook}-ranges": ("jump ranges", ("nat", hook, DSTNAT + 1)) for hook in ("prerouting", "output")},
    **{
        f"filter-{hook}-ranges": (f"{_NEW} ranges-check", ("filter", hook, -1))
        for hook in ("input", "forward", "output")
    },
    "nat-postrouting-ranges": ("jump ranges-hairpin", ("nat", "postrouting", SRCNAT + 1)),
}
HOOKED: tuple[tuple[ObjectKey, Object], ...] = tuple(
    ((CHAIN, name.encode()), Chain((rule,), Hook(*hook))) for name, (rule, hook) in _HOOKS.items()
)
"""The base chains for port ranges, written while a Service has a range.

A look-up in an interval set costs more than one in a hash, so packets pay for it only while a Service has a range.

    prerouting, output  -109   ranges-firewall    as firewall-check, for ranges
    prerouting, output  -103   ranges             after `services`; packets with DNAT skip this chain
    input, forward, output -1  ranges-check       before other ports of a ClusterIP are refused
    postrouting           97   ranges-hairpin     behind `masquerading`
"""


class Words:
    """The words of one family: keys as expressions, for declarations and rules."""

    def __init__(self, family: Family) -> None:
        self.ip = "ip" if family is Family.IPV4 else "ip6"
        self.destination = (f"{self.ip} daddr",)
        self.frontend = {
            Space.SERVICE: (*self.destination, *_PROTO_PORT),
            Space.NODE_PORT: _PROTO_PORT,
            Space.RANGE: (*self.destination, *_PROTO_PORT),
        }
        self.client = (f"{self.ip} saddr", *self.frontend[Space.SERVICE])
        self.target = (*self.destination, "th dport")

    def key(self, space: Space) -> str:
        """Return the key of a frontend as a rule writes it."""
        return " . ".join(self.frontend[space])

    @property
    def connection(self) -> str:
        return " . ".join(self.client)


def declare_sets(family: Family) -> Iterator[SetSpec]:
    words = Words(family)
    service, node_port = words.frontend[Space.SERVICE], words.frontend[Space.NODE_PORT]
    handle = ("meta priority",)
    yield SetSpec("spread", handle, "verdict")
    yield SetSpec("cluster-ips", words.destination)
    for key, ips, endpoints in ((service, "ips", "services"), (node_port, "nodeports", "nodeports")):
        yield SetSpec(f"service-{ips}", key, handle)
        yield SetSpec(f"local-policy-{ips}", key)
        yield SetSpec(f"local-{ips}", key, handle)
        yield SetSpec(f"no-endpoint-{endpoints}", key)
        yield SetSpec(f"no-local-endpoint-{endpoints}", key)
    for space in (Space.SERVICE, Space.NODE_PORT):
        key = words.frontend[space]
        yield SetSpec(f"{space.value}-endpoints", (*key, *handle), words.target)
        for pool in (space.value, f"{space.value}-local"):
            yield SetSpec(f"{pool}-affinity-slots", (*key, *handle), handle)
            yield SetSpec(f"{pool}-affinity-endpoints", (*key, *handle), words.target)
            yield SetSpec(f"{pool}-affinity-remember", key, "verdict")
            yield SetSpec(f"{pool}-affinity-remembered", key, "verdict")
        yield SetSpec(f"{space.value}-turns", key, "verdict")
        yield SetSpec(f"{space.value}-local-turns", key, "verdict")
    yield SetSpec("firewall-ips", service)
    yield SetSpec("firewall-nodeports", node_port)
    yield SetSpec(NODE_PORT_RANGES, (*node_port, f"{words.ip} saddr"), flags=frozenset({"interval"}))
    yield SetSpec(RANGES, (*service, f"{words.ip} saddr"), flags=frozenset({"interval"}))
    yield SetSpec("hairpin-connections", words.client)
    yield from _declare_range_sets(words)
    yield from list_counting_sets(family)


def _declare_range_sets(words: Words) -> Iterator[SetSpec]:
    """Declare the interval sets of port ranges.

    Each set has one element for a range; its key is the first port. A slot in a key is in network order, because
    interval sets sort keys as bytes.
    """
    key, target, source = words.frontend[Space.RANGE], words.target, f"{words.ip} saddr"
    interval, slot = frozenset({"interval"}), ("meta priority",)
    for name in ("service-ranges", "local-ranges"):
        yield SetSpec(name, key, slot, flags=interval)
    for name in ("local-policy-ranges", "no-endpoint-ranges", "no-local-endpoint-ranges", "firewall-ranges"):
        yield SetSpec(name, key, flags=interval)
    yield SetSpec(RANGE_ALLOWED, (*key, source), flags=interval)
    yield SetSpec("range-endpoints", (*key, *slot), target, flags=interval)
    yield SetSpec(RANGE_ADDRESSES, (*key, *slot), target[:1], flags=interval)
    for name in ("range-turns", "range-local-turns"):
        yield SetSpec(name, key, "verdict", flags=interval)
    yield SetSpec("hairpin-pods", (source, target[0], "meta l4proto"))


def build_node_objects(
    node: NodePlan, counters: CounterLevel = CounterLevel.CONNECTIONS, offload_after: int = 0
) -> dict[ObjectKey, Object]:
    objects: dict[ObjectKey, Object] = {(SET, spec.name.encode()): spec for spec in declare_sets(node.family)}
    objects.update(((CHAIN, name.encode()), chain) for name, chain in _build_chains(node, counters))
    objects.update(build_fastpath_objects(offload_after))
    return objects


def _build_chains(node: NodePlan, counters: CounterLevel) -> Iterator[tuple[str, Chain]]:
    words = Words(node.family)
    service, node_port = words.key(Space.SERVICE), words.key(Space.NODE_PORT)
    yield from _build_filter_chains(node, words)
    for reason in Refusal:
        yield build_refusal_chain(node.family, reason, counters)
    yield from build_connection_chains(node.family, counters)
    yield from build_traffic_chains(node.family, counters)
    for hook in ("prerouting", "output"):
        yield f"nat-{hook}", Chain(("jump services",), Hook("nat", hook, DSTNAT))
    count = (COUNT_CONNECTION,) if counters else ()
    yield "nat-postrouting", Chain((*count, "jump masquerading"), Hook("nat", "postrouting", SRCNAT))
    yield "masquerading", Chain(_masquerading_rules(node, words))
    yield "services", Chain(_write_services(node, words))
    yield "nodeports", Chain((f"meta priority set {node_port} map @service-nodeports goto service-nodeport",))
    to_cluster_ip = f"{words.ip} daddr @cluster-ips goto cluster-ip"
    to_local = f"{service} @local-policy-ips goto local-policy-ip"
    yield "service-ip", Chain((to_cluster_ip, to_local, *_write_marked_choice(node)))
    yield "cluster-ip", Chain((*_masquerade_cluster_ip(node, words), _CHOOSE))
    to_local = f"{node_port} @local-policy-nodeports goto local-policy-nodeport"
    yield "service-nodeport", Chain((to_local, *_write_marked_choice(node)))
    for name, space, ips in (("ip", Space.SERVICE, "ips"), ("nodeport", Space.NODE_PORT, "nodeports")):
        yield f"local-policy-{name}", Chain(_write_local_policy(node, words, space, ips))
    for space in (Space.SERVICE, Space.NODE_PORT):
        yield from _build_target_chains(words, space)
    yield from _build_range_chains(node, words)


def _build_filter_chains(node: NodePlan, words: Words) -> Iterator[tuple[str, Chain]]:
    for hook in ("prerouting", "output"):
        yield f"filter-{hook}-pre-dnat", Chain(("ct state new jump firewall-check",), Hook("filter", hook, -110))
    yield "firewall-check", Chain(_write_firewall(node, words))
    check = ("ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check")
    # A local process's packet keeps its priority: the class handle must not reach a queueing discipline.
    reset = "ct state new ct status dnat meta priority set none"
    yield "filter-input", Chain(("ct state new jump nodeport-endpoints-check", check[0]), Hook("filter", "input", 0))
    yield "filter-forward", Chain(check, Hook("filter", "forward", 0))
    yield "filter-output", Chain((reset, *check), Hook("filter", "output", 0))
    yield (
        "service-endpoints-check",
        Chain((_TRANSLATED, *_refuse_without_endpoints(words.key(Space.SERVICE), "services"))),
    )
    here = [f"{where} {words.key(Space.NODE_PORT)}" for where in _write_node_port_addresses(node, words)]
    refused = (rule for key in here for rule in _refuse_without_endpoints(key, "nodeports"))
    yield "nodeport-endpoints-check", Chain((_TRANSLATED, *refused))
    no_port, free = name_refused_set(Refusal.UNDEFINED_PORT), name_refused_set(Refusal.UNALLOCATED_CLUSTER_IP)
    unallocated = (f"{words.ip} daddr {prefix} counter goto {free}" for prefix in node.service_cidrs)
    yield "cluster-ips-check", Chain((f"{words.ip} daddr @cluster-ips counter goto {no_port}", *unallocated))
    # A reset reaches a client inside connect(); Linux ignores an ICMP error at that point.
    yield "reject-chain", Chain(("meta l4proto tcp reject with tcp reset", "reject"))


def _refuse_without_endpoints(key: str, endpoints: str) -> tuple[str, str]:
    """Reject packets to Services without endpoints; drop them if only this node has none."""
    return (
        f"{key} @no-endpoint-{endpoints} counter goto {name_refused_set(Refusal.NO_ENDPOINTS)}",
        f"{key} @no-local-endpoint-{endpoints} counter goto {name_refused_set(Refusal.NO_LOCAL_ENDPOINTS)}",
    )


def _write_firewall(node: NodePlan, words: Words) -> tuple[str, ...]:
    service, node_port = words.key(Space.SERVICE), words.key(Space.NODE_PORT)
    source = f"{words.ip} saddr"
    at_service, at_node_port = (
        name_refused_set(Refusal.SOURCE_RANGE),
        name_refused_set(Refusal.NODE_PORT_SOURCE_RANGE),
    )
    denied = (
        f"{node_port} @firewall-nodeports {node_port} . {source} != @{NODE_PORT_RANGES} counter goto {at_node_port}"
    )
    return (
        _TRANSLATED,
        f"{service} @firewall-ips {service} . {source} != @{RANGES} counter goto {at_service}",
        *(f"{here} {denied}" for here in _write_node_port_addresses(node, words)),
    )


def _write_mark(node: NodePlan) -> str:
    return f"meta mark set meta mark or {node.masquerade_mark:#x}"


def _write_marked_choice(node: NodePlan) -> tuple[str, str]:
    return _write_mark(node), _CHOOSE


def _masquerading_rules(node: NodePlan, words: Words) -> tuple[str, ...]:
    mark = f"{node.masquerade_mark:#x}"
    return (
        f"meta mark and {mark} != 0 meta mark set meta mark xor {mark} masquerade fully-random",
        f"ct status dnat {words.connection} @hairpin-connections masquerade fully-random",
    )


def _write_services(node: NodePlan, words: Words) -> tuple[str, ...]:
    return (
        f"meta priority set {words.key(Space.SERVICE)} map @service-ips goto service-ip",
        *(f"{here} goto nodeports" for here in _write_node_port_addresses(node, words)),
    )


def _write_node_port_addresses(node: NodePlan, words: Words) -> tuple[str, ...]:
    """Match packets to an address of this node that serves node ports, never loopback."""
    loopback = "127.0.0.0/8" if words.ip == "ip" else "::1"
    anywhere = f"{words.ip} daddr != {loopback} fib daddr type local"
    return tuple(
        anywhere if prefix.length == 0 else f"{words.ip} daddr {prefix} {anywhere}"
        for prefix in node.node_port_addresses
    )


def _write_pods(node: NodePlan, words: Words) -> tuple[str, ...]:
    """Match Pods, one alternative each; empty if vipwire cannot tell Pods."""
    match node.pod_traffic:
        case PodPrefixes(prefixes):
            return tuple(f"{words.ip} saddr {prefix}" for prefix in prefixes)
        case PodBridge(interface):
            return (f'iifname "{interface}"',)
        case PodInterfaces(prefix):
            return (f'iifname "{prefix}*"',)
    return ()


def _masquerade_cluster_ip(node: NodePlan, words: Words) -> tuple[str, ...]:
    """Mark packets to a ClusterIP: all, those from no Pod, or none."""
    if node.masquerade_all:
        return (_write_mark(node),)
    match node.pod_traffic:
        case PodPrefixes(prefixes):
            return (" ".join([*(f"{words.ip} saddr != {prefix}" for prefix in prefixes), _write_mark(node)]),)
        case PodBridge(interface):
            return (f'iifname != "{interface}" {_write_mark(node)}',)
        case PodInterfaces(prefix):
            return (f'iifname != "{prefix}*" {_write_mark(node)}',)
    return ()


def _write_local_policy(node: NodePlan, words: Words, space: Space, ips: str) -> tuple[str, ...]:
    """Write `externalTrafficPolicy: Local`: clients on this node reach all endpoints, others those on this node."""
    return (
        *(f"{pod} meta priority vmap @spread" for pod in _write_pods(node, words)),
        f"fib saddr type local {_write_mark(node)}",
        "fib saddr type local meta priority vmap @spread",
        f"meta priority set {words.key(space)} map @local-{ips} meta priority vmap @spread",
    )


def _build_target_chains(words: Words, space: Space) -> Iterator[tuple[str, Chain]]:
    """Translate to the target of a slot, or to a client's remembered target, and remember it.

    These look-ups stand here and not in the chains of classes, which come and go: binding a rule to a map makes the
    kernel walk all elements of the map.
    """
    name, key = space.value, words.key(space)
    yield f"{name}-dnat", Chain((f"dnat {words.ip} to {key} . meta priority map @{name}-endpoints",))
    for pool in (name, f"{name}-local"):
        identity = f"meta priority set {key} . meta priority map @{pool}-affinity-slots"
        yield f"{pool}-choose", Chain((f"{identity} goto {pool}-remember",))
        yield f"{pool}-remembered", Chain((f"{key} vmap @{pool}-affinity-remembered",))
        yield f"{pool}-remember", Chain((f"{key} vmap @{pool}-affinity-remember",))


def _build_range_chains(node: NodePlan, words: Words) -> Iterator[tuple[str, Chain]]:
    """Serve port ranges; see `HOOKED`. While no Service has one, no rule leads here."""
    key = words.key(Space.RANGE)
    yield "ranges", Chain((f"meta priority set {key} map @service-ranges goto range-ip",))
    to_local = f"{key} @local-policy-ranges goto local-policy-range"
    cluster_ip = f"{words.ip} daddr @cluster-ips goto cluster-ip"
    yield "range-ip", Chain((cluster_ip, to_local, *_write_marked_choice(node)))
    yield "local-policy-range", Chain(_write_local_policy(node, words, Space.RANGE, "ranges"))
    # One for each protocol: nft needs the protocol to load the port.
    dnat = f"dnat {words.ip} to {key} . meta priority map"
    by_port = (f"meta l4proto {protocol.label} {dnat} @range-endpoints" for protocol in Protocol)
    yield "range-dnat", Chain((*by_port, f"{dnat} @{RANGE_ADDRESSES}"))
    yield "ranges-check", Chain((_TRANSLATED, *_refuse_without_endpoints(key, "ranges")))
    denied = f"{key} @firewall-ranges {key} . {words.ip} saddr != @{RANGE_ALLOWED}"
    yield "ranges-firewall", Chain((_TRANSLATED, f"{denied} counter goto {name_refused_set(Refusal.SOURCE_RANGE)}"))
    to_itself = f"ct status dnat {words.ip} saddr . {words.ip} daddr . meta l4proto @hairpin-pods"
    yield "ranges-hairpin", Chain((f"{to_itself} masquerade fully-random",))


@lru_cache(maxsize=1024)  # a start tries them, compares the kernel's with them, and writes them
def compile_cached(rule: str, family: Family) -> bytes:
    return compile_rule(rule, family, _INTERVALS, _ADDRESSES)


_INTERVALS = frozenset(spec.name for spec in declare_sets(Family.IPV4) if "interval" in spec.flags)
_ADDRESSES = frozenset({RANGE_ADDRESSES})
