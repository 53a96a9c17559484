"""Session affinity: the frontends that share the remembered endpoint of a client.

    all frontends of a Service port        one memory: a client of the ClusterIP reaches the same endpoint at the
                                           node port, external IPs and the load balancer's IPs
    vipwire.io/affinity-scope: service     one memory for all ports of the Service, by the Pod's address

A frontend whose pool lacks the remembered endpoint (a Local policy, hints) chooses one of its own. The memory of the
other policy's frontends stays, so a client that uses both keeps both endpoints.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.service import TrafficPolicy
from vipwire.plan.plan import Forward, Frontend, Target


class Memory(NamedTuple):
    """The scope of a memory: a Service port, or a Service, for the frontends of one policy."""

    owner: ServicePortName | ObjectName
    policy: TrafficPolicy

    @property
    def other(self) -> "Memory":
        """The same owner's memory for the other policy."""
        local = self.policy is TrafficPolicy.LOCAL
        return Memory(self.owner, TrafficPolicy.CLUSTER if local else TrafficPolicy.LOCAL)


def sticky_actions(frontend: Frontend) -> Iterator[Forward]:
    for action in (frontend.action, frontend.short_circuit):
        if isinstance(action, Forward) and action.affinity_seconds is not None:
            yield action


def memory_of(frontend: Frontend, action: Forward) -> Memory:
    name = frontend.port_name
    return Memory(name.service if action.shared_affinity else name, action.policy)


def find_remembered(frontend: Frontend, action: Forward, remembered: Mapping[Memory, Target]) -> Target | None:
    """Return the client's remembered target; None if the frontend must choose one."""
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
