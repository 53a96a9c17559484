"""Slow start: an endpoint that joins a pool has a small share of it first, and its full one after a while.

    vipwire.io/slow-start: 30s      a tenth of its weight at once, two after 6 s, then one more every 3 s

A process that has just begun to serve fills its caches; a scheduler that counts connections would send it every new
one. The share is a weight of the plan, so that whatever mode knows weights knows this too.

Who is new is what this process has seen come. The endpoints that a Service has when it is planned for the first time
(at start, or with the annotation) are warm, since nothing tells how long they have been there. One that left and came
back is new again.

Pure: `now` is seconds of one monotonic clock, given by the caller, and `due` says when to ask again.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from msgspec import Struct, field

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.model.spread import Spread
from vipwire.plan.plan import Forward, Frontend, ServicePlan

STEPS: Final = 10
"""In so many equal steps a weight grows."""

_ROUNDING = 1e-6
_ALWAYS = float("-inf")


class SlowStart(Struct):
    """Since when each endpoint is in a pool, of the Services that want slow start, and when the next step is due.

    `_order` has every step, the next one first, so that to ask costs the same however many Services grow; steps that
    have become others are left in it until their time.
    """

    _since: dict[ObjectName, dict[Address, float]] = field(default_factory=dict)
    _steps: dict[ObjectName, float] = field(default_factory=dict)
    _order: list[tuple[float, ObjectName]] = field(default_factory=list)

    def due(self) -> float | None:
        """Return when the next weight grows; None if none does."""
        while self._order and self._steps.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def ripe(self, now: float) -> tuple[ObjectName, ...]:
        """Name the Services of which a weight is to grow now: each of them is to be seasoned."""
        found: list[ObjectName] = []
        while (at := self.due()) is not None and at <= now:
            found.append(heapq.heappop(self._order)[1])
            del self._steps[found[-1]]
        return tuple(found)

    def forget(self, name: ObjectName) -> None:
        """Forget a Service: it is gone, or wants no slow start."""
        self._since.pop(name, None)
        self._steps.pop(name, None)

    def season(self, plan: ServicePlan, seconds: float, now: float) -> ServicePlan:
        """Lower the weights of endpoints that have been in the plan's pools for less than so many seconds."""
        known = self._since.get(plan.name)
        present = {target.address for forward in _forwards(plan) for target in forward.pool}
        since = {address: _ALWAYS if known is None else known.get(address, now) for address in present}
        self._since[plan.name] = since
        young = {address: (now - at) * STEPS / seconds for address, at in since.items() if now - at < seconds}
        shares = {address: share for address, steps in young.items() if (share := _share(steps)) < STEPS}
        if not shares:
            self._steps.pop(plan.name, None)
            return plan
        at = min(since[each] + (share + 1) * seconds / STEPS for each, share in shares.items())
        if self._steps.get(plan.name) != at:
            self._steps[plan.name] = at
            heapq.heappush(self._order, (at, plan.name))
        return replace(
            plan,
            frontends=tuple(_seasoned(frontend, shares) for frontend in plan.frontends),
            ranges=tuple(replace(each, frontend=_seasoned(each.frontend, shares)) for each in plan.ranges),
        )


def _share(steps: float) -> int:
    """Return how many tenths of its weight an endpoint has; a step that is due now counts, however it was rounded."""
    return max(1, int(steps + _ROUNDING))


def _forwards(plan: ServicePlan) -> Iterator[Forward]:
    for frontend in (*plan.frontends, *(each.frontend for each in plan.ranges)):
        for action in (frontend.action, frontend.short_circuit):
            if isinstance(action, Forward):
                yield action


def _seasoned(frontend: Frontend, shares: Mapping[Address, int]) -> Frontend:
    action, short_circuit = frontend.action, frontend.short_circuit
    return replace(
        frontend,
        action=_weighed(action, shares) if isinstance(action, Forward) else action,
        short_circuit=None if short_circuit is None else _weighed(short_circuit, shares),
    )


def _weighed(forward: Forward, shares: Mapping[Address, int]) -> Forward:
    """Give each target so many tenths of its weight; without weights if all are the same."""
    pool = forward.pool
    full = zip(pool, forward.weights, strict=True)
    weights = tuple(weight * shares.get(target.address, STEPS) for target, weight in full)
    return replace(forward, spread=Spread(forward.spread.algorithm, weights if len(set(weights)) > 1 else ()))
