"""Makes ipvs mode's first commit while another mode's rules are in force, without a gap in translation.

ipvs mode normally writes its chains before its virtual servers. iptables mode uses the same chain names, so writing
them first would remove its translation. The order here is

    ipsets, virtual servers, addresses  ▸  `disarm`: userspace mode's refusals go  ▸  chains

Until the chains come, the other mode translates before IPVS. Userspace mode serves node ports with sockets, and IPVS
takes packets before a socket. So if userspace mode alone was running, the virtual servers of node ports come after
the chains, which masquerade.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vipwire.linux.netlink.ipvs import RealServer, VirtualServer
from vipwire.modes.ipvs.leftovers import node_ports
from vipwire.modes.ipvs.objects.names import RangeRule
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Backend, Rendered
from vipwire.reconcile.delta import Delta


class FirstCommit:
    """An ipvs backend that splits its first commit of chains in two, and calls `disarm` between them.

    `listens`: another mode served node ports with sockets so far.
    """

    def __init__(self, backend: Backend[Any, Any], disarm: Callable[[], None], *, listens: bool) -> None:
        self._backend, self._disarm, self._listens = backend, disarm, listens
        self._arrived = False

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]:
        return self._backend.render_node(node)

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        return self._backend.render(plan)

    def observe(self) -> dict[Any, Any]:
        return self._backend.observe()

    def changed(self) -> bool:
        return self._backend.changed()

    def commit(self, delta: Delta[Any, Any]) -> int:
        """Apply a difference; return its size. Raise CommitError if the kernel refuses."""
        if self._arrived:
            return self._backend.commit(delta)
        before, chains = in_steps(delta, listens=self._listens)
        if not (chains.added or chains.changed):
            return self._backend.commit(delta)
        size = self._backend.commit(before) if before else 0
        self._disarm()
        size += self._backend.commit(chains)
        self._arrived = True
        return size


def in_steps(delta: Delta[Any, Any], *, listens: bool) -> tuple[Delta[Any, Any], Delta[Any, Any]]:
    """Split a difference into objects that may precede the chains, and the rest. Pure."""
    last = node_ports(delta.added.keys()) if listens else frozenset[VirtualServer]()

    def waits(key: Any) -> bool:
        server = key.server if isinstance(key, RealServer) else key
        return isinstance(key, ChainName | RangeRule) or server in last

    first: Delta[Any, Any] = Delta(
        added={key: value for key, value in delta.added.items() if not waits(key)},
        changed={key: pair for key, pair in delta.changed.items() if not waits(key)},
    )
    rest: Delta[Any, Any] = Delta(
        added={key: value for key, value in delta.added.items() if waits(key)},
        changed={key: pair for key, pair in delta.changed.items() if waits(key)},
        removed=dict(delta.removed),
    )
    return first, rest
