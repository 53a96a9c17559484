"""The names of iptables mode: kube-proxy's tables, chains and hashes (pkg/proxy/iptables/proxier.go), and keys.

A Service port's chain has 16 characters of base32 over SHA-256 of `namespace/name:port` and the protocol. Runbooks
and other programs use these names. The objects are

    chain   a whole chain with its rules: the chains of a Service port, and small common ones
    entry   the rules of one frontend in a dispatch chain: one, or two for a node port that counts loopback
    root    a dispatch chain: the rules behind its entries, and the order of the entries
    jump    vipwire's rule in a foreign chain, such as the jump from FORWARD to KUBE-FORWARD

Each value is a tuple of rules in the words of iptables-save, so that comparison is comparison of text.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from vipwire.model.names import ObjectName, ServicePortName

FILTER: Final = "filter"
NAT: Final = "nat"
MANGLE: Final = "mangle"
TABLES: Final = (FILTER, NAT, MANGLE)

CHAIN: Final = "chain"
ENTRY: Final = "entry"
ROOT: Final = "root"
JUMP: Final = "jump"

SERVICES: Final = "KUBE-SERVICES"
EXTERNAL_SERVICES: Final = "KUBE-EXTERNAL-SERVICES"
NODE_PORTS: Final = "KUBE-NODEPORTS"
PROXY_FIREWALL: Final = "KUBE-PROXY-FIREWALL"
CLUSTER_IPS: Final = "KUBE-CLUSTER-IPS"
RANGES: Final = "KUBE-RANGES"
NO_SUCH_PORT: Final = "KUBE-NO-SUCH-PORT"
POSTROUTING: Final = "KUBE-POSTROUTING"
MARK_MASQ: Final = "KUBE-MARK-MASQ"
FORWARD: Final = "KUBE-FORWARD"
FIREWALL: Final = "KUBE-FIREWALL"
CANARY: Final = "KUBE-PROXY-CANARY"
NOT_POD_MASQ: Final = "KUBE-NOT-POD-MASQ"

LARGEST_NAME: Final = 28
"""XT_EXTENSION_MAXNAMELEN less the NUL: the kernel refuses longer chain names."""

ROOTS: Final = {
    (NAT, SERVICES): "KUBE-SVCS-",
    (NAT, NODE_PORTS): "KUBE-NPS-",
    (FILTER, SERVICES): "KUBE-SVCS-",
    (FILTER, EXTERNAL_SERVICES): "KUBE-EXTS-",
    (FILTER, NODE_PORTS): "KUBE-NPS-",
    (FILTER, PROXY_FIREWALL): "KUBE-PFWS-",
    (FILTER, CLUSTER_IPS): "KUBE-CIPS-",
    (NAT, RANGES): "KUBE-RNGS-",
    (FILTER, RANGES): "KUBE-RNGS-",
}
"""The dispatch chains, each with the prefix of its tree's chains."""

WHOLE: Final = frozenset(
    {
        (NAT, MARK_MASQ),
        (NAT, POSTROUTING),
        (NAT, NOT_POD_MASQ),
        (FILTER, FORWARD),
        (FILTER, NO_SUCH_PORT),
        *((table, CANARY) for table in TABLES),
    }
)
"""The common chains that vipwire owns whole."""

SERVICE_PREFIXES: Final = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-NPFW-")
"""Prefixes of Service ports' chains, each after those that it may jump to. kube-proxy lacks KUBE-NPFW-."""

_RANKS: Final = {prefix: place for place, prefix in enumerate(SERVICE_PREFIXES, 1)}
_AFTER_KUBE: Final = len("KUBE-")

LOCALHOST_COUNTER: Final = "localhost_nps_accepted_pkts"
INVALID_COUNTER: Final = "ct_state_invalid_dropped_pkts"
"""kube-proxy's nfacct objects."""


UNALLOCATED: Final = "kubernetes cluster IPs that no service has"
"""The comment of the rules that drop packets to unused ClusterIPs."""


_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS: Final = tuple(high + low for high in _BASE32 for low in _BASE32)

_RANGE: Final = " range"
"""Distinguishes a port range's chains from those of its port."""


class Key(NamedTuple):
    """The key of an object. `detail`: an entry's frontend code, the rule of a jump, else empty."""

    kind: str
    table: str
    chain: str
    detail: int | str = ""


Rules: TypeAlias = tuple[str, ...]
"""Rules as iptables-save prints them, without `-A CHAIN`."""


class PortChains(NamedTuple):
    """The names of a Service port's chains."""

    cluster: str
    local: str
    external: str
    firewall: str
    node_port_firewall: str


@lru_cache(maxsize=1 << 15)
def port_chains(name: ServicePortName, *, wide: bool = False) -> PortChains:
    suffix = _hash_text(f"{name}{name.protocol.label}{_RANGE * wide}")
    return PortChains(*(f"{prefix}{suffix}" for prefix in SERVICE_PREFIXES[1:]))


def endpoint_chains(name: ServicePortName, *, wide: bool = False) -> Callable[[str], str]:
    """Return the function that names each endpoint's chain (`10.0.0.1:80`, `[fd00::1]:80`)."""
    before, after = f"{name}{name.protocol.label}", _RANGE * wide
    return lambda endpoint: f"KUBE-SEP-{_hash_text(f'{before}{endpoint}{after}')}"


def endpoint_chain(name: ServicePortName, endpoint: str, *, wide: bool = False) -> str:
    return endpoint_chains(name, wide=wide)(endpoint)


def name_shared_recent_list(service: ObjectName, address: str) -> str:
    """Name the list of clients of one endpoint of a Service, for all its ports."""
    return f"KUBE-AFF-{_hash_text(f'{service}{address}')}"


def _hash_text(text: str) -> str:
    """Return the first 80 bits of a hash in base32; fast, because vipwire names every endpoint."""
    bits = int.from_bytes(hashlib.sha256(text.encode()).digest()[:10])
    pairs = _PAIRS
    return (
        f"{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}{pairs[bits >> 40 & 1023]}"
        f"{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )


def rank_chain(chain: str) -> int:
    """Order the chains of Service ports: each after those that it jumps to."""
    return _RANKS.get(chain[: chain.find("-", _AFTER_KUBE) + 1], 0)


def tree_root(table: str, chain: str) -> str | None:
    """Return the dispatch chain whose tree contains a chain, the root included; None for other chains."""
    for (root_table, root), prefix in ROOTS.items():
        if root_table == table and (chain == root or chain.startswith(prefix)):
            return root
    return None
