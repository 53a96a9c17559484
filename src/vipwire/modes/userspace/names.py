"""The kinds of userspace mode's objects, the words of its rules, and its chains.

The chain names are kube-proxy's (pkg/proxy/userspace, up to 1.25). The objects are

    Front     -> Listener     a listener of the relay, and its endpoints
    Rule      -> how often    an iptables rule, with its own port or a front's
    ChainName -> its rules    a chain of constant rules; None for a chain of `Rule`s

A rule names its front instead of the front's port, which each relay chooses anew. So rendering is pure, and observed
rules compare with wanted ones.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.modes.xtables.save import ChainName
from vipwire.modes.xtables.words import NEW, match_comment
from vipwire.relay.messages import Listener

NAT: Final = "nat"
FILTER: Final = "filter"
TABLES: Final = (FILTER, NAT)
"""The order of writing for a difference with removals; see `write_script`."""

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
"""kube-proxy lacks the last nine: its userspace mode had neither policies nor refusals."""

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
"""Every chain of this mode."""

PORT: Final = "{port}"
"""Placeholder in a rule for the port of its front."""


class Front(NamedTuple):
    """The name of a listener. `front` is unique: Service port, protocol, address, and clients."""

    front: str


class Rule(NamedTuple):
    """A rule, in the words of iptables-save without `-A CHAIN`. `first`: the rule precedes others of its chain."""

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


def match_named_port(protocol: Protocol, port: int, note: str) -> str:
    """Match the first packet of a flow by the port that its client named, before or after DNAT."""
    return f"-p {protocol.label} {match_comment(note)} {NEW} --ctorigdstport {port}"


def write_redirect(node: Address | None) -> str:
    """Return the target that redirects to PORT: DNAT to the node's address, REDIRECT if the node has none."""
    if node is None:
        return f"-j REDIRECT --to-ports {PORT}"
    host = format_address(node)
    return f"-j DNAT --to-destination {host if len(node) == 4 else f'[{host}]'}:{PORT}"


def list_source_matches(prefixes: Iterable[Prefix] | None) -> tuple[str, ...]:
    """Match packets from these prefixes, one alternative each; all packets if None."""
    return ("",) if prefixes is None else tuple(f"-s {prefix}" for prefix in prefixes)


def describe_key(family: Family, key: Key) -> str:
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
