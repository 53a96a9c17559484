"""Keeps the Node of this machine and renews its Lease, so that the cluster knows that it serves.

A quarter of the Lease's time after each renewal comes the next. With each, the Node is looked at: one that somebody
has deleted is made again, and one that was taken for lost is Ready again.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.lease import new_lease, with_holder
from vipwire.logging import log
from vipwire.model.times import format_time
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.resource import Object
from vipwire_up.nodes.node import NODE_LEASES, is_lost, new_node, ready_condition, served_node
from vipwire_up.nodes.objects import Objects

SECONDS: Final = 40
_PARTS: Final = 4


class Heartbeat:
    """The Node and the Lease of a machine. `seconds` is how long it may be silent before it counts as lost."""

    def __init__(
        self,
        objects: Objects,
        node: str,
        addresses: list[Object],
        clock: Callable[[], datetime],
        *,
        seconds: int = SECONDS,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self._objects, self._node, self._addresses, self._clock = objects, node, addresses, clock
        self._seconds, self._annotations = seconds, dict(annotations or {})
        self._told = ""

    async def run(self) -> None:
        """Beat until cancelled. What cannot be written now is told once, and tried again soon."""
        while True:
            try:
                await self.beat()
            except (ApiError, UnreachableError) as error:
                if str(error) != self._told:
                    log.warning("cannot renew the Lease of this machine", node=self._node, error=error)
                self._told = str(error)
            else:
                if self._told:
                    log.info("renewed the Lease of this machine again", node=self._node)
                self._told = ""
            await asyncio.sleep(self._seconds / _PARTS)

    async def beat(self) -> None:
        """Renew once. Raise ApiError, UnreachableError."""
        found = await self._objects.read(NODES, "", self._node)
        if found is None:
            found = await self.declare()
        await self._renew(found)
        if is_lost(found) or not ready_condition(found) or not self._is_annotated(found):
            await self.declare()  # after the Lease: by an old one it would be lost again

    async def declare(self) -> Object:
        """Create the Node, or update in an existing one what describes this machine. Raise ApiError."""
        now, name = format_time(self._clock()), self._node
        if await self._objects.read(NODES, "", name) is None:
            value = new_node(name, self._addresses, now)
            value["metadata"]["annotations"] = dict(self._annotations)
            return await self._objects.create(NODES, "", value)
        await self._objects.edit(NODES, "", name, self._annotated)
        return await self._objects.edit(
            NODES, "", name, lambda value: served_node(value, self._addresses, now), subresource="status"
        )

    def _is_annotated(self, node: Object) -> bool:
        return self._annotations.items() <= (node["metadata"].get("annotations") or {}).items()

    def _annotated(self, node: Object) -> Object:
        meta = node["metadata"]
        return node | {"metadata": meta | {"annotations": (meta.get("annotations") or {}) | self._annotations}}

    async def _renew(self, node: Object) -> None:
        now, name = self._clock(), self._node
        try:
            await self._objects.edit(
                LEASES, NODE_LEASES, name, lambda lease: with_holder(lease, name, self._seconds, now)
            )
        except ApiError as error:
            if error.code != 404:
                raise
            lease = new_lease(name, name, self._seconds, now)
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
            lease["metadata"]["ownerReferences"] = [owner]  # it goes with the Node
            await self._objects.create(LEASES, NODE_LEASES, lease)
