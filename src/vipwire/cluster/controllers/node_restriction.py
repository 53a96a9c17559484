"""Lets a machine write its own Node and Lease only. A hook; Kubernetes calls it NodeRestriction.

The rights of the role node are those of all machines. A machine that joined comes as `system:node:NAME`. It may not
write what says whether another machine is alive. Only a machine itself and admins delete Nodes.
"""

from typing import Final

from vipwire.cluster.api.admission import Admitted, Attempt, Operation
from vipwire.cluster.api.errors import refused
from vipwire.cluster.api.guard import CALLER, Role
from vipwire.cluster.api.kinds.node import NODES
from vipwire.cluster.api.kinds.plain import LEASES
from vipwire.cluster.machines.leases import NODE_LEASES

USER: Final = "system:node:"


class NodeRestriction:
    """The hook."""

    def admit(self, attempt: Attempt) -> Admitted | None:
        """Refuse a machine that writes another's Node or Lease."""
        lease = attempt.resource is LEASES and attempt.namespace == NODE_LEASES
        caller = CALLER.get()
        if not (lease or attempt.resource is NODES) or caller is None or Role.ADMIN.value in caller.groups:
            return None
        own = caller.name.removeprefix(USER) if caller.name.startswith(USER) else ""
        if (own or attempt.operation is Operation.DELETE) and attempt.name != own:
            what, why = attempt.resource.id, "a machine writes what is its own only"
            verb = "delete" if attempt.operation is Operation.DELETE else "write"
            raise refused(what, attempt.name, f'User "{caller.name}" cannot {verb} it: {why}')
        return None
