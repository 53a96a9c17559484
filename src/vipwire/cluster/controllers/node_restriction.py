"""Lets a machine write its own Node and Lease only, and only machines those. A hook; Kubernetes: NodeRestriction.

The rights of the role node are those of all machines. A machine that joined comes as `system:node:NAME`. It may not
write what says whether another machine is alive. Only a machine itself and admins delete Nodes.
"""

from typing import Final

from vipwire.cluster.announcing.kinds import ADDRESSES, MACHINES, SYSTEM
from vipwire.cluster.api.admission import Admitted, Attempt, Operation
from vipwire.cluster.api.errors import refused
from vipwire.cluster.api.guard import CALLER, Role
from vipwire.cluster.api.kinds.node import NODES
from vipwire.cluster.api.kinds.plain import LEASES
from vipwire.cluster.controllers.election import NAME as ELECTED
from vipwire.cluster.machines.leases import NODE_LEASES, SERVERS

USER: Final = "system:node:"
_MAY: Final = {Role.ADMIN.value, Role.NODE.value}
_OURS: Final = (ADDRESSES, MACHINES, SERVERS, ELECTED)
"""How Leases in kube-system begin that say who announces, who serves, and who is elected."""


def _is_of_machines(attempt: Attempt) -> bool:
    if attempt.resource is not LEASES:
        return False
    return attempt.namespace == NODE_LEASES or (attempt.namespace == SYSTEM and attempt.name.startswith(_OURS))


class NodeRestriction:
    """The hook."""

    def admit(self, attempt: Attempt) -> Admitted | None:
        """Refuse a machine that writes another's Node or Lease, and who is no machine a Lease of machines."""
        lease = attempt.resource is LEASES and attempt.namespace == NODE_LEASES
        caller = CALLER.get()
        if caller is not None and _is_of_machines(attempt) and not _MAY & set(caller.groups):
            why = f'User "{caller.name}" cannot write it: machines and API servers do'
            raise refused(attempt.resource.id, attempt.name, why)
        if not (lease or attempt.resource is NODES) or caller is None or Role.ADMIN.value in caller.groups:
            return None
        own = caller.name.removeprefix(USER) if caller.name.startswith(USER) else ""
        if (own or attempt.operation is Operation.DELETE) and attempt.name != own:
            what, why = attempt.resource.id, "a machine writes what is its own only"
            verb = "delete" if attempt.operation is Operation.DELETE else "write"
            raise refused(what, attempt.name, f'User "{caller.name}" cannot {verb} it: {why}')
        return None
