"""The names of iptables mode: kube-proxy's tables, chains and hashes (pkg/proxy/iptables/proxier.go), and our keys.

A chain of a Service port is named by 16 characters of base32 over SHA-256 of `namespace/name:port` and the protocol;
runbooks and other programs know these names, so they are not ours to change. An object of this mode is one of

    chain   a whole chain: its rules, in order. Every chain of a Service port is one, and the small common ones
    entry   what a dispatch chain holds for one frontend: one rule, or two for a node port that counts loopback
    root    a dispatch chain itself: the rules behind its entries, and that its entries are where they belong
    jump    a rule of ours in a chain that is not ours: from FORWARD to KUBE-FORWARD and the like

The value of each is a tuple of rules in the words of iptables-save, so that comparing is comparing text.
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
"""XT_EXTENSION_MAXNAMELEN less the NUL: longer chain names are refused."""

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
"""The dispatch chains, and how the names of the chains of their trees begin."""

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
"""The common chains that are ours wholly."""

SERVICE_PREFIXES: Final = ("KUBE-SEP-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-NPFW-")
"""How the chains of Service ports begin, each after those that it may jump to. KUBE-NPFW- is not kube-proxy's."""

_RANKS: Final = {prefix: place for place, prefix in enumerate(SERVICE_PREFIXES, 1)}
_AFTER_KUBE: Final = len("KUBE-")

LOCALHOST_COUNTER: Final = "localhost_nps_accepted_pkts"
INVALID_COUNTER: Final = "ct_state_invalid_dropped_pkts"
"""kube-proxy's nfacct objects."""


UNALLOCATED: Final = "kubernetes cluster IPs that no service has"
"""The comment of the rules that drop what goes to such."""


_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS: Final = tuple(high + low for high in _BASE32 for low in _BASE32)

_RANGE: Final = " range"
"""Tells a range's chains from those of its port."""


class Key(NamedTuple):
    """The name of an object. `detail` is an entry's frontend code (see `tree`), the rule of a jump, else empty."""

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
    """Name the chains of a Service port; `wide`: of its range of ports."""
    suffix = _hashed(f"{name}{name.protocol.label}{_RANGE * wide}")
    return PortChains(*(f"{prefix}{suffix}" for prefix in SERVICE_PREFIXES[1:]))


def endpoint_chains(name: ServicePortName, *, wide: bool = False) -> Callable[[str], str]:
    """Return what names the chain of each endpoint (`10.0.0.1:80`, `[fd00::1]:80`) of a Service port."""
    before, after = f"{name}{name.protocol.label}", _RANGE * wide
    return lambda endpoint: f"KUBE-SEP-{_hashed(f'{before}{endpoint}{after}')}"


def endpoint_chain(name: ServicePortName, endpoint: str, *, wide: bool = False) -> str:
    """Name the chain of one endpoint of a Service port; `wide`: of its range."""
    return endpoint_chains(name, wide=wide)(endpoint)


def shared_memory(service: ObjectName, address: str) -> str:
    """Name the list of the clients of one endpoint of a Service, for all its ports."""
    return f"KUBE-AFF-{_hashed(f'{service}{address}')}"


def _hashed(text: str) -> str:
    """Write the first 80 bits of a hash in base32, ten bits at a time: every endpoint has a name."""
    bits = int.from_bytes(hashlib.sha256(text.encode()).digest()[:10])
    pairs = _PAIRS
    return (
        f"{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}{pairs[bits >> 40 & 1023]}"
        f"{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )


def rank(chain: str) -> int:
    """Order the chains of Service ports so that each comes after those it jumps to."""
    return _RANKS.get(chain[: chain.find("-", _AFTER_KUBE) + 1], 0)


def tree_root(table: str, chain: str) -> str | None:
    """Return which dispatch chain of a table a chain of a tree belongs to, itself included; None for other chains."""
    for (root_table, root), prefix in ROOTS.items():
        if root_table == table and (chain == root or chain.startswith(prefix)):
            return root
    return None
