"""Marks lost machines: a Node that vipwire serves is Ready while its Lease is renewed.

If a Lease does not change for its duration, 40 s by default, the Node's condition Ready becomes Unknown; the
endpoints controller then removes the Node's endpoints. The machine sets Ready again itself. Time in which this
process did not run does not count: it could not have seen a renewal. The elected API server judges; all of them
listen, so that the next elected one need not wait again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.kube.lease import find_duration
from vipwire.logging import log
from vipwire.model.times import format_time
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.errors import is_store_full
from vipwire_up.api.objects.object import decode_record, key_of
from vipwire_up.api.registry import Registry
from vipwire_up.nodes.heartbeat import SECONDS
from vipwire_up.nodes.node import NODE_LEASES, is_managed_by_vipwire, is_ready, mark_node_lost
from vipwire_up.store.record import Key, RecordChange
from vipwire_up.store.store import Store
from vipwire_up.store_watch.events import write_warning_event
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard

_OPTIONS: Final = Options(manager="vipwire-node-readiness", validation="Ignore")
_ASLEEP: Final = 4.0
"""Seconds after a planned look from which on this process must have been stopped."""
_LOOKS: Final = 4
"""Looks in the shortest duration of a Lease, as a stopped process notices its stop only by a late look."""


@dataclass(slots=True)
class _Heard:
    """When a machine's Lease last changed, and its duration. Seconds."""

    when: float
    seconds: float = SECONDS


class NodeReadiness:
    """Follows the Nodes and Leases of a store. `clock` returns seconds and never goes back."""

    def __init__(
        self, store: Store, guard: Guard[Key] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._guard, self._clock = guard or Guard("Node readiness"), clock
        self._feed = Feed(store, (NODES, LEASES))
        self._ready: set[str] = set()
        self._heard: dict[str, _Heard] = {}
        self._looked = self._planned = clock()

    async def run(self, registry: Registry) -> None:
        await self._feed.run(partial(self.step, registry), self._guard)

    async def record_renewals_only(self) -> None:
        """Record renewals until cancelled without marking Nodes, for an election later."""
        await self._feed.run(self.record_renewals, Guard("Node observation"))

    async def step(self, registry: Registry) -> float:
        """Record renewals; mark Nodes that were silent for too long. Return the seconds until the next step."""
        now = self._clock()
        pause = await self.record_renewals()
        for name in sorted(self._ready):
            heard = self._heard[name]
            if now - heard.when >= heard.seconds:
                with self._guard.of(key_of(NODES, "", name)):
                    await self._mark_lost(registry, name, heard.seconds)
        return pause

    async def record_renewals(self) -> float:
        """Record renewals; return the seconds until the next look."""
        now = self._clock()
        if now - self._planned > _ASLEEP:
            for each in self._heard.values():
                each.when += now - self._looked
        self._looked = now
        self._feed.pass_changes(self._ready.clear, self._apply_change, self._guard)
        heard = [self._heard.setdefault(name, _Heard(now)) for name in self._ready]
        due = min((each.when + each.seconds - now for each in heard), default=SECONDS)
        shortest = min((each.seconds for each in heard), default=SECONDS)
        pause = min(max(due, RETRY_SECONDS), shortest / _LOOKS)
        self._planned = now + pause
        return pause

    def _apply_change(self, change: RecordChange) -> None:
        key, value = change.record.key, decode_record(change.record)
        if key.resource == LEASES.id:
            if key.namespace == NODE_LEASES and not change.deleted:
                self._heard[key.name] = _Heard(self._clock(), find_duration(value, SECONDS))
        elif change.deleted:
            self._ready.discard(key.name)
            self._heard.pop(key.name, None)
        elif is_managed_by_vipwire(value) and is_ready(value):
            self._ready.add(key.name)
        else:
            self._ready.discard(key.name)

    async def _mark_lost(self, registry: Registry, name: str, seconds: float) -> None:
        now = format_time(registry.clock())
        try:
            done = await registry.change(
                NODES, "", name, lambda value: mark_node_lost(value, now, seconds), _OPTIONS, subresource="status"
            )
        except ApiError as error:
            if error.code == 404:
                return
            if is_store_full(error):  # no machine can renew its Lease either
                for each in self._heard.values():
                    each.when = self._clock()
            raise
        self._ready.discard(name)
        log.warning("no heartbeat from a machine; removing its endpoints", node=name, seconds=seconds)
        message = f"no heartbeat from Node {name} for {seconds:g} s: vipwire removes its endpoints"
        await write_warning_event(registry, NODES, decode_record(done.record), "NodeNotReady", message)
