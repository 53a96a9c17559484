"""The kinds of this mode's objects, the words of its rules, and its chains.

The names of chains are kube-proxy's (pkg/proxy/userspace, up to 1.25). The objects are

    Front     -> Listener     what the relay listens for, and to whom it relays
    Rule      -> how often    a rule of iptables; its port is that of a front, or its own
    ChainName -> its rules    a chain whose rules never change; None for one that holds `Rule`s

A rule that leads to a front names it instead of its port: which port that is only the relay knows, and it differs
from one relay to the next. So rendering is pure, and what is read is compared with what is wanted.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.modes.xtables.save import ChainName
from vipwire.modes.xtables.words import NEW, comment
from vipwire.relay.messages import Listener

NAT: Final = "nat"
FILTER: Final = "filter"
TABLES: Final = (FILTER, NAT)
"""In the order in which they are written where something goes; see `script`."""

PORTALS_CONTAINER: Final = "KUBE-PORTALS-CONTAINER"
PORTALS_HOST: Final = "KUBE-PORTALS-HOST"
NODEPORT_CONTAINER: Final = "KUBE-NODEPORT-CONTAINER"
NODEPORT_HOST: Final = "KUBE-NODEPORT-HOST"
NODEPORT_NON_LOCAL: Final = "KUBE-NODEPORT-NON-LOCAL"

PORTALS_POD: Final = "KUBE-PORTALS-POD"
NODEPORT_POD: Final = "KUBE-NODEPORT-POD"
PORTALS_FILTER: Final = "KUBE-PORTALS-FILTER"
PORTALS_DROP: Final = "KUBE-PORTALS-DROP"
PORTALS_REJECT: Final = "KUBE-PORTALS-REJECT"
NODEPORT_FILTER: Final = "KUBE-NODEPORT-FILTER"
PORTALS_OWN: Final = "KUBE-PORTALS-OWN"
PORTALS_OWN_DENY: Final = "KUBE-PORTALS-OWN-DENY"
REFUSE: Final = "KUBE-PORTALS-REFUSE"
"""The last nine are ours; kube-proxy knew neither policies nor refusals in this mode."""

CHAINS: Final = {
    NAT: (
        PORTALS_CONTAINER,
        PORTALS_HOST,
        PORTALS_POD,
        NODEPORT_CONTAINER,
        NODEPORT_HOST,
        NODEPORT_POD,
    ),
    FILTER: (
        NODEPORT_NON_LOCAL,
        NODEPORT_FILTER,
        PORTALS_FILTER,
        PORTALS_DROP,
        PORTALS_REJECT,
        PORTALS_OWN,
        PORTALS_OWN_DENY,
        REFUSE,
    ),
}
"""Every chain of ours."""

PORT: Final = "{port}"
"""What stands in a rule for the port of its front."""


class Front(NamedTuple):
    """The name of a listener. `front` is unique: Service port, protocol, address, and for whom."""

    front: str


class Rule(NamedTuple):
    """A rule, in the words of iptables-save without `-A CHAIN`. `first`: it stands before others of its chain."""

    table: str
    chain: str
    words: str
    front: str = ""
    first: bool = False


Rules: TypeAlias = tuple[str, ...]
Key: TypeAlias = Front | Rule | ChainName
Value: TypeAlias = Listener | int | Rules | None


NO_SUCH_PORT = "cluster IP has no such port"
NO_SUCH_SERVICE = "no Service has this ClusterIP"
OTHER_SOURCES = "from other sources"


def named(protocol: Protocol, port: int, note: str) -> str:
    """Match what begins a flow to a port that its client has named, whether that was translated or not."""
    return f"-p {protocol.label} {comment(note)} {NEW} --ctorigdstport {port}"


def translate(node: Address | None) -> str:
    """Lead to a front: at the node's address, or where it has none at that of the interface."""
    if node is None:
        return f"-j REDIRECT --to-ports {PORT}"
    host = format_address(node)
    return f"-j DNAT --to-destination {host if len(node) == 4 else f'[{host}]'}:{PORT}"


def sources(prefixes: Iterable[Prefix] | None) -> tuple[str, ...]:
    """Match what comes from these, one alternative each; from anybody if None."""
    return ("",) if prefixes is None else tuple(f"-s {prefix}" for prefix in prefixes)


def describe(family: Family, key: Key) -> str:
    """Name an object: `listener default/web:http cluster IP 10.96.0.1:80/tcp`, `iptables nat rule KUBE-… -d …`."""
    tool = "iptables" if family is Family.IPV4 else "ip6tables"
    match key:
        case Front(front):
            return f"listener {front}"
        case ChainName(table, chain):
            return f"{tool} {table} chain {chain}"
        case Rule(table, chain, words, front):
            leads = f" (to the listener {front})" if front else ""
            return f"{tool} {table} rule {chain} {words}{leads}"
