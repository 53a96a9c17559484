"""Session affinity: which frontends share what is remembered of a client.

    all frontends of a Service port              one memory: who came to the ClusterIP finds the same endpoint at the
                                                 node port, at external IPs and at the load balancer's
    vipwire.io/affinity-scope: service           one memory for all ports of the Service; a Pod counts, not its port

A frontend goes by it only where it may: where the endpoint is not in its pool (a Local policy, hints), it chooses one
that is. What frontends of the other policy remember stays, so that a client who uses both keeps both.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.service import TrafficPolicy
from vipwire.plan.plan import Forward, Frontend, Target


class Memory(NamedTuple):
    """The scope of remembered clients: a Service port, or a Service, for the frontends of one policy."""

    owner: ServicePortName | ObjectName
    policy: TrafficPolicy

    @property
    def other(self) -> "Memory":
        """The memory of the same owner for the other policy."""
        local = self.policy is TrafficPolicy.LOCAL
        return Memory(self.owner, TrafficPolicy.CLUSTER if local else TrafficPolicy.LOCAL)


def sticky_actions(frontend: Frontend) -> Iterator[Forward]:
    """Yield what happens at a frontend to clients that are remembered."""
    for action in (frontend.action, frontend.short_circuit):
        if isinstance(action, Forward) and action.affinity_seconds is not None:
            yield action


def memory_of(frontend: Frontend, action: Forward) -> Memory:
    """Name what remembers the clients of a frontend to which this happens."""
    name = frontend.port_name
    return Memory(name.service if action.shared_affinity else name, action.policy)


def held(frontend: Frontend, action: Forward, remembered: Mapping[Memory, Target]) -> Target | None:
    """Return where a client goes of whom so much is remembered; None where one is to be chosen."""
    own = memory_of(frontend, action)
    for memory in (own, own.other):
        target = remembered.get(memory)
        if target is not None and target in action.pool:
            return target
        if target is not None and action.shared_affinity:
            found = next((each for each in action.pool if each.address == target.address), None)
            if found is not None:
                return found
    return None
