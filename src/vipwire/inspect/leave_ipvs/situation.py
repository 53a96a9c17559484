"""What is known of a node that is going to leave ipvs mode: values only. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vipwire.linux.netlink.ipvs import Scheduling, Timeouts, VirtualServer
from vipwire.model.net import Address, Prefix


@dataclass(frozen=True, slots=True)
class Server:
    """A virtual server. `ours`: an ipset of kube-proxy's (or vipwire's) ipvs mode names it; `node_port`: as one.

    `draining` counts its endpoints of weight 0, `connections` those that it has open now.
    """

    key: VirtualServer
    how: Scheduling
    ours: bool
    node_port: bool = False
    connections: int = 0
    draining: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is there. `vips` are the addresses of kube-ipvs0, `cluster_ips` the ClusterIPs.

    `networks` are those of the node's other interfaces.
    """

    servers: tuple[Server, ...] = ()
    vips: frozenset[Address] = frozenset()
    cluster_ips: frozenset[Address] = frozenset()
    networks: tuple[Prefix, ...] = ()
    sets: tuple[str, ...] = ()
    chains: int = 0
    sysctls: Mapping[str, int] = field(default_factory=dict)
    timeouts: Timeouts | None = None
    obstacle: str = ""

    @property
    def traces(self) -> bool:
        """Whether anything of ipvs mode is there."""
        return bool(self.vips or self.sets or any(server.ours for server in self.servers))
