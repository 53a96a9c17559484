"""The input of iptables-restore that kube-proxy 1.36 would write for the same cluster in iptables mode.

Chains, names, rules, words and their order are those of its golden test outputs (TestOverallIPTablesRules). It writes
Services in the random order of a Go map: here they are shuffled, equally in each run. With more than 1,000 endpoints
it omits their comments, as vipwire does.
"""

import base64
import hashlib
import random
from collections.abc import Iterable, Iterator

from vipwire.model.net import format_address, format_endpoint
from vipwire.model.service import EndpointSlice, Service
from vipwire.watched_objects.store import CROWD

_FILTER = """\
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x00004000/0x00004000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" \
-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"""
_NAT_CHAINS = """\
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
"""
_NAT_END = """\
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" \
-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-POSTROUTING -m mark ! --mark 0x00004000/0x00004000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x00004000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x00004000
COMMIT
"""


def text(services: Iterable[Service], slices: Iterable[EndpointSlice], pods: str) -> str:
    """Return the whole input of iptables-restore; `pods` is the Pods' prefix."""
    pairs = list(zip(services, slices, strict=True))
    random.Random(1).shuffle(pairs)
    noted = sum(len(piece.endpoints) for _, piece in pairs) <= CROWD
    chains: list[str] = []
    rules: list[str] = []
    for service, piece in pairs:
        ends = [format_endpoint(endpoint.address, piece.ports[0].port or 0) for endpoint in piece.endpoints]
        seps = [_chain("SEP", service, end) for end in ends]
        chains += (f":{chain} - [0:0]\n" for chain in (_chain("SVC", service), *seps))
        rules += _rules(service, ends, seps, pods, noted=noted)
    return "".join((_FILTER, _NAT_CHAINS, *chains, *rules, _NAT_END))


def _rules(service: Service, ends: list[str], seps: list[str], pods: str, *, noted: bool) -> Iterator[str]:
    name, svc = f"{service.name}:{service.ports[0].name}", _chain("SVC", service)
    vip = f"-d {format_address(service.cluster_ips[0])} --dport {service.ports[0].port}"
    here = f'-m comment --comment "{name} cluster IP" -m tcp -p tcp {vip}'
    yield f"-A KUBE-SERVICES {here} -j {svc}\n"
    yield f"-A {svc} {here} ! -s {pods} -j KUBE-MARK-MASQ\n"
    for at, (end, sep) in enumerate(zip(ends, seps, strict=True)):
        left = len(ends) - at
        chance = f"-m statistic --mode random --probability {1 / left:.10f} " if left > 1 else ""
        lead = f'-m comment --comment "{name} -> {end}" ' * noted
        note = f"-m comment --comment {name} " * noted
        yield f"-A {svc} {lead}{chance}-j {sep}\n"
        yield f"-A {sep} {note}-s {end.rpartition(':')[0]} -j KUBE-MARK-MASQ\n"
        yield f"-A {sep} {note}-m tcp -p tcp -j DNAT --to-destination {end}\n"


def _chain(kind: str, service: Service, end: str = "") -> str:
    name = f"{service.name}:{service.ports[0].name}tcp{end}"
    return f"KUBE-{kind}-{base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()[:16]}"
