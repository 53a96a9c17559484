"""The kinds of this mode's objects, and the names of its chains: kube-proxy's (pkg/proxy/userspace, up to 1.25).

    Front -> Listener     what the relay listens for, and to whom it relays
    Rule  -> how often    a rule of iptables; its port is that of a front, or its own
    Chain -> its rules    a chain whose rules never change; None for one that holds `Rule`s

A rule that leads to a front names it instead of its port: which port that is only the relay knows, and it differs
from one relay to the next. So rendering is pure, and what is read is compared with what is wanted.
"""

from typing import Final, NamedTuple, TypeAlias

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


class Chain(NamedTuple):
    """A chain of ours."""

    table: str
    chain: str


Rules: TypeAlias = tuple[str, ...]
Key: TypeAlias = Front | Rule | Chain
Value: TypeAlias = Listener | int | Rules | None
