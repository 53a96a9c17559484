"""The ruleset that kube-proxy 1.36 would load for the same cluster in nftables mode, as text for `nft -f`.

Tables, hooks, chains, names and rules are those of its golden test outputs (TestOverallNFTablesRules): a chain for
every Service port, with an anonymous map of its endpoints, found through one verdict map.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator

from vipwire.model.net import format_address
from vipwire.model.service import EndpointSlice, Service

TABLE = "ip kube-proxy"
_KEY = "type ipv4_addr . inet_proto . inet_service"
_NODE_PORT_KEY = "type inet_proto . inet_service"
_FRONTEND = "ip daddr . meta l4proto . th dport"

BASE = f"""
add table {TABLE} {{ comment "rules for kube-proxy" ; }}
add set {TABLE} cluster-ips {{ type ipv4_addr ; comment "Active ClusterIPs" ; }}
add set {TABLE} nodeport-ips {{ type ipv4_addr ; comment "IPs that accept NodePort traffic" ; }}
add set {TABLE} hairpin-connections {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service ; }}
add map {TABLE} firewall-ips {{ {_KEY} : verdict ; }}
add map {TABLE} no-endpoint-services {{ {_KEY} : verdict ; }}
add map {TABLE} no-endpoint-nodeports {{ {_NODE_PORT_KEY} : verdict ; }}
add map {TABLE} service-ips {{ {_KEY} : verdict ; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic" ; }}
add map {TABLE} service-nodeports {{ {_NODE_PORT_KEY} : verdict ; comment "NodePort traffic" ; }}
add chain {TABLE} cluster-ips-check
add chain {TABLE} firewall-check
add chain {TABLE} masquerading
add chain {TABLE} nodeport-endpoints-check
add chain {TABLE} reject-chain
add chain {TABLE} service-endpoints-check
add chain {TABLE} services
add chain {TABLE} filter-prerouting-pre-dnat {{ type filter hook prerouting priority -110 ; }}
add chain {TABLE} filter-output-pre-dnat {{ type filter hook output priority -110 ; }}
add chain {TABLE} filter-input {{ type filter hook input priority 0 ; }}
add chain {TABLE} filter-forward {{ type filter hook forward priority 0 ; }}
add chain {TABLE} filter-output {{ type filter hook output priority 0 ; }}
add chain {TABLE} nat-prerouting {{ type nat hook prerouting priority -100 ; }}
add chain {TABLE} nat-output {{ type nat hook output priority -100 ; }}
add chain {TABLE} nat-postrouting {{ type nat hook postrouting priority 100 ; }}
add rule {TABLE} filter-prerouting-pre-dnat ct state new jump firewall-check
add rule {TABLE} filter-output-pre-dnat ct state new jump firewall-check
add rule {TABLE} filter-input ct state new jump nodeport-endpoints-check
add rule {TABLE} filter-input ct state new jump service-endpoints-check
add rule {TABLE} filter-forward ct state new jump service-endpoints-check
add rule {TABLE} filter-forward ct state new jump cluster-ips-check
add rule {TABLE} filter-output ct state new jump service-endpoints-check
add rule {TABLE} filter-output ct state new jump cluster-ips-check
add rule {TABLE} nat-prerouting jump services
add rule {TABLE} nat-output jump services
add rule {TABLE} nat-postrouting jump masquerading
add rule {TABLE} masquerading mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random
add rule {TABLE} masquerading ct status dnat ip saddr . {_FRONTEND} @hairpin-connections masquerade fully-random
add rule {TABLE} reject-chain reject
add rule {TABLE} firewall-check {_FRONTEND} vmap @firewall-ips
add rule {TABLE} service-endpoints-check {_FRONTEND} vmap @no-endpoint-services
add rule {TABLE} nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
add rule {TABLE} cluster-ips-check ip daddr @cluster-ips reject comment "Reject invalid ports of ClusterIPs"
"""


def script(
    services: Iterable[Service], slices: Iterable[EndpointSlice], node: str, pods: str, cidrs: Iterable[str]
) -> Iterator[str]:
    """Yield the whole ruleset: `node` is the node's address, `pods` the Pods' prefix, `cidrs` the service CIDRs."""
    yield BASE
    drop = 'comment "Drop traffic to unallocated ClusterIPs"'
    yield f"add rule {TABLE} cluster-ips-check ip daddr {{ {', '.join(cidrs)} }} drop {drop}\n"
    masquerade = 'mark set mark or 0x4000 comment "masquerade clusterIP traffic from outside cluster"'
    yield f"add rule {TABLE} services ip daddr @cluster-ips ip saddr != {pods} {masquerade}\n"
    yield f"add rule {TABLE} services {_FRONTEND} vmap @service-ips\n"
    yield f"add rule {TABLE} services ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports\n"
    yield f"add element {TABLE} nodeport-ips {{ {node} }}\n"
    for service, piece in zip(services, slices, strict=True):
        yield from _service(service, piece)


def replaced(service: Service, piece: EndpointSlice) -> Iterator[str]:
    """Yield the text of a sync for one Service with changed endpoints: its new chain."""
    chain = _chain(service)
    yield f"flush chain {TABLE} {chain}\n"
    yield _rule(chain, piece)


def _service(service: Service, piece: EndpointSlice) -> Iterator[str]:
    address, port, chain = format_address(service.cluster_ips[0]), service.ports[0], _chain(service)
    yield f"add chain {TABLE} {chain}\n"
    yield f"add element {TABLE} cluster-ips {{ {address} }}\n"
    yield f"add element {TABLE} service-ips {{ {address} . tcp . {port.port} : goto {chain} }}\n"
    yield _rule(chain, piece)


def _rule(chain: str, piece: EndpointSlice) -> str:
    port = piece.ports[0].port
    targets = [format_address(endpoint.address) for endpoint in piece.endpoints]
    entries = " , ".join(f"{index} : {address} . {port}" for index, address in enumerate(targets))
    spread = f"numgen random mod {len(targets)} map {{ {entries} }}"
    return f"add rule {TABLE} {chain} meta l4proto tcp dnat ip addr . port to {spread}\n"


def _chain(service: Service) -> str:
    port = service.ports[0]
    name = f"{service.name.namespace}/{service.name.name}/{port.protocol.label}/{port.name}"
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()
    return f"service-{digest[:8]}-{name}"
