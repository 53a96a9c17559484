"""Makes the first commit of ipvs mode where another mode translates: first what answers, then what leads there.

ipvs mode writes its chains before its virtual servers, so that nothing is served without its filters. Where another
mode's rules are in force that would leave a gap: the chains have names that iptables mode has too, so that its
translation goes with them, and what ipvs mode accepts in the nat table userspace mode does not see. So here

    ipsets, virtual servers, addresses  ▸  refusals of userspace mode go  ▸  chains

Until the chains come, the other mode translates before IPVS sees anything, and its filters hold. But userspace mode
does not translate node ports: it listens there, and IPVS takes packets before a socket does, with nobody yet to
masquerade them. So where it alone was, the virtual servers of node ports come after the chains.
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
    """An ipvs backend whose first commit of chains is done in two steps, with `disarm` between them.

    `listens`: until now node ports were sockets.
    """

    def __init__(self, backend: Backend[Any, Any], disarm: Callable[[], None], *, listens: bool) -> None:
        self._backend, self._disarm, self._listens = backend, disarm, listens
        self._arrived = False

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]:
        """Translate what belongs to no Service."""
        return self._backend.render_node(node)

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        """Translate one Service."""
        return self._backend.render(plan)

    def observe(self) -> dict[Any, Any]:
        """Read all of ours."""
        return self._backend.observe()

    def changed(self) -> bool:
        """Report whether others may have changed the objects."""
        return self._backend.changed()

    def commit(self, delta: Delta[Any, Any]) -> int:
        """Apply a difference; return its size. Raise CommitError if it is refused."""
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
    """Part what comes or changes, and can before the chains, from all the rest. Pure."""
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
