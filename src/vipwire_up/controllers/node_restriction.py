"""Admission hook NodeRestriction: lets a machine write only its own objects.

All machines share the rights of the role node. A joined machine has the user name `system:node:NAME`:

    Nodes, and Leases in kube-node-lease    its own. Only a machine itself and admins delete Nodes
    Pods and their status                   those whose spec.nodeName is its own, because it probes only these
    vipwire-announcer-NODE                  its own; of another machine's it may empty the holder, which is the fence
    vipwire-address-ADDRESS                 to take the address, or to give its own away
    other Leases of machines and servers    none: API servers write them, in their own process

Users of the role node that are not machines, such as a proxy with a token, write none of these Leases in kube-system.
An Ingress controller does not either, nor any in kube-node-lease.
"""

from collections.abc import Mapping
from typing import Any, Final

from vipwire.kube.lease import find_holder
from vipwire_up.announcing.kinds import ADDRESSES, MACHINES, SYSTEM
from vipwire_up.api.admission import AdmissionRequest, Operation
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.errors import forbidden_object
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.serving.authorization import Role, User
from vipwire_up.controllers.election import NAME as ELECTED
from vipwire_up.nodes.node import NODE_LEASES, SERVERS

USER: Final = "system:node:"
_OURS: Final = (ADDRESSES, MACHINES, SERVERS, ELECTED)
"""Prefixes of Leases in kube-system: of announcers, addresses, machines, servers and elections."""
_OWN_ONLY: Final = "a machine may write its own objects only"
_MACHINES_ONLY: Final = "only machines and API servers may"


def refuse_writes_of_other_nodes(attempt: AdmissionRequest) -> None:
    caller = attempt.caller
    if caller is None or Role.ADMIN.value in caller.groups:
        return
    if why := _find_problem(attempt, caller):
        verb = "delete" if attempt.operation is Operation.DELETE else "write"
        what = attempt.resource.id
        raise forbidden_object(what, attempt.name, f'User "{caller.name}" cannot {verb} it: {why}')


def _find_problem(attempt: AdmissionRequest, caller: User) -> str:
    own = caller.name.removeprefix(USER) if caller.name.startswith(USER) else ""
    if attempt.resource is LEASES and attempt.namespace == SYSTEM and attempt.name.startswith(_OURS):
        return _refuse_announcing_lease(attempt, own)
    if attempt.resource is LEASES and attempt.namespace == NODE_LEASES and Role.NODE.value not in caller.groups:
        return _MACHINES_ONLY
    if attempt.resource is NODES or (attempt.resource is LEASES and attempt.namespace == NODE_LEASES):
        foreign = (own or attempt.operation is Operation.DELETE) and attempt.name != own
        return _OWN_ONLY if foreign else ""
    if attempt.resource is PODS and own:
        states = (each for each in (attempt.old, attempt.new) if each is not None)
        return "" if all(value_at(each, "spec", "nodeName") == own for each in states) else _OWN_ONLY
    return ""


def _refuse_announcing_lease(attempt: AdmissionRequest, own: str) -> str:
    """Return why a machine may not write a Lease of addresses, servers or controllers; "" if allowed."""
    if not own or not attempt.name.startswith((ADDRESSES, MACHINES)):
        return _MACHINES_ONLY
    before, after = _holder_or_empty(attempt.old), _holder_or_empty(attempt.new)
    if attempt.name.startswith(ADDRESSES):
        allowed = attempt.new is not None and own in (before, after)
    elif attempt.name == f"{MACHINES}{own}":
        allowed = after in ("", own)
    else:
        allowed = attempt.operation is Operation.UPDATE and not after
    return "" if allowed else _OWN_ONLY


def _holder_or_empty(lease: Mapping[str, Any] | None) -> str:
    return find_holder(lease) if lease is not None else ""
