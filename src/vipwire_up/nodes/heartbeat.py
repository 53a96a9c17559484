"""Keeps this machine's Node and renews its Lease, as a sign that the machine serves.

Renewals are a quarter of the Lease's duration apart, and usually one request each. Every fourth renewal also checks
the Node, and so does one that is late or refused, since the Node may be marked as lost, or the Lease deleted with it:
vipwire recreates a deleted Node, and makes one marked as lost Ready again. vipwire writes no Node before this process
holds its name (name_claim.py).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.lease import find_holder
from vipwire.logging import log
from vipwire.model.text import whole_number
from vipwire.model.times import format_time
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.nodes.name_claim import NameClaim, NameStillHeldError
from vipwire_up.nodes.node import NODE_LEASES, build_node, is_lost, ready_condition, update_node
from vipwire_up.nodes.objects import Objects

SECONDS: Final = 40
_PARTS: Final = 4
_UNCHECKED: Final = 3
"""Renewals between two checks of the Node."""
_FAREWELL_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 1.0
"""Seconds from a failed renewal to the next try."""


class Heartbeat:
    """The Node and the Lease of a machine. `claim` has the duration after which a silent machine is lost.

    `look` returns the machine's current addresses and annotations, at each renewal.
    """

    def __init__(
        self,
        objects: Objects,
        node: str,
        look: Callable[[], tuple[list[Object], Mapping[str, str]]],
        clock: Callable[[], datetime],
        claim: NameClaim | None = None,
    ) -> None:
        self._objects, self._node, self._look, self._clock = objects, node, look, clock
        self._claim = claim or NameClaim(node, SECONDS)
        self._addresses, self._annotations = look()
        self._declared, self._told = False, ""
        self._left = 0
        """Renewals until the next check of the Node."""

    async def run(self, explain: Callable[[Exception], str] = str) -> None:
        """Renew until cancelled. A failed write is logged once, as `explain` writes its error, and tried again soon.

        Raise NameTakenError if another machine has the Node's name.
        """
        while True:
            pause = self._claim.seconds / _PARTS
            try:
                await self.renew()
            except (ApiError, UnreachableError, NameStillHeldError) as error:
                pause = min(pause, _AGAIN_SECONDS)
                if (why := explain(error)) != self._told:
                    log.warning("cannot renew the Lease of this machine", node=self._node, error=why)
                self._told = why
            else:
                if self._told:
                    log.info("renewed the Lease of this machine again", node=self._node)
                self._told = ""
            await asyncio.sleep(pause)

    def holds_name(self) -> bool:
        return self._claim.holds_name()

    async def renew(self) -> None:
        """Renew the Lease; check the Node if that is due, this machine has changed, or the Lease may have ended."""
        left, self._left = self._left, 0
        same = self._look() == (self._addresses, self._annotations)
        if left and same and await self._claim.renew_written(self._objects, NODE_LEASES, self._clock()):
            self._left = left - 1
        else:
            await self.renew_once()
            self._left = _UNCHECKED

    async def renew_once(self) -> None:
        """Renew the Lease and check the Node."""
        self._addresses, self._annotations = self._look()
        found = await self._objects.read(NODES, "", self._node)
        if found is None:
            found = await self.declare_node()
        await self._renew_lease(found)
        if not self._declared or is_lost(found) or not ready_condition(found) or not self._is_described(found):
            await self.declare_node()  # after the Lease: with the old Lease the Node would be marked lost again

    async def declare_node(self) -> Object:
        """Create the Node, or update an existing one's facts about this machine. Raise ApiError."""
        now, name = format_time(self._clock()), self._node
        self._declared = True
        if await self._objects.read(NODES, "", name) is None:
            value = build_node(name, self._addresses, now)
            value["metadata"]["annotations"] = dict(self._annotations)
            return await self._objects.create(NODES, "", value)
        await self._objects.edit(NODES, "", name, self._with_annotations)
        return await self._objects.edit(
            NODES, "", name, lambda value: update_node(value, self._addresses, now), subresource="status"
        )

    def _is_described(self, node: Object) -> bool:
        annotated = self._annotations.items() <= (node["metadata"].get("annotations") or {}).items()
        return annotated and value_at(node, "status", "addresses") == self._addresses

    def _with_annotations(self, node: Object) -> Object:
        meta = node["metadata"]
        return node | {"metadata": meta | {"annotations": (meta.get("annotations") or {}) | dict(self._annotations)}}

    async def _renew_lease(self, node: Object) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}
        await self._claim.renew_lease(
            self._objects,
            NODE_LEASES,
            self._node,
            self._clock(),
            metadata={"ownerReferences": [owner]},  # garbage collection deletes it with the Node
            over=lambda lease: is_lost(node) and _version_number(lease) < _version_number(node),
        )


async def release_node_name(objects: Objects, claim: NameClaim) -> None:
    """Free the Node's name, so that no other process waits for it; the Node stays Ready until its Lease expires."""

    def released(lease: Object) -> Object:
        if find_holder(lease) != claim.identity:
            raise NameStillHeldError("another machine has the name")
        return lease | {"spec": lease["spec"] | {"holderIdentity": ""}}

    with contextlib.suppress(ApiError, UnreachableError, NameStillHeldError, TimeoutError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await objects.edit(LEASES, NODE_LEASES, claim.node, released)


def _version_number(value: Object) -> int:
    return whole_number(str(value_at(value, "metadata", "resourceVersion") or ""), 0, 2**63) or 0
